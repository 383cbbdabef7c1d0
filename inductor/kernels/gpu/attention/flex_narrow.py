"""Integers of 32 bits where 64 are not needed.

In: operations of a body. Out: the same values, where integers whose range is known to fit are
int32, and indices that are known to be inside are not checked. Positions of queries and keys are
int64 to the program; tiles of those would take twice the registers and time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from inductor.ir.body import Immediate, IndirectVar, Op

Range = tuple[int, int]
INT32: Range = (-(1 << 31), (1 << 31) - 1)
NARROW = frozenset((
    "index_expr", "constant", "add", "sub", "mul", "neg", "abs", "maximum", "minimum", "where",
    "remainder", "floordiv",
))  # fmt: skip
COMPARING = frozenset(("eq", "ne", "lt", "le", "gt", "ge"))


def narrowed(ops: tuple[Op, ...]) -> tuple[Op, ...]:
    """See the top of the file."""
    ranges = ranges_of(ops)
    small = [_is_small(op, known) for op, known in zip(ops, ranges, strict=True)]
    made: list[Op] = []
    places: list[int] = []
    wide: dict[int, int] = {}  # operations of 64 bits that stand for narrow ones

    def widened(arg: int) -> int:
        if not small[arg]:
            return places[arg]
        if arg not in wide:
            made.append(Op("to_dtype", (places[arg],), torch.int64))
            wide[arg] = len(made) - 1
        return wide[arg]

    for position, op in enumerate(ops):
        numbers = [arg for arg in op.args if ops[arg].dtype is torch.int64]
        keeps = small[position] or op.name in ("to_dtype", "indirect")
        if op.name in COMPARING:
            keeps = bool(numbers)
        if keeps and all(small[arg] for arg in numbers):
            args = tuple(places[arg] for arg in op.args)
        else:
            args = tuple(widened(arg) for arg in op.args)
            if small[position]:
                small[position] = False
        dtype = torch.int32 if small[position] else op.dtype
        made.append(replace(op, args=args, dtype=dtype, imm=_without_check(op, ranges)))
        places.append(len(made) - 1)
    return tuple(made)


def _is_small(op: Op, known: Range | None) -> bool:
    return (
        op.dtype is torch.int64 and op.name in NARROW and known is not None
        and INT32[0] <= known[0] and known[1] <= INT32[1]
    )  # fmt: skip


def _without_check(op: Op, ranges: list[Range | None]) -> Immediate:
    """The immediate of an operation; an index that is inside needs no check."""
    if not isinstance(op.imm, IndirectVar):
        return op.imm
    known = ranges[op.args[0]]
    if known is None or known[0] < 0 or known[1] >= op.imm.var.size:
        return op.imm
    return replace(op.imm, wrap=False, check=False)


def ranges_of(ops: tuple[Op, ...]) -> list[Range | None]:
    """The least and the greatest value of each integer; None where that is not known."""
    found: list[Range | None] = []
    for op in ops:
        known = None
        given = [found[arg] for arg in op.args]
        if op.name == "index_expr" and op.index is not None:
            known = op.index.low, op.index.high
        elif op.name == "constant" and type(op.imm) is int:
            known = op.imm, op.imm
        elif op.name == "to_dtype" and ops[op.args[0]].dtype in (torch.int32, torch.int64):
            known = given[0]
        elif op.name == "where" and given[1] and given[2]:
            known = min(given[1][0], given[2][0]), max(given[1][1], given[2][1])
        elif op.name in RULES and all(given):
            known = RULES[op.name](*given)
        integer = op.dtype in (torch.int32, torch.int64)
        if not integer or known and op.dtype is torch.int32 and not _fits(known):
            known = None
        found.append(known)
    return found


def _fits(known: Range) -> bool:
    return INT32[0] <= known[0] and known[1] <= INT32[1]


def _product(a: Range, b: Range) -> Range:
    corners = [x * y for x in a for y in b]
    return min(corners), max(corners)


def _remainder(a: Range, b: Range) -> Range | None:
    return (0, b[1] - 1) if b[0] > 0 else None


def _quotient(a: Range, b: Range) -> Range | None:
    corners = [x // y for x in a for y in b] if b[0] > 0 else []
    return (min(corners), max(corners)) if corners else None


RULES: dict[str, Callable[..., Range | None]] = {
    "add": lambda a, b: (a[0] + b[0], a[1] + b[1]),
    "sub": lambda a, b: (a[0] - b[1], a[1] - b[0]),
    "mul": _product,
    "neg": lambda a: (-a[1], -a[0]),
    "abs": lambda a: (max(0, a[0], -a[1]), max(abs(a[0]), abs(a[1]))),
    "maximum": lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
    "minimum": lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
    "remainder": _remainder,
    "floordiv": _quotient,
}
