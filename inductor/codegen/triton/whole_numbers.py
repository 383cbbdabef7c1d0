"""Conversions of bounded whole numbers to integers, by an addition.

In: the ops of a stage. Out: the same, where float32 values that were rounded to whole numbers, lie
within constant bounds and only become integers are made so by one addition: behind 1.5 * 2 ** 23 a
float32 has no places left for fractions, and its last bits are the integer. A GPU has few units for
roundings and conversions: an eighth of those that add. So are activations quantized:
`(x / scale).round().clamp(-128, 127).to(torch.int8)`. NaN becomes 0, as by a conversion.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from inductor.ir.body import Op
from inductor.scheduler.assemble import drop_dead

MOST = 1 << 22  # beyond it 1.5 * 2 ** 23 and the number have another exponent
INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
ROUNDINGS = ("round", "floor", "ceil", "trunc")
KEEPING = ("add", "sub", "mul", "neg", "abs", "maximum", "minimum")


def add_to_round(ops: Sequence[Op], name: str) -> tuple[Op, ...]:
    """See the top of the file. name: of an operation that gives an int32 of a value, the least and
    the greatest number."""
    users: dict[int, list[Op]] = {}
    for op in ops:
        for arg in op.args:
            users.setdefault(arg, []).append(op)
    found = list(ops)
    for position in range(len(ops)):
        readers = users.get(position, ())
        if readers and all(op.name == "to_dtype" and op.dtype in INTEGERS for op in readers):
            found[position] = _rounded(ops, position, name) or ops[position]
    return tuple(ops) if found == list(ops) else drop_dead(found)


def _rounded(ops: Sequence[Op], position: int, name: str) -> Op | None:
    outer = ops[position]
    if outer.name not in ("minimum", "maximum") or outer.dtype is not torch.float32:
        return None
    other = "maximum" if outer.name == "minimum" else "minimum"
    for at, bound in (outer.args, outer.args[::-1]):
        inner = ops[at]
        if inner.name != other or not _is_bound(ops[bound]):
            continue
        for value, second in (inner.args, inner.args[::-1]):
            low, high = (second, bound) if other == "maximum" else (bound, second)
            if not _is_bound(ops[second]) or ops[low].imm > ops[high].imm:  # type: ignore[operator]
                continue
            if ops[value].name == "round":
                value = ops[value].args[0]
            elif not _is_whole(ops, value):
                continue
            return replace(outer, name=name, args=(value, low, high), dtype=torch.int32)
    return None


def _is_bound(op: Op) -> bool:
    number = op.imm
    return op.name == "constant" and isinstance(number, int | float) and (
        -MOST <= number <= MOST and number == int(number))


def _is_whole(ops: Sequence[Op], position: int) -> bool:
    """Whether it is a whole number, or infinite, or NaN."""
    op = ops[position]
    if op.name == "to_dtype":
        before = ops[op.args[0]].dtype
        return not before.is_floating_point or (
            op.dtype is torch.float32 and _is_whole(ops, op.args[0]))
    if op.name == "constant":
        return _is_bound(op)
    if op.dtype is not torch.float32:
        return False
    return op.name in ROUNDINGS or op.name in KEEPING and all(_is_whole(ops, a) for a in op.args)
