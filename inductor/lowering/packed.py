"""Weights of which several values lie in one word: how a sum loads and adds them."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from inductor.ir.body import Op, Ops, Value
from inductor.ir.index import Index, IndexLike, as_index, constant, floordiv, mod
from inductor.lowering.tensor import HALVES, Tensor

BITS = 8
IN_WORD = 8  # numbers of 4 bits
BITS_OF_NIBBLE, HALF_OF_NIBBLES, HIGHEST_BITS = 4, 8, 0x88888888 - (1 << 32)  # as an int32
NIBBLE, NIBBLES_AT = 15, (16, 12)  # in the mantissa, where enough of it is above and below
MANTISSA = 23
# Up to so large, all integers are numbers of the dtype.
EXACT = {torch.float32: 1 << 24, torch.float16: 1 << 11, torch.bfloat16: 1 << 8}
MOST_EXACT = 1 << 23  # of an operand, so that a sum of two is one in float32
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
    it; order: for each four bits, from the lowest on, which weight they are. amount: of one weight
    alone, where in the word it begins, which is another place for each row."""

    word: Value
    order: tuple[int, ...]
    scale: Value | None = None
    shift: Value | None = None
    amount: Value | None = None


def nibble_weights(ops: Ops, weights: Sequence[Value]) -> NibbleWeights | None:
    """The weights so; None where they are something else, or not all bits of a word."""
    for name in ("mul", "add", "sub"):
        for shared, rest in _common(ops, weights, name):
            inner = nibble_weights(ops, rest)
            if inner is None:
                continue
            scale, shift = inner.scale, inner.shift
            if name == "mul":
                return replace(
                    inner, scale=shared if scale is None else ops.mul(scale, shared),
                    shift=None if shift is None else ops.mul(shift, shared))
            if shift is not None:
                return replace(inner, shift=ops.call(name, shift, shared))
            return replace(inner, shift=shared if name == "add" else ops.neg(shared))
    found = [_nibble_of(ops, weight) for weight in weights]
    fields = [field for field in found if field is not None]
    if len(fields) != len(weights) or len({field.word for field in fields}) != 1:
        return None
    first, bits = fields[0], [field.low for field in fields]
    word = Value(first.word, torch.int32)
    amounts = [
        Value(at, ops.recorded[at].dtype) for field in fields if (at := field.amount) is not None]
    if amounts and len(fields) == 1:
        return NibbleWeights(word, (), amount=ops.to_dtype(amounts[0], torch.int32))
    if amounts:
        return _as_usual(ops, word, amounts) if len(amounts) == len(fields) == IN_WORD else None
    signed = {field.signed for field in fields}
    if sorted(bits) != [*range(0, 32, 4)] or len(signed) != 1:
        return None
    order = tuple(bits.index(bit) for bit in range(0, 32, 4))
    if signed == {False}:
        return NibbleWeights(word, order)
    # Numbers from -8 to 7 count from 0 to 15 where their highest bits are the other way round.
    word = ops.call("bitwise_xor", word, ops.constant(HIGHEST_BITS, torch.int32))
    return NibbleWeights(word, order, shift=ops.constant(-float(HALF_OF_NIBBLES), torch.float32))


def _as_usual(ops: Ops, word: Value, distances: Sequence[Value]) -> NibbleWeights | None:
    """The weights of a word that is shifted by numbers that are loaded, where these are 0, 4, 8 ..;
    else the scale is no number, so that what is made of them is summed again as it is written."""
    if any(ops.recorded[each.position].name != "load" for each in distances):
        return None
    good = None
    for place, each in zip(range(0, 32, BITS_OF_NIBBLE), distances, strict=True):
        same = ops.eq(each, ops.constant(place, each.dtype))
        good = same if good is None else ops.bitwise_and(good, same)
    assert good is not None
    one, none = (ops.constant(number, torch.float32) for number in (1.0, math.nan))
    return NibbleWeights(word, tuple(range(IN_WORD)), ops.where(good, one, none))


def sum_by_units(ops: Ops, weights: NibbleWeights, left: Sequence[Value]) -> Value:
    """left[0] * weights[0] + .., of one word's eight, or its one, as matrix units take it
    (`codegen/triton/matrix_sums.py`)."""
    if weights.amount is not None:
        given = list(left)
        total = ops.mul(left[0], ops.nibble(weights.word, weights.amount))
    else:
        given = [left[at] for at in weights.order]
        total = ops.nibbles_dot(weights.word, given)
    if weights.scale is not None:
        total = ops.mul(total, weights.scale)
    if weights.shift is not None:
        total = ops.add(total, ops.mul(_added(ops, given), weights.shift))
    return total


