"""Long rows that do not begin, or end, where many bytes can be moved at a time.

In: a launch that loops over its columns, and a stage of it. Out: where the stage's rows begin, if
their lengths do not divide into stretches of 16 bytes (50257 or 30522 words of a vocabulary, say).
Such a row is then read and written in three parts: the elements before its first whole stretch and
those behind its last one, which are less than two stretches together, and in a loop all between,
where each access is one of 16 bytes. Without this each element is moved alone, in half precision at
half of the speed.

Not all accesses need lie alike. Of those that do not (a weight for each word, the row of a matrix
that is padded when this one is not), the stores go in whole stretches, and loads one by one: what
they read again for a neighbour is still in a near cache.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from inductor.codegen.triton.launch import Launch, Stage
from inductor.ir.body import Op
from inductor.ir.extent import Extent
from inductor.ir.index import Index, variable

STRETCH, MOST_ELEMENTS = 16, 8  # bytes; of a stretch
# Columns of a row that is read in whole stretches. Measured with rows of 30522 and 50257 words (a
# loss's backward); this bound is a guess that leaves shorter rows as they are.
FEWEST_IN_PARTS = 2048
ROW_VARIABLES = {"x"}
NOT_IN_PARTS = frozenset({"indirect", "keep"})


@dataclass(frozen=True, slots=True)
class Unaligned:
    """Rows of a stage: `start` is the position of a row's first element, in terms of x; stretches
    are counted in `step` elements; columns: of a row."""

    start: Index
    step: int
    columns: int

    def beyond(self, index: Index) -> Index | None:
        """How far the row of another access lies from this one's, a multiple of `step`; None where
        it does not lie alike."""
        if not _goes_along_columns(index, self.columns):
            return None
        beyond = _row_of(index) - self.start
        return beyond if _divides(self.step, beyond) else None


def unaligned_rows(launch: Launch, stage: Stage) -> Unaligned | None:
    """None where rows are whole stretches anyway, or not all stores of columns lie alike."""
    if launch.persistent or launch.tiled or launch.splits != 1 or stage.serial != 1:
        return None
    if type(stage.columns) is Extent or stage.columns < FEWEST_IN_PARTS:
        return None
    if any(op.name in NOT_IN_PARTS for op in stage.ops):
        return None
    moving = [
        op for op in stage.ops
        if op.name in ("load", "store") and op.index is not None and op.index.depends_on("r")
    ]  # fmt: skip
    stores = [op for op in moving if op.name == "store"]
    if any(op.imm != "set" for op in stores):
        return None
    found = [_rows_like(op, stage, moving) for op in stores or moving]
    if stores and None in found or not any(found):
        return None
    best, alike = max(filter(None, found), key=lambda each: len(each[1]))
    if not all(op in alike for op in stores):
        return None
    begin = all(_divides(_elements(op), _row_of(_index_of(op))) for op in alike)
    return None if begin and stage.columns % best.step == 0 else best


def _rows_like(op: Op, stage: Stage, moving: list[Op]) -> tuple[Unaligned, list[Op]] | None:
    """The rows of an access, in stretches of which most others have some, and these accesses."""
    index, columns = _index_of(op), stage.columns
    if not _goes_along_columns(index, columns):
        return None
    steps = {_elements(each) for each in moving if _elements(each) >= _elements(op)}
    found = []
    for step in sorted(steps, reverse=True):
        rows = Unaligned(_row_of(index), step, columns)
        alike = [each for each in moving if rows.beyond(_index_of(each)) is not None]
        found.append((rows, alike))
    return max(found, key=lambda each: len(each[1]))


def has_unaligned_rows(launch: Launch) -> bool:
    """Whether some stage of the launch is printed in parts."""
    return any(unaligned_rows(launch, stage) is not None for stage in launch.stages)


def _index_of(op: Op) -> Index:
    assert op.index is not None
    return op.index


def _row_of(index: Index) -> Index:
    return index.substitute({"r": 0})


def _elements(op: Op) -> int:
    """Elements of a stretch."""
    return max(1, min(MOST_ELEMENTS, STRETCH // op.dtype.itemsize))


def _goes_along_columns(index: Index, columns: int) -> bool:
    row = _row_of(index)
    if not _names(row) <= ROW_VARIABLES or row.low < 0:
        return False
    return index - row == variable("r", columns)


def _names(index: Index) -> set[str]:
    return {var.name for var in index.variables()}


def _divides(step: int, index: Index) -> bool:
    """Whether the index is surely a multiple of `step`."""
    numbers: Iterable[int] = (index.offset, *(factor for _, factor in index.terms))
    return all(type(number) is not Extent and number % step == 0 for number in numbers)
