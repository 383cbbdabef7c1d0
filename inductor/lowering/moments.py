"""Mean and variance of few channels of large images on a GPU, where an image is row-major.

A channel's pixels are shared out in pieces, of which a program holds one in registers: it gives the
piece's sum and the sum of the squares of what is off the piece's own mean. From these follow mean
and variance of all, as exactly as in two passes, but memory is read once. Few channels would fill
the device in neither pass, which makes two launches of each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from inductor.ir.body import Ops, Value
from inductor.ir.index import floordiv, mod
from inductor.lowering.builder import contiguous
from inductor.lowering.registry import Call
from inductor.lowering.tensor import Indices, Tensor, compute_dtype

FEW_CHANNELS = 128
MANY_PIXELS = 1 << 14  # of a channel
SHORTEST_PIECE, LONGEST_PIECE = 512, 8192  # of which a program keeps all


@dataclass(frozen=True, slots=True)
class Pieces:
    """How the pixels of channels are shared out. outer: reduced axes in front; inner: those that
    are one stretch of memory for each channel, which is cut into `count` pieces of `length`."""

    channel: int
    outer: tuple[int, ...]
    inner: tuple[int, ...]
    count: int
    length: int


def pieces_of(call: Call, x: Tensor, axes: Sequence[int]) -> Pieces | None:
    """None where mean and variance over the axes are better computed otherwise."""
    kept = [axis for axis in range(len(x.size)) if axis not in axes]
    numbers = (*x.size, *x.layout.stride)
    if call.builder.device.type == "cpu" or any(type(number) is not int for number in numbers):
        return None
    if len(kept) != 1 or compute_dtype(x.dtype) is not x.dtype:
        return None
    (channel,) = kept
    inner = tuple(axis for axis in axes if axis > channel)
    outer = tuple(axis for axis in axes if axis < channel)
    dense = contiguous([x.size[axis] for axis in inner], x.dtype, x.layout.device)
    if tuple(x.layout.stride[axis] for axis in inner) != dense.stride:
        return None
    pixels = math.prod(x.size[axis] for axis in inner)
    many = pixels * math.prod(x.size[axis] for axis in outer)
    if x.size[channel] >= FEW_CHANNELS or many < MANY_PIXELS:
        return None
    found = (n for n in range(-(-pixels // LONGEST_PIECE), pixels + 1) if pixels % n == 0)
    count = next(found)
    if pixels // count < SHORTEST_PIECE:
        return None
    return Pieces(channel, outer, inner, count, pixels // count)


def moments(call: Call, x: Tensor, pieces: Pieces, divisor: float) -> tuple[Tensor, Tensor]:
    """Of each channel the mean, and the sum of squared distances from it over the divisor."""
    x.realize()
    device, channels = x.layout.device, x.size[pieces.channel]
    before = (*(x.size[axis] for axis in pieces.outer), pieces.count)
    whole = contiguous((channels, *before, pieces.length), x.dtype, device)
    partial = contiguous((channels, *before), x.dtype, device)
    vector = contiguous((channels,), x.dtype, device)
    shown = call.builder.computed(whole, [x], 0, lambda ops, i: x.load(ops, _pixel(x, pieces, i)))
    last, others = [len(before) + 1], list(range(1, len(before) + 1))
    sums = call.builder.reduce(partial, shown, last, "sum")

    def own_mean(ops: Ops, indices: Indices) -> Value:
        total = sums.load(ops, indices)
        return ops.truediv(total, ops.constant(pieces.length, x.dtype))

    def off_own(ops: Ops, value: Value, indices: Indices) -> tuple[Value, ...]:
        away = ops.sub(value, own_mean(ops, indices[:-1]))
        return (ops.mul(away, away),)

    squares = call.builder.reduce(partial, shown, last, "sum", off_own)
    count = math.prod(before) * pieces.length

    def over_count(ops: Ops, total: Value) -> Value:
        return ops.truediv(total, ops.constant(count, x.dtype))

    mean = call.builder.reduce(vector, sums, others, "sum", finish=over_count)

    def off_all(ops: Ops, value: Value, indices: Indices) -> tuple[Value, ...]:
        away = ops.sub(own_mean(ops, indices), mean.load(ops, indices[:1]))
        between = ops.mul(ops.mul(away, away), ops.constant(pieces.length, x.dtype))
        return (ops.add(value, between),)

    def over_divisor(ops: Ops, total: Value) -> Value:
        return ops.truediv(total, ops.constant(divisor, x.dtype))

    return mean, call.builder.reduce(vector, squares, others, "sum", off_all, over_divisor)


def _pixel(x: Tensor, pieces: Pieces, indices: Indices) -> Indices:
    """Where an element of a piece lies in the image."""
    channel, *outer, piece, element = indices
    flat = piece * pieces.length + element
    at = dict(zip(pieces.outer, outer, strict=True)) | {pieces.channel: channel}
    for axis in reversed(pieces.inner):
        at[axis], flat = mod(flat, x.size[axis]), floordiv(flat, x.size[axis])
    return tuple(at[axis] for axis in range(len(x.size)))