def by_halves(turned: Tensor, ops: Ops, row: Index, step: Index) -> list[Value]:
    """What the eight numbers of a word are multiplied with, where units read halves of words."""
    planes = IN_WORD // 2
    return [
        turned.load(ops, (row, constant(at % planes), step * 2 + at // planes))
        for at in range(IN_WORD)
    ]


def _parts(
    ops: Ops, left: Sequence[Value], right: Sequence[Value], quick: bool
) -> tuple[list[Value], float]:
    """What the sum is made of, and what that is to be multiplied with in the end; more than one
    where the first has nothing of the right in it."""
    for name in ("mul", "add", "sub"):
        found = next(_common(ops, right, name), None) if len(right) > 1 else None
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
    known = [field for field in places if field is not None and field.amount is None]
    signed = {field.signed for field in known}
    if len(known) == len(right) > 1 and len(signed) == 1:
        if signed == {False}:
            words = [(Value(field.word, torch.int32), field.low) for field in known]
            return _products_of_nibbles(ops, left, words)
        flip = ops.constant(HIGHEST_BITS, torch.int32)
        words = [
            (ops.call("bitwise_xor", Value(field.word, torch.int32), flip), field.low)
            for field in known
        ]  # fmt: skip
        parts, factor = _products_of_nibbles(ops, left, words)
        less = ops.constant(HALF_OF_NIBBLES / factor, torch.float32)
        return [ops.sub(parts[0], ops.mul(_added(ops, left), less)), *parts[1:]], factor
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


@dataclass(frozen=True, slots=True)
class _Field:
    """An integer that is `count` bits of a word, from bit `low` on, times 2**at; signed: the
    highest of them is a sign. amount: the position of a distance by which the word was shifted to
    the right before, which is not a number that is known."""

    word: int
    low: int
    count: int
    at: int
    signed: bool
    amount: int | None = None

    def within(self, bits: int, signed: bool) -> _Field | None:
        """The same in an integer of so many bits; None where that has nothing of it, or more."""
        if self.at >= bits:
            return None
        if self.at + self.count >= bits:
            return replace(self, count=bits - self.at, signed=signed)
        return self if signed or not self.signed else None

    def shifted(self, distance: int, bits: int, signed: bool) -> _Field | None:
        """The same after a shift to the left, or a negative one to the right."""
        if not -bits < distance < bits:
            return None
        at = self.at + distance
        if at >= 0:
            return replace(self, at=at).within(bits, signed)
        count = self.count + at
        return replace(self, low=self.low - at, count=count, at=0) if count > 0 else None

    def masked(self, mask: int) -> _Field | None:
        begin = (mask & -mask).bit_length() - 1
        end = mask.bit_length()
        if mask <= 0 or mask != (1 << end) - (1 << begin):
            return None
        first, last = max(self.at, begin), min(self.at + self.count, end)
        if first >= last or self.signed and end > self.at + self.count:
            return None
        low = self.low + first - self.at
        return replace(self, low=low, count=last - first, at=first, signed=False)


def _nibble_of(ops: Ops, value: Value) -> _Field | None:
    """The four bits of a word that are this number; None where it is not so made."""
    op = ops.recorded[value.position]
    if op.name != "to_dtype" or op.dtype is not torch.float32:
        return None
    position = op.args[0]
    while (low := ops.recorded[position]).name == "to_dtype" and low.dtype in HALVES:
        position = low.args[0]  # which have each such number
    field = _field_of(ops, position)
    if field is None or (field.count, field.at) != (BITS_OF_NIBBLE, 0):
        return None
    if field.amount is not None:
        return None if field.low or field.signed else field
    return None if field.low % BITS_OF_NIBBLE else field


def _field_of(ops: Ops, position: int) -> _Field | None:
    """The bits of an int32 that an integer is made of."""
    op = ops.recorded[position]
    if op.dtype not in INTEGERS:
        return None
    found = _field_behind(ops, op)
    if found is None and op.dtype is torch.int32:
        return _Field(position, 0, INTEGERS[torch.int32], 0, True)
    return found


def _field_behind(ops: Ops, op: Op) -> _Field | None:
    """The same of what an operation is made of."""
    bits, signed = INTEGERS[op.dtype], op.dtype.is_signed
    if op.name == "to_dtype":
        field = _field_of(ops, op.args[0])
        return None if field is None else field.within(bits, signed)
    if op.name in ("shift_right", "shift_left"):
        field, distance = _field_of(ops, op.args[0]), _constant(ops, op.args[1])
        if field is None:
            return None
        if distance is not None:
            right = op.name == "shift_right"
            if field.amount is not None or not 0 <= distance < bits:
                return None
            return field.shifted(-distance if right else distance, bits, signed)
        whole = replace(field, word=0) == _Field(0, 0, INTEGERS[torch.int32], 0, True)
        known = op.name == "shift_right" and _is_place(ops, op.args[1])
        return replace(field, amount=op.args[1]) if whole and known else None
    if op.name == "bitwise_and":
        for one, other in (op.args, op.args[::-1]):
            mask = _constant(ops, other)
            field = None if mask is None else _field_of(ops, one)
            if mask is not None and field is not None:
                return field.masked(mask)
    return None


def _is_place(ops: Ops, position: int) -> bool:
    """Whether a distance follows from the row, or lies in memory at a place that is known."""
    op = ops.recorded[position]
    if op.name == "to_dtype":
        return _is_place(ops, op.args[0])
    return op.name == "index_expr" or op.name == "load" and not op.args


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
) -> Iterator[tuple[Value, list[Value]]]:
    """The second operand that values, all results of this operation, have in common, or but
    for a difference the first one; and what else they are made of."""
    made = [ops.recorded[value.position] for value in values]
    if any(op.name != name or op.dtype is not torch.float32 for op in made):
        yield from _common_integer(ops, values, name)
        return
    args = [op.args for op in made]
    yield from _shared(args, name, lambda at: Value(at, torch.float32))


def _common_integer(
    ops: Ops, values: Sequence[Value], name: str
) -> Iterator[tuple[Value, list[Value]]]:
    """The same of values that were integers when this was done to them, so small that it comes to
    the same in float32: the unpacked numbers of a word less a zero point, say."""
    made = []
    for value in values:
        found = _integer_of(ops, value)
        if found is None or ops.recorded[found].name != name or name == "mul":
            return
        made.append(ops.recorded[found])
    for op in made:
        ranges = [range_of(ops, arg) for arg in op.args]
        if not all(_is_within(each, MOST_EXACT) for each in ranges):
            return
        if _range_of_sum(ops, op) is None:
            return
    given = {arg: ops.recorded[arg].dtype for op in made for arg in op.args}
    yield from _shared(
        [op.args for op in made], name,
        lambda at: ops.to_dtype(Value(at, given[at]), torch.float32))


def _shared(
    made: Sequence[tuple[int, ...]], name: str, in_float: Callable[[int], Value]
) -> Iterator[tuple[Value, list[Value]]]:
    """made: the operands of each."""
    for side in (1,) if name == "sub" else (1, 0):
        shared = {args[side] for args in made}
        if len(shared) == 1:
            yield in_float(shared.pop()), [in_float(args[1 - side]) for args in made]


def _integer_of(ops: Ops, value: Value) -> int | None:
    """The position of the small integer that this float32 is, by way of half precision maybe."""
    position, least = value.position, MOST_EXACT
    op = ops.recorded[position]
    while op.name == "to_dtype" and op.imm is None and op.dtype in EXACT:
        least = min(least, EXACT[op.dtype])
        position = op.args[0]
        op = ops.recorded[position]
    is_integer = position != value.position and op.dtype in INTEGERS
    return position if is_integer and _is_within(range_of(ops, position), least) else None


def _is_within(bounds: tuple[int, int] | None, most: int) -> bool:
    return bounds is not None and -most <= bounds[0] and bounds[1] <= most


def range_of(ops: Ops, position: int) -> tuple[int, int] | None:
    """The least and the greatest value of an integer; None where it may be any of its dtype, or
    wrap around."""
    op = ops.recorded[position]
    if op.dtype not in INTEGERS:
        return None
    if op.name == "constant":
        return (op.imm, op.imm) if type(op.imm) is int else None
    bounds = torch.iinfo(op.dtype)
    found: tuple[int, int] | None = None
    if op.name == "bitwise_and":
        known = [number for arg in op.args if (number := _constant(ops, arg)) is not None]
        found = (0, known[0]) if known and known[0] >= 0 else None
    elif op.name == "shift_right" and op.dtype is torch.uint8:
        distance = _constant(ops, op.args[1])
        found = None if distance is None or not 0 <= distance < BITS else (0, 255 >> distance)
    elif op.name == "to_dtype":
        found = range_of(ops, op.args[0])
    elif op.name in ("add", "sub"):
        found = _range_of_sum(ops, op)
    if found is not None and bounds.min <= found[0] and found[1] <= bounds.max:
        return found
    return (bounds.min, bounds.max) if op.dtype.itemsize == 1 else None


def _range_of_sum(ops: Ops, op: Op) -> tuple[int, int] | None:
    """Of an integer that is a sum or a difference; None where it may wrap around."""
    one, other = (range_of(ops, arg) for arg in op.args)
    if one is None or other is None:
        return None
    low, high = other if op.name == "add" else (-other[1], -other[0])
    found, bounds = (one[0] + low, one[1] + high), torch.iinfo(op.dtype)
    return found if bounds.min <= found[0] and found[1] <= bounds.max else None
