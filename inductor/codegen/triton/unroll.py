"""Several rows side by side for each one of a launch that reads windows of pixels.

In: the ops of a stage, and the indices of a few rows. Out: the ops for all of these rows, operation
by operation, so that what a row has loaded is at hand for the next ones: neighbouring windows have
most of their pixels, and all of their weights, in common. (The printer writes equal texts once.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from inductor.codegen.triton.tiling import FEWEST_PLACES
from inductor.ir.body import IndirectVar, Op
from inductor.ir.index import IndexLike
from inductor.scheduler.assemble import drop_dead

COUNTS = (4, 7, 5, 6, 3, 2)  # of rows, the best first
COMPARISONS = frozenset(("lt", "ge", "eq"))


def rows_side_by_side(ops: Sequence[Op], column: str, row: str, length: int) -> int:
    """How many rows can be one, of so many in a line of pixels; 1: none. column, row: variables. A
    window without weights, which all pixels have in common, gains little."""
    weights = sum(
        op.index.depends_on(column) and not op.index.depends_on(row)
        for op in ops if op.name == "load" and op.index is not None
    )  # fmt: skip
    if weights < FEWEST_PLACES:
        return 1
    stored = {op.buffer for op in ops if op.name == "store"}
    for op in ops:
        if op.name in ("keep", "reduction") or isinstance(op.imm, IndirectVar):
            return 1
        if op.name == "load" and op.buffer in stored or op.name == "store" and op.imm != "set":
            return 1
    return next((count for count in COUNTS if length % count == 0), 1)


def unrolled(ops: Sequence[Op], rows: Sequence[Mapping[str, IndexLike]]) -> tuple[Op, ...]:
    """rows: for each of them, what stands for the variables of the indices. Tests whose answer is
    known for a row are not made: else one of two rows that load a pixel would ask for its border,
    and the pixel would be loaded twice."""
    found: list[Op] = []
    places: list[list[int]] = [[] for _ in rows]
    for op in ops:
        for values, at in zip(rows, places, strict=True):
            index = None if op.index is None else op.index.substitute(values)
            at.append(_add(found, replace(op, args=tuple(at[arg] for arg in op.args), index=index)))
    return drop_dead(found)


def _add(ops: list[Op], op: Op) -> int:
    """The position of an op, or of what gives the same."""
    known = [_known(ops[arg]) for arg in op.args]
    if op.name in COMPARISONS:
        answer = _answer(op.name, *(_range(ops[arg]) for arg in op.args))
        op = op if answer is None else Op("constant", (), op.dtype, imm=answer)
    elif op.name == "bitwise_and" and True in known:
        return op.args[1 - known.index(True)]
    elif op.name == "bitwise_and" and False in known:
        return op.args[known.index(False)]
    elif op.name == "load" and known == [True]:
        op = replace(op, args=())
    elif op.name == "load" and known == [False] and op.dtype.is_floating_point:
        op = Op("constant", (), op.dtype, imm=0.0)
    ops.append(op)
    return len(ops) - 1


def _known(op: Op) -> bool | None:
    """What a test gives, where that is known."""
    is_test = op.name == "constant" and op.dtype is torch.bool
    return bool(op.imm) if is_test else None


def _range(op: Op) -> tuple[int, int] | None:
    """The least and the greatest value of an index or a number."""
    if op.name == "constant" and type(op.imm) is int:
        return op.imm, op.imm
    if op.name == "index_expr" and op.index is not None:
        low, high = op.index.low, op.index.high
        return (low, high) if type(low) is int and type(high) is int else None
    return None


def _answer(
    name: str, one: tuple[int, int] | None, other: tuple[int, int] | None
) -> bool | None:
    """Of a comparison of two values, by their ranges."""
    if one is None or other is None:
        return None
    (low, high), (least, most) = one, other
    if name == "eq":
        if high < least or most < low:
            return False
        return True if low == high == least == most else None
    below = True if high < least else False if low >= most else None
    return below if name == "lt" or below is None else not below


def count_of_rows(ops: Sequence[Op]) -> int:
    """How many rows are one, by the stores."""
    stores = Counter(op.buffer for op in ops if op.name == "store")
    return max(stores.values(), default=1)
