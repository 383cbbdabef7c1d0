"""Tiles of rows and columns for kernels that copy between memory orders.

In: a kernel whose iterations all stand alone. Out: which loop its columns should be and which its
last row loop, so that both what is read along the one and what is written along the other touches
neighbours in memory.
"""

from __future__ import annotations

from collections.abc import Mapping

from inductor.ir.body import Op
from inductor.scheduler.schedule import Kernel

SHORTEST = 16  # a tile does not pay for shorter loops
MOST_COLUMNS = 1 << 20  # blocks of columns are counted in the second axis of the grid


def choose_tile(kernel: Kernel) -> tuple[int, int] | None:
    """Positions, among outer and plain loops, of the columns and of the last row loop.

    None where all accesses go along one loop anyway.
    """
    ranges = kernel.stages[0].ranges
    if kernel.locals or any(stage.ranges != ranges for stage in kernel.stages):
        return None
    names = [f"o{n}" for n in range(len(kernel.outer))] + [f"i{n}" for n in range(len(ranges))]
    extents = dict(zip(names, (*kernel.outer, *ranges), strict=True))
    stores: dict[str, int] = {}
    loads: dict[str, int] = {}
    for stage in kernel.stages:
        for op in stage.ops:
            along = _along(op, extents)
            if along:
                votes = stores if op.name == "store" else loads
                votes[along] = votes.get(along, 0) + 1
    if not stores:
        return None
    column = max(stores, key=lambda name: stores[name])
    rest = {name: count for name, count in loads.items() if name != column}
    if not rest or extents[column] > MOST_COLUMNS:
        return None
    row = max(rest, key=lambda name: rest[name])
    if min(extents[column], extents[row]) < SHORTEST:
        return None
    return names.index(column), names.index(row)


def _along(op: Op, extents: Mapping[str, int]) -> str:
    """The loop along which an access touches neighbours; empty if none or not sure."""
    if op.index is None or op.name not in ("load", "store"):
        return ""
    for name, extent in extents.items():
        if extent > 1 and op.index.stride_of(name) == 1:
            return name
    return ""
