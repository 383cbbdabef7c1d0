"""Own decompositions of linear interpolation (`F.interpolate`), as weighted sums of neighbours.

In: eager's arguments. Out: eager's values up to rounding, in float32 with eager's weights bit by
bit: beside an infinity a weight of 0 makes nan. Eager's kernels for other dtypes round the weights
in ways of their own, so those stay calls of ATen, except where a gradient is wanted for sizes known
at a call (torch's backward takes no symbols). torch's own functions step from one neighbour towards
the other, `a + (b - a) * t`, which is NaN between equal infinities.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch

aten = torch.ops.aten
Tensor = torch.Tensor
Neighbours = tuple[tuple[Tensor, Tensor], ...]  # (index, weight) of each
_HALVES = (torch.float16, torch.bfloat16)


def upsample_linear(
    x: Tensor, sizes: Sequence[int], align_corners: bool, *scales: float | None
) -> Tensor:
    """The operators `default`. scales: what the caller gave for each axis."""
    if x.dtype is not torch.float32:
        return NotImplemented
    return weighted_sum(x, sizes, align_corners, *scales)


def weighted_sum(
    x: Tensor, sizes: Sequence[int], align_corners: bool, *scales: float | None
) -> Tensor:
    """The same for floats of all widths; laid out as eager has it, the gradient too."""
    if not x.dtype.is_floating_point or not all(type(n) is not int or n for n in x.shape):
        return NotImplemented
    held = torch.float32 if x.dtype in _HALVES else x.dtype
    rank = len(sizes)
    channels_last = _is_channels_last(x)
    source = x.permute(0, *range(2, rank + 2), 1) if channels_last else x
    front: list[Any] = [None] if channels_last else [None, None]
    axes = []
    for at, (size, scale) in enumerate(itertools.zip_longest(sizes, scales)):
        pairs = _neighbours(x, x.shape[2 + at], size, align_corners, scale, held)
        shape = (-1, *[1] * (rank - 1 - at))
        wide = (*shape, 1) if channels_last else shape
        axes.append([(index.view(shape), weight.view(wide)) for index, weight in pairs])
    total: Any = None
    for corner in itertools.product(*axes):
        value = aten._unsafe_index(source, [*front, *(index for index, _ in corner)]).to(held)
        value = value * math.prod((weight for _, weight in corner[1:]), start=corner[0][1])
        total = value if total is None else total + value
    total = total.to(x.dtype).contiguous()
    return total.permute(0, rank + 1, *range(1, rank + 1)) if channels_last else total


def upsample_linear_vec(
    x: Tensor, sizes: Sequence[int] | None, align_corners: bool, factors: Sequence[float] | None
) -> Tensor:
    """The operators `vec`, which get a size or factors."""
    if sizes is None:
        assert factors is not None
        sizes = [torch.sym_int(n * f) for n, f in zip(x.shape[2:], factors, strict=True)]
    return upsample_linear(x, sizes, align_corners, *(factors or ()))


def _neighbours(
    x: Tensor, extent: int, size: int, align_corners: bool, scale: float | None, held: torch.dtype
) -> Neighbours:
    """Where the values of an axis come from."""
    at = torch.arange(size, device=x.device)
    if extent == size:  # for symbolic sizes an assumption: eager treats this case differently
        one = torch.ones_like(at, dtype=held)
        return (at, one), (at, one - 1.0)  # eager adds 0 * x too
    one = torch.ones((), dtype=held, device=x.device)
    if align_corners:
        source = at.to(held) * (one * ((extent - 1) / (size - 1) if size > 1 else 0.0))
    else:
        source = _middles(at, one * (1.0 / scale if scale else extent / size))
    low = source.to(torch.int64).clamp(max=extent - 1)
    weight = (source - low).clamp(0.0, 1.0)
    return (low, 1.0 - weight), ((low + 1).clamp(max=extent - 1), weight)


def _middles(at: Tensor, step: Tensor) -> Tensor:
    """`(at + 0.5) * step - 0.5`, rounded once, as eager's kernels have it (a fused instruction).

    The two parts of the step are so short that all but the last addition is exact.
    """
    middle = at.to(torch.float64) + 0.5
    high = step.to(torch.float32).to(torch.float64)
    low = step.to(torch.float64) - high
    return ((middle * high - 0.5) + middle * low).to(step.dtype).clamp(min=0.0)


def _is_channels_last(x: Tensor) -> bool:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    if x.dim() not in formats or x.is_contiguous():
        return False
    return x.is_contiguous(memory_format=formats[x.dim()])


RESIZING: dict[str, Any] = {
    "upsample_linear1d.default": upsample_linear,
    "upsample_bilinear2d.default": upsample_linear,
    "upsample_bilinear2d.vec": upsample_linear_vec,
    "upsample_trilinear3d.default": upsample_linear,
    "upsample_trilinear3d.vec": upsample_linear_vec,
}
