"""What stands for operators of which our own kernels know a simpler relative only.

In: nothing. Out: a table for `dynamo.aot.decompose`, beside the usual one: GEMMs with matrices
that are added, of vectors, of other dtypes than float32, of operands with steps; convolutions of
one dimension. A function that gives NotImplemented leaves its operator as it is. What libraries can
do on this processor decides nothing here: they are not in a package.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch

from dynamo.store.content import cache_store
from dynamo.store.processor import HALF_SUPPORT
from inductor.autotune.gemm_choice import own_gemm

aten = torch.ops.aten
Tensor = torch.Tensor
MOST_SUMMED = 4096  # elements of a cumulative sum on a GPU


def _sum(added: Tensor, beta: float, gemm: Tensor, alpha: float) -> Tensor:
    """beta * added + alpha * gemm; what a beta of 0 multiplies is not looked at."""
    whole = gemm if alpha == 1 else gemm * alpha
    if beta == 0:
        return whole
    return (added if beta == 1 else added * beta) + whole


def _addmm_for(half: Collection[Any]) -> Callable[..., Any]:
    def addmm(added: Tensor, x: Tensor, y: Tensor, *, beta: float = 1, alpha: float = 1) -> Any:
        plain = beta == 1 == alpha and added.dim() == 1 and added.shape[0] == y.shape[1]
        known = x.dtype is torch.float32 or x.dtype in half and _is_dense_linear(x, y)
        if plain and known and added.is_contiguous():
            return NotImplemented
        return _added(added, x, y, beta, alpha, aten.mm.default)

    return addmm


def _baddbmm(added: Tensor, x: Tensor, y: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    return _added(added, x, y, beta, alpha, aten.bmm.default)


def _addmv(added: Tensor, x: Tensor, y: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    return _added(added, x, y, beta, alpha, _mv)


def _added(
    added: Tensor, x: Tensor, y: Tensor, beta: float, alpha: float, multiply: Callable[..., Tensor]
) -> Tensor:
    """A GEMM and what is added, rounded once."""
    if x.dtype not in HALF_SUPPORT:
        return _sum(added, beta, multiply(x, y), alpha)
    return _cast(_sum(_cast(added), beta, multiply(_cast(x), _cast(y)), alpha), x.dtype)


def _cast(x: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    made: Tensor = aten._to_copy.default(x, dtype=dtype)
    return made


def _mv(x: Tensor, y: Tensor) -> Tensor:
    return aten.mm.default(x, y.unsqueeze(1)).squeeze(1)


def _dot(x: Tensor, y: Tensor) -> Tensor:
    return aten.mm.default(x.unsqueeze(0), y.unsqueeze(1)).reshape(())


def _has_steps(x: Tensor) -> bool:
    """Whether neither rows nor columns of a matrix are dense."""
    return 1 not in (*x.stride()[-2:], *x.shape[-2:])


def _is_dense_linear(x: Tensor, y: Tensor) -> bool:
    """Whether our GEMM of half precision takes these matrices (`autotune/linear.py`)."""
    (_, k), n = x.shape, y.shape[1]
    return x.stride() == (k, 1) and y.stride() in ((1, k), (n, 1)) and min(n, k) > 1


def _gemm(multiply: Callable[..., Any], dim: int, fits: Callable[..., bool]) -> Any:
    """Of matrices, or of stacks of them. dim: where the sum is taken in the product of all; fits:
    whether there is a GEMM of these of half precision."""

    def gemm(x: Tensor, y: Tensor) -> Any:
        if x.dtype is torch.float32:
            return multiply(x.contiguous(), y) if _has_steps(x) else NotImplemented
        if x.dtype in HALF_SUPPORT and fits(x, y):
            return NotImplemented
        if x.dtype in HALF_SUPPORT:
            return _cast(multiply(_cast(x), _cast(y)), x.dtype)
        if x.dtype is torch.float64:
            return (x.unsqueeze(-1) * y.unsqueeze(dim - 1)).sum(dim)
        return NotImplemented

    return gemm


def _convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: list[int], padding: list[int],
    dilation: list[int], transposed: bool, output_padding: list[int], groups: int,
) -> Any:
    if x.dim() != 3 or transposed or x.dtype not in (torch.float32, *HALF_SUPPORT):
        return NotImplemented
    made = aten.convolution.default(
        x.unsqueeze(2), weight.unsqueeze(2), bias, [1, *stride], [0, *padding], [1, *dilation],
        False, [0, 0], groups)
    return made.squeeze(2).contiguous()


def own_decompositions() -> Mapping[Any, Callable[..., Any]]:
    """The table, for this processor."""
    half = [dtype for dtype in HALF_SUPPORT if own_gemm(cache_store(), dtype) is not None]
    return {
        aten.addmm.default: _addmm_for(half), aten.baddbmm.default: _baddbmm,
        aten.addmv.default: _addmv, aten.mv.default: _mv, aten.dot.default: _dot,
        aten.convolution.default: _convolution,
        aten.mm.default: _gemm(
            aten.mm.default, 1, lambda x, y: x.dtype in half and _is_dense_linear(x, y)),
        aten.bmm.default: _gemm(aten.bmm.default, 2, lambda x, y: False),
    }  # fmt: skip


def _plain_sum(added: Tensor, x: Tensor, y: Tensor, *, beta: float = 1, alpha: float = 1) -> Any:
    """GEMMs with a factor, as our template has none."""
    if beta == 1 == alpha:
        return NotImplemented
    return _added(added, x, y, beta, alpha, aten.mm.default if x.dim() == 2 else aten.bmm.default)


def gpu_decompositions() -> Mapping[Any, Callable[..., Any]]:
    """The table of packages for a GPU, whose template multiplies matrices of any strides."""
    return {
        aten.cumsum.default: _cumsum, aten.convolution.default: _by_windows,
        aten.addmm.default: _plain_sum, aten.baddbmm.default: _plain_sum,
        aten.addmv.default: _addmv, aten.mv.default: _mv, aten.dot.default: _dot,
        aten.mm.default: _in_double(aten.mm.default, 1),
        aten.bmm.default: _in_double(aten.bmm.default, 2),
    }  # fmt: skip


def _by_windows(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: list[int], padding: list[int],
    dilation: list[int], transposed: bool, output_padding: list[int], groups: int,
) -> Any:
    """A convolution as a GEMM with all windows, which are copied side by side; that with one
    element in channels-last order is a GEMM as it is."""
    axes = x.dim() - 2
    one = {*weight.shape[2:], *stride, *dilation} == {1} and not any(padding) and groups == 1
    if transposed or 0 in x.shape or one and _has_channels_last(x):
        return NotImplemented
    batch, channels, *sides = x.shape
    before = [amount for amount in reversed(padding) for _ in range(2)]
    padded = aten.constant_pad_nd.default(x.contiguous(), before, 0) if any(before) else x
    padded = padded.contiguous()
    steps = padded.stride()
    extents = [
        (side + 2 * pad - far * (size - 1) - 1) // step + 1 for side, pad, far, size, step in
        zip(sides, padding, dilation, weight.shape[2:], stride, strict=True)
    ]
    inner = channels // groups
    sizes = [groups, batch, *extents, inner, *weight.shape[2:]]
    at = [inner * steps[1], steps[0], *map(_multiplied, stride, steps[2:]), steps[1],
          *map(_multiplied, dilation, steps[2:])]  # fmt: skip
    depth = inner * math.prod(weight.shape[2:])
    rows = batch * math.prod(extents)
    windows = aten.as_strided.default(padded, sizes, at).reshape(groups, rows, depth)
    weights = weight.reshape(groups, -1, depth).transpose(1, 2)
    if groups == 1:
        made = (aten.mm.default(windows[0], weights[0]) if bias is None
                else aten.addmm.default(bias, windows[0], weights[0])).unsqueeze(0)
    else:
        made = aten.bmm.default(windows, weights)
        if bias is not None:
            made = made + bias.reshape(groups, 1, -1)
    shaped = made.reshape(groups, batch, *extents, weight.shape[0] // groups)
    moved = shaped.permute(1, 0, axes + 2, *range(2, axes + 2))
    return _laid_out(moved.reshape(batch, -1, *extents), x)


def _multiplied(one: int, other: int) -> int:
    return one * other


def _has_channels_last(x: Tensor) -> bool:
    return x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)


def _laid_out(made: Tensor, x: Tensor) -> Tensor:
    """In channels-last order where the input is, as eager's results are."""
    last = _has_channels_last(x) and not x.is_contiguous()
    return made.contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)


def _cumsum(x: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Any:
    """Each sum for itself, which is for rows of positions in a text, not for long ones."""
    kind = dtype or (x.dtype if x.is_floating_point() else torch.int64)
    if x.dim() == 0 or x.is_complex() or x.shape[dim] > MOST_SUMMED:
        return NotImplemented
    wide = torch.float32 if kind in HALF_SUPPORT else kind
    at = torch.arange(x.shape[dim], device=x.device)
    rows = aten._to_copy.default(x, dtype=wide).movedim(dim, -1).unsqueeze(-2)
    sums = aten.where.ScalarOther(at <= at[:, None], rows, 0).sum(-1, dtype=wide)
    return _cast(sums.movedim(-1, dim), kind).contiguous()


def _in_double(multiply: Callable[..., Any], dim: int) -> Any:
    """GEMMs of float64 as loops; others as they are."""
    gemm = _gemm(multiply, dim, lambda x, y: True)
    return lambda x, y: gemm(x, y) if x.dtype is torch.float64 else NotImplemented
