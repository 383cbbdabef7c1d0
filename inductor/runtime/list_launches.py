"""Starts lists of kernels that are one launch.

In: what a generated wrapper says of a list. Out: a `ListCall` (`csrc/lists.cpp`), which is called
with a stream and the tensors of all kernels. Which program does which part of which kernel is
written to the device once, when the wrapper is loaded.
"""

from __future__ import annotations

import ctypes
import functools

import torch

from inductor.runtime._launch import ListCall
from inductor.runtime.triton_binary import driver_launch
from inductor.runtime.triton_launch import Launcher

# Copies its parameters: `count` of the values go to `out`.
FILL = """
.version 7.0
.target sm_52
.address_size 64
.visible .entry k_fill(.param .u64 out, .param .u32 count, .param .align 8 .b8 values[3840])
{
  .reg .pred %outside;
  .reg .b32 %at, %size, %thread, %most;
  .reg .b64 %byte, %from, %to, %value;
  mov.u32 %at, %ctaid.x;
  mov.u32 %size, %ntid.x;
  mov.u32 %thread, %tid.x;
  mad.lo.s32 %at, %at, %size, %thread;
  ld.param.u32 %most, [count];
  setp.ge.u32 %outside, %at, %most;
  @%outside bra END;
  mul.wide.u32 %byte, %at, 8;
  mov.b64 %from, values;
  add.s64 %from, %from, %byte;
  ld.param.u64 %value, [%from];
  ld.param.u64 %to, [out];
  cvta.to.global.u64 %to, %to;
  add.s64 %to, %to, %byte;
  st.global.u64 [%to], %value;
END:
  ret;
}
"""


def over(
    aligned: Launcher, unaligned: Launcher, sizes: tuple[int, ...], tile: int, width: int,
    vectors: tuple[int, ...],
) -> ListCall:
    """What starts a list. The launchers: of the same function, for buffers at multiples of 16
    bytes and for others; the rest: see `ListSource`."""
    places = places_of(sizes, tile, aligned.dtypes[1]).to(aligned.device)
    grid = ((places.shape[0], 1, 1),)
    device = aligned.device

    def prepare() -> None:
        torch.zeros((), device=device)  # this thread has a context from here on
        made.ready(driver_launch(), _fill_function(device.index or 0), _is_capturing())

    made = ListCall(prepare, aligned.at(grid), unaligned.at(grid), places, width, vectors)
    return made


def places_of(sizes: tuple[int, ...], tile: int, dtype: torch.dtype) -> torch.Tensor:
    """For each program the kernel, which part of it, and the kernel's size.

    >>> places_of((3, 9), 4, torch.int32).tolist()
    [[0, 0, 3], [1, 0, 9], [1, 1, 9], [1, 2, 9]]
    """
    size = torch.tensor(sizes, dtype=dtype)
    parts = (size + (tile - 1)) // tile
    kernel = torch.repeat_interleave(torch.arange(len(sizes), dtype=dtype), parts)
    begin = torch.cumsum(parts, 0) - parts
    part = torch.arange(len(kernel)) - begin[kernel.long()]
    return torch.stack([kernel, part.to(dtype), size[kernel.long()]], 1).contiguous()


@functools.cache
def _fill_function(index: int) -> int:
    """The kernel that fills tables, on a device, for as long as the process lives."""
    driver = ctypes.CDLL("libcuda.so.1")
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    with torch.cuda.device(index):
        code = driver.cuModuleLoadData(ctypes.byref(module), FILL.encode()) or \
            driver.cuModuleGetFunction(ctypes.byref(function), module, b"k_fill")
    if code != 0 or not function.value:
        raise RuntimeError(f"the kernel that fills tables is not loaded: CUDA error {code}")
    return function.value


@functools.cache
def _is_capturing() -> int:
    """The address of the driver's function that says whether a stream records."""
    function = ctypes.CDLL("libcuda.so.1").cuStreamIsCapturing
    return ctypes.cast(function, ctypes.c_void_p).value or 0
