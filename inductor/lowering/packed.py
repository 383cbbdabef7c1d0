"""Weights of which several values lie in one word: how a sum loads and adds them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from inductor.ir.body import Ops, Value
from inductor.ir.index import IndexLike, as_index, floordiv, mod
from inductor.lowering.tensor import HALVES, Tensor

BITS = 8
NIBBLE, NIBBLES_AT = 15, (16, 12)  # in the mantissa, where enough of it is above and below
MANTISSA = 23
INTEGERS = {torch.uint8: 8, torch.int8: 8, torch.int16: 16, torch.int32: 32, torch.int64: 64}


class InWords:
    """The `ops` of a body, which take the bytes of a buffer out of words of four or eight.

    words: its memory as integers of 32 or 64 bits. The place of a byte in its word is known.
    """

    def __init__(self, ops: Ops, buffer: str, words: Tensor) -> None:
        self.ops = ops
        self.buffer = buffer
        self.words = words.realize().buffer
        self.dtype = words.dtype

    def __getattr__(self, name: str) -> Any:
        return getattr(self.ops, name)

    def load(self, buffer: str, index: IndexLike, dtype: torch.dtype) -> Value:
        if buffer != self.buffer:
            return self.ops.load(buffer, index, dtype)
        ops, index = self.ops, as_index(index)
        count, single = self.dtype.itemsize // dtype.itemsize, torch.int32.itemsize
        place = mod(index, count)
        assert place.is_constant and dtype.itemsize == 1
        word = ops.load(self.words, floordiv(index, count), self.dtype)
        if place.offset >= single:
            word = ops.shift_right(word, ops.constant(BITS * single, self.dtype))
        word, offset = ops.to_dtype(word, torch.int32), place.offset % single
        distance = ops.constant(BITS * offset, torch.int32)
        return ops.to_dtype(ops.shift_right(word, distance) if offset else word, dtype)


def nibbles_of(ops: Ops, word: Value) -> list[Value]:
    """The numbers of 4 bits of one word or two, from the lowest bits on."""
    long = word.dtype is torch.int64
    singles = [ops.to_dtype(word, torch.int32)]
    if long:
        high = ops.shift_right(word, ops.constant(32, word.dtype))
        singles.append(ops.to_dtype(high, torch.int32))
    mask = ops.constant(NIBBLE, torch.int32)
    return [
        ops.to_dtype(
            ops.bitwise_and(ops.shift_right(single, ops.constant(at, torch.int32)), mask),
            torch.float32)
        for single in singles for at in range(0, 32, 4)
    ]  # fmt: skip


def sum_of_products(
    ops: Ops, left: Sequence[Value], right: Sequence[Value], quick: bool = False
) -> Value:
    """left[0] * right[0] + left[1] * right[1] + ..; what all values on the right are multiplied
    with, or have added or subtracted, is so once.

    quick: numbers of 4 bits may be read out of the mantissa of a float, which rounds more than
    float32 does and much less than half precision.
    """
    return _whole(ops, *_parts(ops, left, right, quick))


@dataclass(frozen=True, slots=True)
class NibbleWeights:
    """The weights of a sum as what four bits of `word` count, times `scale`, and `shift` added to
    it; order: for each four bits, from the lowest on, which weight they are."""

    word: Value
    order: tuple[int, ...]
    scale: Value | None
    shift: Value | None


def nibble_weights(ops: Ops, weights: Sequence[Value]) -> NibbleWeights | None:
    """The weights so; None where they are something else, or not all bits of a word."""
    for name in ("mul", "add", "sub"):
        found = _common(ops, weights, name)
        if found is None:
            continue
        shared, rest = found
        inner = nibble_weights(ops, rest)
        if inner is None:
            return None
        scale, shift = inner.scale, inner.shift
        if name == "mul":
            return replace(
                inner, scale=shared if scale is None else ops.mul(scale, shared),
                shift=None if shift is None else ops.mul(shift, shared))
        if shift is not None:
            return replace(inner, shift=ops.call(name, shift, shared))
        return replace(inner, shift=shared if name == "add" else ops.neg(shared))
    places = [_nibble_of(ops, weight) for weight in weights]
    known = [place for place in places if place is not None]
    bits = [bit for _, bit in known]
    if len({word.position for word, _ in known}) != 1 or sorted(bits) != [*range(0, 32, 4)]:
        return None
    order = tuple(bits.index(bit) for bit in range(0, 32, 4))
    return NibbleWeights(known[0][0], order, None, None)


def sum_by_units(ops: Ops, weights: NibbleWeights, left: Sequence[Value]) -> Value:
    """left[0] * weights[0] + .., of one word's eight, as matrix units take it
    (`codegen/triton/matrix_sums.py`)."""
    given = [left[at] for at in weights.order]
    total = ops.nibbles_dot(weights.word, given)
    if weights.scale is not None:
        total = ops.mul(total, weights.scale)
    if weights.shift is not None:
        total = ops.add(total, ops.mul(_added(ops, given), weights.shift))
    return total


def _parts(
    ops: Ops, left: Sequence[Value], right: Sequence[Value], quick: bool
) -> tuple[list[Value], float]:
    """What the sum is made of, and what that is to be multiplied with in the end; more than one
    where the first has nothing of the right in it."""
    for name in ("mul", "add", "sub"):
        found = _common(ops, right, name) if len(right) > 1 else None
        if found is None:
            continue
        shared, rest = found
        parts, factor = _parts(ops, left, rest, quick)
        if name == "mul":
            return [ops.mul(_whole(ops, parts, factor), shared)], 1.0
        number = ops.recorded[shared.position]
        if isinstance(number.imm, int | float) and number.name == "constant" and len(parts) > 1:
            small = ops.constant(number.imm / factor, shared.dtype)
            moved = ops.mul(_added(ops, left), small)
            return [ops.call(name, parts[0], moved), *parts[1:]], factor
        moved = ops.mul(_added(ops, left), shared)
        return [ops.call(name, _whole(ops, parts, factor), moved)], 1.0
    places = [_nibble_of(ops, value) for value in right] if quick else []
    known = [place for place in places if place is not None]
    if len(known) == len(right) > 1:
        return _products_of_nibbles(ops, left, known)
    return [functools.reduce(ops.add, map(ops.mul, left, right))], 1.0


def _whole(ops: Ops, parts: Sequence[Value], factor: float) -> Value:
    whole = _added(ops, parts)
    return whole if factor == 1 else ops.mul(whole, ops.constant(factor, whole.dtype))


def _products_of_nibbles(
    ops: Ops, left: Sequence[Value], places: Sequence[tuple[Value, int]]
) -> tuple[list[Value], float]:
    """A nibble in the mantissa of 1 is 1 + n / 128, or 1 + n / 2048 where that is nearer: one
    instruction, and one for each second shift. The sum is multiplied with 128 or 2048, not what is
    given: that may be as large as bfloat16 has it."""
    scales = [float(1 << MANTISSA - _goal_of(bit)) for _, bit in places]
    factor = max(scales)
    given = [
        x if scale == factor else ops.mul(x, ops.constant(scale / factor, x.dtype))
        for x, scale in zip(left, scales, strict=True)
    ]
    above = [_above_one(ops, *place) for place in places]
    return [ops.neg(_added(ops, given)), *map(ops.mul, given, above)], factor


def _nibble_of(ops: Ops, value: Value) -> tuple[Value, int] | None:
    """The word, and the place of the lowest of its four bits that are this number; None where it is
    not so made."""
    op = ops.recorded[value.position]
    if op.name != "to_dtype" or op.dtype is not torch.float32:
        return None
    position = op.args[0]
    while (low := ops.recorded[position]).name == "to_dtype" and low.dtype in HALVES:
        position = low.args[0]  # which have each such number
    if low.name == "bitwise_and":
        at = next((n for n in (0, 1) if _constant(ops, low.args[n]) == NIBBLE), None)
        return None if at is None else _place_of(ops, low.args[1 - at])
    if low.name == "shift_right" and low.dtype is torch.uint8 and _constant(ops, low.args[1]) == 4:
        return _place_of(ops, position)
    return None


def _place_of(ops: Ops, position: int) -> tuple[Value, int] | None:
    """The word of which these are the lowest four bits."""
    op, at = ops.recorded[position], 0
    while op.name in ("shift_right", "to_dtype") and op.dtype in INTEGERS:
        if op.name == "to_dtype" and ops.recorded[op.args[0]].dtype is torch.int64:
            break  # one word of two
        distance = _constant(ops, op.args[1]) if op.name == "shift_right" else 0
        if distance is None or not 0 <= at + distance <= INTEGERS[op.dtype] - 4:
            return None
        at, position = at + distance, op.args[0]
        op = ops.recorded[position]
    if op.dtype is not torch.int32 or at > INTEGERS[torch.int32] - 4:
        return None
    return Value(position, torch.int32), at


def _constant(ops: Ops, position: int) -> int | None:
    op = ops.recorded[position]
    return op.imm if op.name == "constant" and type(op.imm) is int else None


def _goal_of(bit: int) -> int:
    """Where in the mantissa a nibble at this bit of a word is read."""
    return NIBBLES_AT[(bit + BITS - NIBBLES_AT[0]) % BITS >= BITS // 2]


def _above_one(ops: Ops, word: Value, bit: int) -> Value:
    """1 and the number over what the bits count there: no conversion."""
    goal = _goal_of(bit)
    if bit != goal:
        distance = ops.constant(abs(bit - goal), torch.int32)
        word = ops.call("shift_right" if bit > goal else "shift_left", word, distance)
    return ops.above_one(word, goal)


def _added(ops: Ops, values: Sequence[Value]) -> Value:
    return functools.reduce(ops.add, values)


def _common(
    ops: Ops, values: Sequence[Value], name: str
) -> tuple[Value, list[Value]] | None:
    """The second operand that values, all results of this operation, have in common, or but
    for a difference the first one; and what else they are made of."""
    made = [ops.recorded[value.position] for value in values]
    if any(op.name != name or op.dtype is not torch.float32 for op in made):
        return None
    for side in (1,) if name == "sub" else (1, 0):
        shared = {op.args[side] for op in made}
        if len(shared) == 1:
            rest = [Value(op.args[1 - side], torch.float32) for op in made]
            return Value(shared.pop(), torch.float32), rest
    return None
