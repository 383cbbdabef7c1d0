"""Attention on a CPU as an operator: what graphs hold where our own kernel computes it.

`dynamo_jit::cpu_attention` takes what `dynamo_jit::attention` takes (see `attention_ops.py`) but
for `lse`, and gives the result as one tensor of the given strides, without a derivative. fills: a
bias of `FILL` or less replaces the score, even NaN, as `masked_fill` does.

Graphs call the library without it (`codegen/own_functions.py`); the operator is for what
runs as ATen calls, and where there is no library.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch

from dynamo.store.content import cache_store
from inductor.config import is_enabled
from inductor.kernels.attention_reference import scores_of
from inductor.kernels.cpu.attention.library import CpuAttention, load_attention
from inductor.runtime.own_libraries import loaded

Tensor = torch.Tensor
Maybe = Tensor | None
FILL = -1e30
DTYPES = (torch.float32, torch.bfloat16)
FEWEST_OPERATIONS = 1 << 20
"""Below, the kernel is not worth building its library."""

LIBRARY = torch.library.Library("dynamo_jit", "FRAGMENT")
GIVEN = (
    "Tensor q, Tensor k, Tensor v, Tensor? bias, Tensor? mask, bool causal, float scale,"
    " int window, float cap, bool nan_rows, bool fills, int[] stride"
)
LIBRARY.define(f"cpu_attention({GIVEN}) -> Tensor")
LIBRARY.define(f"cpu_attention.out({GIVEN}, *, Tensor(a!) out) -> Tensor(a!)")


def load(dtype: torch.dtype) -> CpuAttention | None:
    """The library; None where it can't be built."""
    load_it = functools.partial(load_attention, half=dtype is torch.bfloat16)
    return loaded(load_it, cache_store(), "attention")


def _shape(
    q: Tensor, k: Tensor, v: Tensor, bias: Maybe, mask: Maybe, causal: bool, scale: float,
    window: int, cap: float, nan_rows: bool, fills: bool, stride: Sequence[int],
) -> Tensor:
    size = (*q.shape[:3], v.shape[3])
    return torch.empty_strided(size, stride, dtype=q.dtype, device=q.device)


def _attend(
    q: Tensor, k: Tensor, v: Tensor, bias: Maybe, mask: Maybe, causal: bool, scale: float,
    window: int, cap: float, nan_rows: bool, fills: bool, stride: Sequence[int],
) -> Tensor:
    out = _shape(q, k, v, bias, mask, causal, scale, window, cap, nan_rows, fills, stride)
    return _attend_into(
        q, k, v, bias, mask, causal, scale, window, cap, nan_rows, fills, stride, out=out
    )


def _attend_into(
    q: Tensor, k: Tensor, v: Tensor, bias: Maybe, mask: Maybe, causal: bool, scale: float,
    window: int, cap: float, nan_rows: bool, fills: bool, stride: Sequence[int], *, out: Tensor,
) -> Tensor:
    library = load(q.dtype) if fits(q, k, v, bias, mask) and has_unit(out) else None
    if library is None:
        score = scores_of(q, k, bias, mask, causal, scale, window, cap)
        if fills and bias is not None:
            score = torch.where(bias <= FILL, bias, score)
        weight = torch.softmax(score, -1)
        if not nan_rows:
            weight = weight.masked_fill(torch.isneginf(score).all(-1, keepdim=True), 0.0)
        v = v.repeat_interleave(q.shape[1] // v.shape[1], 1).to(weight.dtype)
        return out.copy_(weight @ v)
    threads = torch.get_num_threads()
    library.attend(q, k, v, bias, mask, causal, scale, window, cap, nan_rows, fills, out, threads)
    return out


LIBRARY.impl("cpu_attention", _shape, "Meta")
LIBRARY.impl("cpu_attention", _attend, "CPU")
LIBRARY.impl("cpu_attention.out", _attend_into, "CPU")
OPERATOR = torch.ops.dynamo_jit.cpu_attention.default
INTO_MEMORY = torch.ops.dynamo_jit.cpu_attention.out


def dense_strides(q: Tensor, v: Tensor) -> list[int]:
    """Strides of a contiguous result."""
    _, heads, length, _ = q.shape
    head = v.shape[3]
    return [heads * length * head, length * head, head, 1]


def has_unit(tensor: Tensor) -> bool:
    """Whether elements of the last axis are neighbours."""
    return tensor.shape[-1] == 1 or tensor.stride(-1) == 1


def fits(q: Tensor, k: Tensor, v: Tensor, bias: Maybe, mask: Maybe) -> bool:
    """Whether the kernel computes attention of these tensors."""
    given = [x for x in (q, k, v, bias, mask) if x is not None]
    if not (is_enabled("attention") and all(x.device.type == "cpu" for x in given)):
        return False
    if any(type(n) is not int for x in given for n in (*x.shape, *x.stride())):
        return False
    if q.dtype not in DTYPES or k.dtype is not q.dtype or v.dtype is not q.dtype:
        return False
    if any(x.dim() != 4 or 0 in x.shape or not has_unit(x) for x in (q, k, v)):
        return False
    (batch, heads, queries, head), (_, kv_heads, keys, _) = q.shape, k.shape
    if k.shape != (batch, kv_heads, keys, head) or v.shape[:3] != k.shape[:3] or heads % kv_heads:
        return False
    scores = (batch, heads, queries, keys)
    if bias is not None and bias.dtype not in (torch.float32, q.dtype):
        return False
    if mask is not None and mask.dtype is not torch.bool:
        return False
    return all(_broadcasts(x, scores) for x in (bias, mask) if x is not None)


def _broadcasts(tensor: Tensor, size: tuple[int, ...]) -> bool:
    if tensor.dim() > 4:
        return False
    whole = size[4 - tensor.dim() :]
    return all(n in (1, most) for n, most in zip(tensor.shape, whole, strict=True))


def operations(q: Tensor, k: Tensor, v: Tensor) -> int:
    """Multiplications and additions of both GEMMs."""
    batch, heads, queries, head = q.shape
    return 2 * batch * heads * queries * int(k.shape[2]) * (head + int(v.shape[3]))
