"""Our own GEMMs (`kernels/cpu/gemm.py`, `half_gemm.py`): each built once per
machine, loaded for all graphs.

In: a store and a toolchain. Out: its functions for Python; graphs loaded later find them by name.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from dynamo.store.content import Store
from dynamo.store.toolchain import Toolchain
from inductor.kernels.cpu.gemm import GEMM_NAME, GEMM_UNIT
from inductor.kernels.cpu.half_gemm import HALF_NAME, HALF_UNIT
from inductor.runtime.own_libraries import own_library


@dataclass(frozen=True, slots=True)
class OwnGemm:
    """The functions of a library, for matrices of `dtype` on the CPU."""

    function: Callable[..., int]
    pack: Callable[..., None]
    panels_size: Callable[[int, int], int]  # elements of `panels` of a matrix [k, n]
    is_plain: Callable[[int, int], int]  # whether x [m, k] wants no copy of a dense weight [n, k]
    dtype: torch.dtype = torch.float32

    def multiply(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor, threads: int
    ) -> None:
        """out = x @ weight + bias: rows (float32: or columns) of x dense, rows of out; weight
        [k, n] with any strides, or what `panels` made of one."""
        (m, k), n = x.shape, out.shape[1]
        start = None if bias is None else bias.data_ptr()
        strides = weight.stride() if weight.dim() == 2 else (0, 0)
        sides = (x.data_ptr(), *x.stride(), weight.data_ptr(), *strides)
        if self.function(m, n, k, *sides, start, out.data_ptr(), threads, None, None):
            raise MemoryError("no memory for a GEMM")

    def panels(self, weight: Tensor) -> Tensor:
        """A copy of weight [k, n] in the order in which GEMMs read it."""
        k, n = weight.shape
        made = torch.empty(self.panels_size(k, n), dtype=self.dtype)
        self.pack(k, n, weight.data_ptr(), *weight.stride(), made.data_ptr())
        return made


def load_gemm(
    store: Store, toolchain: Toolchain, dtype: torch.dtype = torch.float32
) -> OwnGemm | None:
    """Build (or find) and load the library for float32 or bfloat16; None where this processor has
    no instructions for it. Errors: BuildError."""
    unit = HALF_UNIT if dtype is torch.bfloat16 else GEMM_UNIT
    return _load(own_library((unit,), store, toolchain), dtype)


@functools.cache
def _load(path: str, dtype: torch.dtype) -> OwnGemm | None:
    library = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    if dtype is not torch.bfloat16:
        return bind_gemm(library)
    return bind_half_gemm(library) if library[f"{HALF_NAME}_ready"]() else None


def bind_gemm(library: ctypes.CDLL) -> OwnGemm:
    """The functions of a built library."""
    columns = library[f"{GEMM_NAME}_columns"]()

    def panels_size(k: int, n: int) -> int:
        return -(-n // columns) * columns * k

    is_plain = library[f"{GEMM_NAME}_plain"]
    is_plain.argtypes = [ctypes.c_long] * 2
    return OwnGemm(*_bound(library, GEMM_NAME), panels_size, is_plain)


def bind_half_gemm(library: ctypes.CDLL) -> OwnGemm:
    """The same of bfloat16."""
    size = library[f"{HALF_NAME}_size"]
    size.argtypes, size.restype = [ctypes.c_long] * 2, ctypes.c_long
    return OwnGemm(*_bound(library, HALF_NAME), size, lambda m, k: False, torch.bfloat16)


def _bound(
    library: ctypes.CDLL, name: str
) -> tuple[Callable[..., int], Callable[..., None]]:
    function, pack = library[name], library[f"{name}_pack"]
    number, pointer = ctypes.c_long, ctypes.c_void_p
    function.argtypes = [number, number, number, pointer, number, number, pointer, number, number]
    function.argtypes += [pointer, pointer, number, pointer, pointer]
    pack.argtypes, pack.restype = [number, number, pointer, number, number, pointer], None
    return function, pack
