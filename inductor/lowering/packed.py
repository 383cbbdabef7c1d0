"""Weights of which several values lie in one word: how a sum loads and adds them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from inductor.ir.body import Ops, Value
from inductor.ir.index import IndexLike, as_index, floordiv, mod
from inductor.lowering.tensor import Tensor

BITS = 8


class InWords:
    """The `ops` of a body, which take the bytes of a buffer out of words of four.

    words: its memory as integers of 32 bits. A byte is read at a place in its word that is known.
    """

    def __init__(self, ops: Ops, buffer: str, words: Tensor) -> None:
        self.ops = ops
        self.buffer = buffer
        self.words = words.realize().buffer

    def __getattr__(self, name: str) -> Any:
        return getattr(self.ops, name)

    def load(self, buffer: str, index: IndexLike, dtype: torch.dtype) -> Value:
        if buffer != self.buffer:
            return self.ops.load(buffer, index, dtype)
        ops, index = self.ops, as_index(index)
        place, count = mod(index, 4), torch.int32.itemsize // dtype.itemsize
        assert place.is_constant and count == 4
        word = ops.load(self.words, floordiv(index, count), torch.int32)
        distance = ops.constant(BITS * place.offset, torch.int32)
        return ops.to_dtype(ops.shift_right(word, distance) if place.offset else word, dtype)


def sum_of_products(ops: Ops, left: Sequence[Value], right: Sequence[Value]) -> Value:
    """left[0] * right[0] + left[1] * right[1] + ..; what all values on the right are multiplied
    with, or have subtracted, is so once."""
    factors = _common(ops, right, "mul") if len(right) > 1 else None
    if factors is None:
        return _sum(ops, left, right)
    factor, rest = factors
    shifted = _common(ops, rest, "sub")
    if shifted is None:
        return ops.mul(_sum(ops, left, rest), factor)
    zero, rest = shifted
    away = ops.mul(functools.reduce(ops.add, left), zero)
    return ops.mul(ops.sub(_sum(ops, left, rest), away), factor)


def _sum(ops: Ops, left: Sequence[Value], right: Sequence[Value]) -> Value:
    return functools.reduce(ops.add, map(ops.mul, left, right))


def _common(
    ops: Ops, values: Sequence[Value], name: str
) -> tuple[Value, list[Value]] | None:
    """The second operand that values, all results of this operation, have in common, or of a
    product the first one; and what else they are made of."""
    made = [ops.recorded[value.position] for value in values]
    if any(op.name != name or op.dtype is not torch.float32 for op in made):
        return None
    for side in (1, 0) if name == "mul" else (1,):
        shared = {op.args[side] for op in made}
        if len(shared) == 1:
            rest = [Value(op.args[1 - side], torch.float32) for op in made]
            return Value(shared.pop(), torch.float32), rest
    return None
