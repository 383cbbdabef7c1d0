"""Our own matrix product (`codegen/cpp/product.py`): built once per machine, loaded for all graphs.

In: a store and a toolchain. Out: the function for Python; graphs loaded later find it by its name.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from dataclasses import replace

import torch

from inductor.codegen.cpp.product import PRODUCT_NAME, PRODUCT_UNIT
from inductor.runtime.build import build_library
from inductor.runtime.store import Store
from inductor.runtime.toolchain import Toolchain

Product = Callable[..., None]


def load_product(store: Store, toolchain: Toolchain) -> Product:
    """Build (or find) the library; see `_call` for what comes out."""
    flags = tuple(flag for flag in toolchain.compile_flags if not flag.startswith("-ffp-contract"))
    fused = replace(toolchain, compile_flags=(*flags, "-ffp-contract=fast"))
    return _load(str(build_library([PRODUCT_UNIT], fused, store).path))


@functools.cache
def _load(path: str) -> Product:
    function = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)[PRODUCT_NAME]
    number, pointer = ctypes.c_long, ctypes.c_void_p
    function.argtypes = [number, number, number, pointer, number, pointer, number, number]
    function.argtypes += [pointer, pointer, number]
    return functools.partial(_call, function)


def _call(
    function: Callable[..., int],
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    threads: int,
) -> None:
    """out = x @ weight + bias: float32 matrices, rows of x and out dense; weight [k, n] with any
    strides."""
    (m, k), n = x.shape, out.shape[1]
    start = None if bias is None else bias.data_ptr()
    sides = (x.data_ptr(), x.stride(0), weight.data_ptr(), *weight.stride())
    if function(m, n, k, *sides, start, out.data_ptr(), threads):
        raise MemoryError("no memory for a matrix product")
