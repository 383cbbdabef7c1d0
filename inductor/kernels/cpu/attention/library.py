"""Our own attention on a CPU (`kernels/cpu/attention/source.py`): built once per machine, loaded
for all graphs, which find it by its name.

In: a store and a toolchain. Out: its function for Python, of float32 or bfloat16.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from dynamo.store.content import Store
from dynamo.store.toolchain import Toolchain
from inductor.kernels.attention_spec import broadcast_strides
from inductor.kernels.cpu.attention.source import attention_name, attention_unit
from inductor.runtime.own_libraries import own_library

Maybe = torch.Tensor | None
HALF = torch.bfloat16


@dataclass(frozen=True, slots=True)
class CpuAttention:
    """The function of a library, for float32 or bfloat16."""

    function: Callable[..., int]
    half: bool

    def attend(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: Maybe, mask: Maybe,
        causal: bool, scale: float, window: int, cap: float, nan_rows: bool, fills: bool,
        out: torch.Tensor, threads: int,
    ) -> None:
        """Write attention to `out`; all tensors but the mask have last strides of 1."""
        if (q.dtype is HALF) != self.half:
            raise TypeError(f"this library is not for {q.dtype}")
        scores = (*q.shape[:3], k.shape[2])
        steps = [broadcast_strides(x, scores) or (0, 0, 0, 0) for x in (bias, mask)]  # type: ignore[arg-type]
        sizes = (*q.shape[:2], k.shape[1], q.shape[2], *k.shape[2:], v.shape[3])
        strides = [x.stride()[:3] for x in (q, k, v, out)]
        facts = facts_of(sizes, strides, steps, causal, window, nan_rows, fills)
        half_bias = bias is not None and bias.dtype is HALF
        places = [None if x is None else x.data_ptr() for x in (q, k, v, bias, mask, out)]
        numbers = (ctypes.c_long * len(facts))(*facts)
        if self.function(numbers, half_bias, *places, None, scale, cap, threads):
            raise MemoryError("no memory for attention")


def facts_of(
    sizes: Sequence[int], strides: Sequence[Sequence[int]], added: Sequence[Sequence[int]],
    causal: bool, window: int, nan_rows: bool, fills: bool,
) -> list[int]:
    """What the function calls `Facts`. sizes: batch, heads, heads of keys, queries, keys, head,
    head of values; strides: of q, k, v and the result; added: of bias and mask, 0 without."""
    flat = [step for steps in (*strides, *added) for step in steps]
    return [*sizes, *flat, int(causal), window, int(nan_rows), int(fills)]


def load_attention(store: Store, toolchain: Toolchain, half: bool) -> CpuAttention:
    """Build (or find) and load the library. half: of bfloat16."""
    return _load(own_library((attention_unit(half),), store, toolchain), half)


@functools.cache
def _load(path: str, half: bool) -> CpuAttention:
    function = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)[attention_name(half)]
    number, pointer, real = ctypes.c_long, ctypes.c_void_p, ctypes.c_double
    function.argtypes = [pointer, number, *[pointer] * 7, real, real, number]
    return CpuAttention(function, half)
