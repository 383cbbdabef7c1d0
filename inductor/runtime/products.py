"""Our own matrix product (`codegen/cpp/product.py`): built once per machine, loaded for all graphs.

In: a store and a toolchain. Out: its functions for Python; graphs loaded later find them by name.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from inductor.codegen.cpp.product import PRODUCT_NAME, PRODUCT_UNIT
from inductor.runtime.own_libraries import own_library
from inductor.runtime.store import Store
from inductor.runtime.toolchain import Toolchain


@dataclass(frozen=True, slots=True)
class Product:
    """The functions of the library, for float32 matrices on the CPU."""

    function: Callable[..., int]
    pack: Callable[..., None]
    columns: int

    def multiply(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor, threads: int
    ) -> None:
        """out = x @ weight + bias: rows or columns of x dense, rows of out; weight [k, n] with any
        strides, or what `panels` made of one."""
        (m, k), n = x.shape, out.shape[1]
        start = None if bias is None else bias.data_ptr()
        strides = weight.stride() if weight.dim() == 2 else (0, 0)
        sides = (x.data_ptr(), *x.stride(), weight.data_ptr(), *strides)
        if self.function(m, n, k, *sides, start, out.data_ptr(), threads, None, None):
            raise MemoryError("no memory for a matrix product")

    def panels_size(self, k: int, n: int) -> int:
        """Elements of `panels`."""
        return -(-n // self.columns) * self.columns * k

    def panels(self, weight: Tensor) -> Tensor:
        """A copy of weight [k, n] in the order in which products read it."""
        k, n = weight.shape
        made = torch.empty(self.panels_size(k, n))
        self.pack(k, n, weight.data_ptr(), *weight.stride(), made.data_ptr())
        return made


def load_product(store: Store, toolchain: Toolchain) -> Product:
    """Build (or find) and load the library."""
    return _load(own_library((PRODUCT_UNIT,), store, toolchain))


@functools.cache
def _load(path: str) -> Product:
    return bind_product(ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL))


def bind_product(library: ctypes.CDLL) -> Product:
    """The functions of a built library."""
    function, pack = library[PRODUCT_NAME], library[f"{PRODUCT_NAME}_pack"]
    number, pointer = ctypes.c_long, ctypes.c_void_p
    function.argtypes = [number, number, number, pointer, number, number, pointer, number, number]
    function.argtypes += [pointer, pointer, number, pointer, pointer]
    pack.argtypes, pack.restype = [number, number, pointer, number, number, pointer], None
    return Product(function, pack, library[f"{PRODUCT_NAME}_columns"]())
