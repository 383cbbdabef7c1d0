"""Mean and variance over images on a GPU: of few channels of large images where an image is
row-major, and of groups of channels where channels come last.

A channel's pixels are shared out in chunks, of which a program holds one in registers: it gives the
chunk's sum and the sum of the squares of what is off the chunk's own mean. From these follow mean
and variance of all, as exactly as in two passes, but memory is read once. Few channels would fill
the device in neither pass, which makes two launches of each. Where channels come last, neighbours
in memory are of other groups: a group by itself would read memory in scattered chunks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from inductor.ir.body import Ops, Value
from inductor.ir.graph import Layout, contiguous
from inductor.ir.index import floordiv, mod
from inductor.lowering.registry import Call
from inductor.lowering.tensor import Indices, Tensor, compute_dtype
from inductor.runtime.gpu_properties import properties_of

# On an H200 the two passes over 32 x 64 x 56 x 56 took 38.7 us, and memory 26: there are too few
# channels for all multiprocessors. Where it turns was not measured, nor were the chunks below.
FEW_CHANNELS = 128  # on the device measured
MANY_PIXELS = 1 << 14  # of a channel
SHORTEST_PIECE, LONGEST_PIECE = 512, 8192  # of which a program keeps all
PIXELS = (16, 64)  # of a chunk where channels come last, of which a program keeps several channels'

Finish = Callable[[Ops, Value], Value]


@dataclass(frozen=True, slots=True)
class Chunks:
    """How the pixels of channels are shared out. outer: reduced axes in front; inner: those that
    are one stretch of memory for each channel, which is cut into `count` chunks of `length`."""

    channel: int
    outer: tuple[int, ...]
    inner: tuple[int, ...]
    count: int
    length: int


def chunks_of(call: Call, x: Tensor, axes: Sequence[int]) -> Chunks | None:
    """None where mean and variance over the axes are better computed otherwise."""
    rest = [axis for axis in range(len(x.size)) if axis not in axes]
    numbers = (*x.size, *x.layout.stride)
    if call.builder.device.type == "cpu" or any(type(number) is not int for number in numbers):
        return None
    if len(rest) != 1 or compute_dtype(x.dtype) is not x.dtype:
        return None
    (channel,) = rest
    inner = tuple(axis for axis in axes if axis > channel)
    outer = tuple(axis for axis in axes if axis < channel)
    dense = contiguous([x.size[axis] for axis in inner], x.dtype, x.layout.device)
    if tuple(x.layout.stride[axis] for axis in inner) != dense.stride:
        return None
    pixels = math.prod(x.size[axis] for axis in inner)
    many = pixels * math.prod(x.size[axis] for axis in outer)
    few = properties_of(call.builder.device).scaled(FEW_CHANNELS)
    if x.size[channel] >= few or many < MANY_PIXELS:
        return None
    found = (n for n in range(-(-pixels // LONGEST_PIECE), pixels + 1) if pixels % n == 0)
    count = next(found)
    if pixels // count < SHORTEST_PIECE:
        return None
    return Chunks(channel, outer, inner, count, pixels // count)


def moments(call: Call, x: Tensor, chunks: Chunks, divisor: float) -> tuple[Tensor, Tensor]:
    """Of each channel the mean, and the sum of squared distances from it over the divisor."""
    x.realize()
    device, channels = x.layout.device, x.size[chunks.channel]
    before = (*(x.size[axis] for axis in chunks.outer), chunks.count)
    whole = contiguous((channels, *before, chunks.length), x.dtype, device)
    vector = contiguous((channels,), x.dtype, device)
    shown = call.builder.computed(whole, [x], 0, lambda ops, i: x.load(ops, _pixel(x, chunks, i)))

    def over_divisor(ops: Ops, total: Value) -> Value:
        return ops.truediv(total, ops.constant(divisor, x.dtype))

    sums = _sums_of_pieces(call, shown)
    return _joined(call, sums, vector, list(range(1, len(before) + 1)), over_divisor)


def group_moments(call: Call, x: Tensor, groups: int, finish: Finish) -> tuple[Tensor, Tensor]:
    """Of each group of channels of each image, which is (images, channels, ...) with channels last:
    the mean, and `finish` of the variance; (images, groups) each."""
    images, channels, *space = x.size
    pixels, per, device = math.prod(space), channels // groups, x.layout.device
    held = compute_dtype(x.dtype)
    divisors = [n for n in range(PIXELS[0], PIXELS[1] + 1) if pixels % n == 0]
    length = divisors[-1] if divisors else pixels  # few pixels, or of an odd number
    whole = contiguous((images, pixels // length, channels, length), held, device)

    def pixel(ops: Ops, i: Indices) -> Value:
        at, place = i[1] * length + i[3], []
        for extent in reversed(space[1:]):
            place.append(mod(at, extent))
            at = floordiv(at, extent)
        return x.load(ops, (i[0], i[2], at, *reversed(place)))

    def by_group(sums: Tensor) -> Tensor:
        layout = contiguous((images, pixels // length, groups, per), held, device)
        return call.builder.computed(
            layout, [sums], 0, lambda ops, i: sums.load(ops, (*i[:2], i[2] * per + i[3])))

    def end(ops: Ops, total: Value) -> Value:
        return finish(ops, ops.truediv(total, ops.constant(pixels * per, held)))

    sums = _sums_of_pieces(call, call.builder.computed(whole, [x], 0, pixel))
    sums = Sums(by_group(sums.totals), by_group(sums.squares), length)
    return _joined(call, sums, contiguous((images, groups), held, device), [1, 3], end)


@dataclass(frozen=True, slots=True)
class Sums:
    """Of chunks of `length` elements: their sums, and the sums of squared distances from the own
    mean of each."""

    totals: Tensor
    squares: Tensor
    length: int

    def own_mean(self, ops: Ops, indices: Indices) -> Value:
        total = self.totals.load(ops, indices)
        return ops.truediv(total, ops.constant(self.length, total.dtype))


def _sums_of_pieces(call: Call, shown: Tensor) -> Sums:
    """Over the last axis."""
    *before, length = shown.size
    last = [len(before)]
    partial = contiguous(before, compute_dtype(shown.dtype), shown.layout.device)
    found = Sums(call.builder.reduce(partial, shown, last, "sum"), shown, length)

    def off_own(ops: Ops, value: Value, indices: Indices) -> tuple[Value, ...]:
        deviation = ops.sub(value, found.own_mean(ops, indices[:-1]))
        return (ops.mul(deviation, deviation),)

    return replace(found, squares=call.builder.reduce(partial, shown, last, "sum", off_own))


def _joined(
    call: Call, sums: Sums, layout: Layout, axes: Sequence[int], finish: Finish
) -> tuple[Tensor, Tensor]:
    """Mean, and `finish` of the sum of squared distances from it, of all chunks along the axes."""
    count = math.prod(sums.totals.size[axis] for axis in axes) * sums.length

    def over_count(ops: Ops, total: Value) -> Value:
        return ops.truediv(total, ops.constant(count, layout.dtype))

    mean = call.builder.reduce(layout, sums.totals, axes, "sum", finish=over_count)

    def off_all(ops: Ops, value: Value, indices: Indices) -> tuple[Value, ...]:
        rest = tuple(index for axis, index in enumerate(indices) if axis not in axes)
        deviation = ops.sub(sums.own_mean(ops, indices), mean.load(ops, rest))
        between = ops.mul(ops.mul(deviation, deviation), ops.constant(sums.length, layout.dtype))
        return (ops.add(value, between),)

    return mean, call.builder.reduce(layout, sums.squares, axes, "sum", off_all, finish)


def _pixel(x: Tensor, chunks: Chunks, indices: Indices) -> Indices:
    """Where an element of a chunk lies in the image."""
    channel, *outer, chunk, element = indices
    flat = chunk * chunks.length + element
    at = dict(zip(chunks.outer, outer, strict=True)) | {chunks.channel: channel}
    for axis in reversed(chunks.inner):
        at[axis], flat = mod(flat, x.size[axis]), floordiv(flat, x.size[axis])
    return tuple(at[axis] for axis in range(len(x.size)))
