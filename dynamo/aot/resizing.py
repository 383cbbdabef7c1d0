"""Own decompositions of interpolation (`F.interpolate`): linear, as weighted sums of neighbours; of
the nearest neighbour, and its gradient as sums of blocks.

In: eager's arguments. Out: eager's values up to rounding, in float32 with eager's weights bit by
bit: beside an infinity a weight of 0 makes nan. Kernels of a GPU have float32 for half precision,
too; eager's kernels for other dtypes round the weights in ways of their own, so those stay calls of
ATen, except where a gradient is wanted for sizes known at a call (torch's backward takes no
symbols). torch's own functions step from one neighbour towards the other, `a + (b - a) * t`, which
is NaN between equal infinities. And they find the nearest one by the factor that was given, where
some of eager's kernels for CPUs look whether an axis is as long as before, or twice as long: 5
elements by 2.1 are 10, for which these take each twice.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch._prims_common import suggest_memory_format

from dynamo.aot.frequent import is_half_on_gpu

aten = torch.ops.aten
Tensor = torch.Tensor
Neighbours = tuple[tuple[Tensor, Tensor], ...]  # (index, weight) of each
_HALVES = (torch.float16, torch.bfloat16)
FEW_CHANNELS = 4  # with fewer, eager has no kernel for channels last
SMALL_IMAGE = 128  # height and width, for eager's kernels on a CPU


def upsample_linear(
    x: Tensor, sizes: Sequence[int], align_corners: bool, *scales: float | None
) -> Tensor:
    """The operators `default`. scales: what the caller gave for each axis."""
    if x.dtype is not torch.float32 and not is_half_on_gpu(x):
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


def nearest(
    x: Tensor, sizes: Sequence[int], *scales: float | None, is_exact: bool = False
) -> Tensor:
    """The operators `default`. is_exact: those of `nearest-exact`, which go by middles."""
    if any(type(n) is int and n == 0 for n in x.shape):
        return NotImplemented
    rank, on_cpu = len(sizes), x.device.type == "cpu"
    wide = on_cpu and x.dtype is torch.float64 and not _goes_by_sizes(x, sizes)
    found: list[Any] = [None, None]
    for at, (size, scale) in enumerate(itertools.zip_longest(sizes, scales)):
        extent = x.shape[2 + at]
        if scale is not None and not is_exact and _is_once_or_twice(extent, size, scale) and (
            on_cpu and _goes_by_sizes(x, sizes)
        ):
            scale = None
        held = torch.float64 if wide else torch.float32
        index = _nearest_of(x, extent, size, scale, is_exact, held)
        found.append(index.view(-1, *[1] * (rank - 1 - at)))
    result: Tensor = aten._unsafe_index(x, found)
    memory_format = suggest_memory_format(x)
    if x.device.type == "cuda" and rank == 2 and x.shape[1] < FEW_CHANNELS:
        memory_format = torch.contiguous_format
    return result.contiguous(memory_format=memory_format)


def nearest_vec(
    x: Tensor, sizes: Sequence[int] | None, factors: Sequence[float] | None,
    is_exact: bool = False,
) -> Tensor:
    """The operators `vec`, which get a size or factors."""
    if sizes is None:
        assert factors is not None
        sizes = [torch.sym_int(n * f) for n, f in zip(x.shape[2:], factors, strict=True)]
    return nearest(x, sizes, *(factors or ()), is_exact=is_exact)


def _is_once_or_twice(extent: int, size: int, scale: float) -> bool:
    """Whether an axis is as long as before, or twice as long, by another factor."""
    return size == extent and scale != 1 or size == 2 * extent and scale != 2


def _goes_by_sizes(x: Tensor, sizes: Sequence[int]) -> bool:
    """Whether eager has its kernel for channels last, or small images, which looks at the sizes;
    its other one goes by factors."""
    if len(sizes) == 2 and sum(sizes) <= SMALL_IMAGE:
        return True
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return x.dim() in formats and x.shape[1] >= FEW_CHANNELS and x.is_contiguous(
        memory_format=formats[x.dim()])


def _nearest_of(
    x: Tensor, extent: int, size: int, scale: float | None, is_exact: bool, held: torch.dtype
) -> Tensor:
    """Where the values of an axis come from, in `held` and float32 as in eager's kernels."""
    at = torch.arange(size, device=x.device)
    known = type(extent) is type(size) is int
    for power, factor in enumerate((1, 2, 4, 8)):  # where float32 is exact
        if (scale == factor or scale is None and known) and size == extent * factor:
            return at >> power if power else at
    one = torch.ones((), dtype=held, device=x.device)
    place = at.to(held) + 0.5 if is_exact else at.to(held)
    place = place * (one * (1.0 / scale if scale else extent / size))
    return place.to(torch.float32).to(torch.int64).clamp(max=extent - 1)


def nearest_gradient(
    gradient: Tensor, sizes: Sequence[int], shape: Sequence[int], *scales: float | None,
    is_exact: bool = False,
) -> Tensor:
    """The operators `upsample_nearest*_backward`, and those of `nearest-exact`, where each axis has
    grown by a power of two: for other factors eager finds neighbours in float32, and now and then
    the one before."""
    by_size = gradient.device.type == "cpu" and not is_exact  # in all of eager's kernels
    split: list[int] = []
    for size, given, scale in itertools.zip_longest(sizes, shape[2:], scales):
        if type(size) is not int or type(given) is not int or not given or size % given:
            return NotImplemented
        factor = size // given
        if factor & (factor - 1):
            return NotImplemented
        if scale not in (None, factor) and not (by_size and factor <= 2):
            return NotImplemented
        split += [given, factor]
    channels_last = _is_channels_last(gradient)
    if gradient.numel() == 0 or gradient.device.type == "cpu" and not channels_last:
        return NotImplemented  # ATen's kernel for such rows on a CPU is faster
    rank = len(sizes)
    blocks = range(2, 2 * rank + 1, 2)
    if channels_last:
        last = gradient.permute(0, *range(2, rank + 2), 1)
        total = last.reshape(shape[0], *split, shape[1]).sum(list(blocks))
        return total.permute(0, rank + 1, *range(1, rank + 1))
    return gradient.reshape(*shape[:2], *split).sum([at + 1 for at in blocks])


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
    **{f"{name}{rank}d{variant}": functools.partial(function, is_exact=is_exact)
       for name, is_exact in (("upsample_nearest", False), ("_upsample_nearest_exact", True))
       for variant, function in (
           (".default", nearest), (".vec", nearest_vec), ("_backward.default", nearest_gradient))
       for rank in (1, 2, 3)},
}
