"""Several rows side by side for each one of a launch that reads windows of pixels.

In: the ops of a stage, and the indices of a few rows. Out: the ops for all of these rows, operation
by operation, so that what a row has loaded is at hand for the next ones: neighbouring windows have
most of their pixels, and all of their weights, in common. (The printer writes equal texts once.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from inductor.codegen.triton.tiling import FEWEST_PLACES
from inductor.ir.body import IndirectVar, Op
from inductor.ir.index import IndexLike

COUNTS = (4, 7, 5, 6, 3, 2)  # of rows, the best first
MANY_LOADS, FEW = 60, 4  # of windows and weights, of which a thread holds no more than so many rows


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
    loads = sum(op.name == "load" for op in ops)
    counts = [count for count in COUNTS if loads < MANY_LOADS or count <= FEW]
    return next((count for count in counts if length % count == 0), 1)


def unrolled(ops: Sequence[Op], rows: Sequence[Mapping[str, IndexLike]]) -> tuple[Op, ...]:
    """rows: for each of them, what stands for the variables of the indices."""
    found: list[Op] = []
    places: list[list[int]] = [[] for _ in rows]
    for op in ops:
        for values, at in zip(rows, places, strict=True):
            index = None if op.index is None else op.index.substitute(values)
            at.append(len(found))
            found.append(replace(op, args=tuple(at[arg] for arg in op.args), index=index))
    return tuple(found)


def count_of_rows(ops: Sequence[Op]) -> int:
    """How many rows are one, by the stores."""
    stores = Counter(op.buffer for op in ops if op.name == "store")
    return max(stores.values(), default=1)
