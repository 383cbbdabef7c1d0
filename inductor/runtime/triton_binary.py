"""What Triton has compiled, loaded and started without a launcher of Triton's own.

Triton (3.6) writes a launcher in C for each signature, has it compiled, and loads it as a Python
module that has the same name for all signatures. CPython keeps one such module, so of two threads
that load at the same time one may get the other's launcher: its launch then fails, or takes a
number for one of another width. Here the driver gets the kernel, and nothing is compiled in C.
Kernels that need more than addresses and numbers do go through Triton's launchers, one at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from dynamo.base.compiled_kernels import WARP as WARP
from dynamo.base.compiled_kernels import driver_launch as driver_launch
from dynamo.base.compiled_kernels import is_simple as is_simple
from inductor.runtime._launch import KernelCall

# The stream of this thread on a device.
current_stream: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", lambda _: 0)
_LOADED = "_dynamo_loaded"  # of a compiled kernel: its module and function
_loading = threading.Lock()


def function_of(compiled: Any) -> int:
    """The kernel's function on the current device, loaded if need be.

    Errors: triton's OutOfResources where it needs more than the device has.
    """
    known = getattr(compiled, "function", None)
    if isinstance(known, int):  # Triton has loaded it
        return known
    with _loading:
        if _LOADED not in compiled.__dict__:
            compiled.__dict__[_LOADED] = _load(compiled)
        return int(compiled.__dict__[_LOADED][1])


def _load(compiled: Any) -> tuple[Any, int]:
    from triton.runtime import driver
    from triton.runtime.errors import OutOfResources

    device, utils = driver.active.get_current_device(), driver.active.utils
    facts = compiled.metadata
    most = utils.get_device_properties(device)["max_shared_mem"]
    if facts.shared > most:
        raise OutOfResources(facts.shared, most, "shared memory")
    module, function, _, _, *threads = utils.load_binary(
        compiled.name, compiled.kernel, facts.shared, device
    )
    if threads and facts.num_warps * WARP > threads[0]:
        raise OutOfResources(facts.num_warps * WARP, threads[0], "threads")
    return module, function


def load(compiled: Any) -> None:
    """Load a kernel that may need a launcher of Triton's."""
    if is_simple(compiled):
        function_of(compiled)
    elif hasattr(compiled, "_init_handles"):
        with _loading:
            compiled._init_handles()


def run(
    function: Any, grid: tuple[int, int, int], tensors: Sequence[torch.Tensor],
    numbers: Sequence[float], packed: bytes, options: Mapping[str, Any],
) -> Any:
    """Run a Triton function on tensors and the numbers after them (packed: these, as `KernelCall`
    takes them); what Triton has compiled for such tensors is the result."""
    if not tensors or not tensors[0].is_cuda:  # it does nothing, or Triton's interpreter runs it
        with _loading:
            return function[grid](*tensors, *numbers, **options)
    compiled = function.warmup(*tensors, *numbers, grid=grid, **options)
    if not is_simple(compiled):
        with _loading:
            return function[grid](*tensors, *numbers, **options)
    threads = compiled.metadata.num_warps * WARP
    start((function_of(compiled), grid, threads, compiled.metadata.shared), tensors, packed)
    return compiled


def start(
    ready: tuple[int, tuple[int, int, int], int, int], tensors: Sequence[torch.Tensor],
    packed: bytes,
) -> None:
    """Start a kernel once, also in a thread that has no context of CUDA's yet. ready: function,
    grid, threads and shared bytes, as `KernelCall.ready` takes them."""
    device = tensors[0].device

    def with_context(*given: torch.Tensor) -> None:
        torch.zeros((), device=device)  # this thread has a context from here on
        call = KernelCall(no_context, len(given), (), packed)
        call.ready(driver_launch(), *ready)
        call(current_stream(device.index or 0), *given)

    call = KernelCall(with_context, len(tensors), (), packed)
    call.ready(driver_launch(), *ready)
    call(current_stream(device.index or 0), *tensors)


def no_context(*tensors: torch.Tensor) -> None:
    """The slow way of a call that has none. Errors: RuntimeError."""
    raise RuntimeError("CUDA has no context in this thread")
