"""Lowering of `_weight_int4pack_mm`: a GEMM of few rows whose weight lies as matrix units take it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch

from inductor.ir.body import Ops, Value
from inductor.ir.graph import contiguous
from inductor.ir.index import Index, constant, floordiv, mod
from inductor.lowering import readings
from inductor.lowering.gemms import summed, turned_left
from inductor.lowering.packed import (
    NibbleWeights,
    by_halves,
    nibbles_of,
    sum_by_units,
    sum_of_products,
)
from inductor.lowering.readings import (
    BY_LIBRARY,
    MOST_PACKED,
    MOST_ROWS_OF_WORDS,
    MOST_VECTORS,
)
from inductor.lowering.registry import Call, lowering
from inductor.lowering.tensor import HALVES, Indices, Tensor

aten = torch.ops.aten
PACK_TERMS = 32  # of the terms that the four lanes of a column have in one word each
TERMS_OF_UNITS = 256  # that four warps have eight columns of; fewer at a time were not tried
GROUP_OF_SEVERAL = 64  # terms with one scale, at least, where units multiply several rows


@lowering(aten._weight_int4pack_mm.default, of_library=True)
def weight_int4pack_mm(
    call: Call, left: Tensor, weight: Tensor, group: int, scales: Tensor
) -> Any:
    """The same of a weight in 4 bits as tensor cores of an NVIDIA GPU take it: [columns // 8,
    terms // tile, 8 * 4, words]; scales and zero points [terms // group, columns, 2]."""
    if not _takes_pack(call, left, weight, scales):
        return call.refuse(BY_LIBRARY)
    (rows, terms), columns, words = left.size, weight.size[0] * 8, weight.size[3]
    by_units = _packs_for_units(call, left, words, group)
    single = by_units or words % 2 or group < 2 * PACK_TERMS
    dtype = torch.int32 if single else torch.int64
    stored = readings.as_words(call, weight.realize().buffer, dtype)
    halves = dtype.itemsize // torch.int32.itemsize
    words //= halves
    tile, steps = words * halves * PACK_TERMS, halves * MOST_PACKED
    count, place = terms // steps, _places(words, halves)

    def place_of_half(at: Index, half: Index) -> Index:
        return place(at + 4 * mod(half, 2), floordiv(half, 2))

    in_planes = (steps // 2, tile, place_of_half) if by_units else (steps, tile, place)
    turned = turned_left(call, left, *in_planes)

    def parts(ops: Ops, column: Index, step: Index) -> tuple[Value, Value, Value]:
        """A word, and the scale and the zero point of its numbers."""
        lane = mod(column, 8) * 4 + mod(floordiv(step, words), 4)
        where = (floordiv(column, 8), floordiv(step, 4 * words), lane, mod(step, words))
        of_group = floordiv(place(constant(0), step), group)
        scale, zero = (
            ops.to_dtype(scales.load(ops, (of_group, column, constant(n))), torch.float32)
            for n in (0, 1)
        )
        return stored.load(ops, where), scale, zero

    def element(ops: Ops, i: Indices) -> Value:
        row, column, step = i
        if by_units:
            word, scale, zero = parts(ops, column, step)
            shift = ops.sub(zero, ops.mul(scale, ops.constant(8.0, torch.float32)))
            weight = NibbleWeights(word, tuple(range(steps)), scale, shift)
            return sum_by_units(ops, weight, by_halves(turned, ops, row, step))
        return sum_of_products(ops, *factors(ops, i), True)

    def factors(ops: Ops, i: Indices) -> tuple[list[Value], list[Value]]:
        row, column, step = i
        word, scale, zero = parts(ops, column, step)
        less = ops.constant(8.0, torch.float32)
        nibbles = nibbles_of(ops, word)
        weights = [ops.add(ops.mul(ops.sub(n, less), scale), zero) for n in nibbles]
        if by_units:
            return by_halves(turned, ops, row, step), weights
        return [turned.load(ops, (row, constant(at), step)) for at in range(steps)], weights

    def exact(ops: Ops, i: Indices) -> Value:
        return functools.reduce(ops.add, map(ops.mul, *factors(ops, i)))

    layout = contiguous((rows, columns, count), torch.float32, call.builder.device)
    products = call.builder.computed(layout, [turned, stored, scales], 2, element)
    total = summed(call, products, exact)
    return call.builder.computed(call.layout, [total], 1, lambda ops, i: total.load(ops, i))


def _places(words: int, halves: int) -> Callable[[Index, Index], Index]:
    """The term of a nibble, which is one of those of a step of one word or of two (`halves`), with
    so many steps in a tile: each fourth word goes on two terms later."""
    tile = words * halves * PACK_TERMS

    def place(at: Index, step: Index) -> Index:
        first = floordiv(step, 4 * words) * tile + mod(step, words) * (halves * PACK_TERMS)
        lane, nibble = mod(floordiv(step, words), 4), mod(at, MOST_PACKED)
        return (
            first + floordiv(at, MOST_PACKED) * PACK_TERMS + lane * 2
            + mod(nibble, 4) * MOST_PACKED + floordiv(nibble, 4)
        )

    return place


def _packs_for_units(call: Call, left: Tensor, words: int, group: int) -> bool:
    """Whether matrix units take such a weight: a scale for whole tiles of it."""
    return (
        readings.has_matrix_units(call) and left.dtype in HALVES
        and group % (words * PACK_TERMS) == 0
        and (left.size[0] == 1 or group % GROUP_OF_SEVERAL == 0)
        and left.size[1] % TERMS_OF_UNITS == 0
    )


def _takes_pack(call: Call, left: Tensor, weight: Tensor, scales: Tensor) -> bool:
    """Whether the GEMM is of few rows, and a weight of known sizes that nothing writes."""
    numbers = (*left.size, *weight.size, *scales.size)
    if any(type(number) is not int for number in numbers) or 0 in numbers:
        return False
    layout, fewest = weight.realize(), readings.scaled(call, readings.FEWEST_BYTES)
    dense = contiguous(weight.size, weight.dtype, call.builder.device)
    by_units = _packs_for_units(call, left, weight.size[3], left.size[1] // scales.size[0])
    most = MOST_VECTORS if by_units else MOST_ROWS_OF_WORDS
    return (
        readings.reads_words(call) and torch.version.hip is None and left.size[0] <= most
        and layout.buffer.startswith(("arg", "const"))
        and not weight.layout.offset and weight.layout.stride == dense.stride
        and math.prod(weight.size) * weight.dtype.itemsize >= fewest
    )
