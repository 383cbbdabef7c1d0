"""Tiles of rows and columns for kernels that copy between memory orders, or whose rows have values
in common, as channels have their scales.

In: a kernel whose iterations all stand alone. Out: which loop its columns should be and which its
last row loop, so that both what is read along the one and what is written along the other touches
neighbours in memory, or what is the same for many rows is read and computed once for each tile.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from inductor.codegen.triton.numbers import EVEN, reaches
from inductor.ir.body import Op
from inductor.ir.extent import Extent, hint_of, up_to_multiple
from inductor.ir.gpus import GpuProperties
from inductor.ir.index import Index, variable
from inductor.scheduler.schedule import Kernel

LONG_ROW = 2048  # columns that fill a program by themselves; chosen, not measured
SHORTEST = 8  # a tile does not pay for shorter loops
MOST_COLUMNS = 1 << 20  # blocks of columns are counted in the second axis of the grid
FEWEST_LOOPS = 4  # rows of which each is a program's, for each multiprocessor
SLOW = frozenset({"exp", "tanh", "erf", "sigmoid", "log", "truediv", "rsqrt", "sqrt"})
EVEN_HALVES = 8  # elements of half precision that are moved at a time
FEWEST_SHARED, MOST_SHARED = 16, 1024  # columns of rows with common values
FEWEST_ELEMENTS = 1 << 20  # of all such rows, on the device measured
FEWEST_PLACES = 9  # of a window
DEPTHS = (4, 7, 5, 6, 8, 3, 2)  # lines of a patch, the best first
# Channels of a tile; lanes for each of them. A thread loads 8 of half precision, so that a warp
# touches 4 lines of the cache in a tile of 64 and 16 in one of 16: 96 images of 144 channels took
# 157 us so, with 56 x 56 pixels, and as many pixels of 32 channels 57 (H200, 3x3).
WINDOW_COLUMNS, MOST_PADDED = (64, 32, 16), 1.07


def choose_tile(kernel: Kernel, gpu: GpuProperties) -> tuple[int, int] | None:
    """Positions, among outer and plain loops, of the columns and of the last row loop.

    None where all accesses go along one loop anyway, unless some are the same for long rows, or for
    many rows.
    """
    ranges = kernel.stages[0].ranges
    if kernel.locals or any(stage.ranges != ranges for stage in kernel.stages):
        return None
    extents = _loops_of(kernel)
    names = list(extents)
    ops = [op for stage in kernel.stages for op in stage.ops]
    stores = Counter(filter(None, (_along(op, extents) for op in ops if op.name == "store")))
    if not stores:
        return None
    column = max(stores, key=lambda name: stores[name])
    # what is the same for a whole row of columns is little
    loads = [op for op in ops if op.name == "load" and _moves(op, column)]
    rest = Counter(filter(None, (_along(op, extents) for op in loads)))
    del rest[column]
    if reaches(extents[column], MOST_COLUMNS):
        return None
    if not rest:
        return _long_rows(ops, column, extents) or _shared_columns(ops, column, extents, gpu)
    row = max(rest, key=lambda name: rest[name])
    if min(hint_of(extents[column]), hint_of(extents[row])) < SHORTEST:
        return None
    return names.index(column), names.index(row)


def _long_rows(ops: list[Op], column: str, extents: Mapping[str, int]) -> tuple[int, int] | None:
    """Where rows are long and something is loaded for each row: what is computed of it should not
    be computed for each element. Only rows that begin where many bytes can be moved at a time."""
    length = extents[column]
    if type(length) is Extent or length % EVEN != 0:
        return None
    return _rows_with_values(ops, column, extents)


def choose_window(kernel: Kernel) -> tuple[int, int, int, bool] | None:
    """Of a kernel that reads windows of pixels channel by channel, as `choose_tile`: the columns
    are the channels, whose weights are read once for each tile. The third number is how many lines
    of pixels a tile has side by side: neighbouring windows have most of their pixels in common. The
    last: whether the channels of all these lines are columns, where they fill wider tiles.
    """
    if len(kernel.stages) != 1 or kernel.locals:
        return None
    extents = _loops_of(kernel)
    names, sizes = list(extents), list(extents.values())
    if len(sizes) < 2 or type(sizes[-1]) is not int:
        return None
    stores = [op for op in kernel.stages[0].ops if op.name == "store"]
    if sizes[-1] < FEWEST_SHARED or any(_along(op, extents) != names[-1] for op in stores):
        return None
    if not reads_windows(kernel.stages[0].ops, names[-1]):
        return None
    lines = sizes[-3] if len(sizes) > 2 else 1
    depths = [n for n in DEPTHS if type(lines) is int and lines % n == 0]
    if type(sizes[-1]) is int and sizes[-1] % EVEN_HALVES == 0:
        if window_columns(sizes[-1]) == WINDOW_COLUMNS[-1]:
            for depth in depths:
                if window_columns(sizes[-1] * depth) == WINDOW_COLUMNS[0]:
                    return len(names) - 1, len(names) - 2, depth, True
    return len(names) - 1, len(names) - 2, depths[0] if depths else 1, False


def window_columns(columns: int) -> int:
    """How many columns a tile has of so many: as many as leave few lanes idle.

    >>> window_columns(64), window_columns(240), window_columns(96), window_columns(144)
    (64, 64, 32, 16)
    """
    padded = {width: up_to_multiple(columns, width) * width for width in WINDOW_COLUMNS}
    least = min(padded.values())
    return next(each for each, lanes in padded.items() if lanes <= MOST_PADDED * least)


def reads_windows(
    ops: Sequence[Op], column: str, fewest: int = FEWEST_PLACES, in_stretches: bool = False
) -> bool:
    """Whether a buffer is read along the loop `column` at several places for each iteration.
    in_stretches: the loop may go through several stretches of memory."""
    step_of = Index.step_of if in_stretches else Index.stride_of
    found = {
        (op.buffer, op.index) for op in ops
        if op.name == "load" and op.index is not None and step_of(op.index, column) == 1
        and len(op.index.variables()) > 1
    }  # fmt: skip
    places = Counter(buffer for buffer, _ in found)
    return any(count >= fewest for count in places.values())


def choose_unaligned_rows(kernel: Kernel, gpu: GpuProperties) -> tuple[int, int] | None:
    """The same for rows that begin anywhere, each of them a loop: see `aligned`."""
    if len(kernel.stages) != 1 or kernel.locals:
        return None
    extents = _loops_of(kernel)
    sizes = list(extents.values())
    if len(sizes) < 2 or any(type(size) is Extent for size in sizes):
        return None
    if sizes[-1] % EVEN == 0:
        return None
    if math.prod(sizes[:-1]) < FEWEST_LOOPS * gpu.multiprocessors:
        return None
    return _rows_with_values(list(kernel.stages[0].ops), list(extents)[-1], extents)


def _loops_of(kernel: Kernel) -> dict[str, int]:
    """The outer loops and those of the first stage, by the names of their variables."""
    ranges = kernel.stages[0].ranges
    names = [f"o{n}" for n in range(len(kernel.outer))] + [f"i{n}" for n in range(len(ranges))]
    return dict(zip(names, (*kernel.outer, *ranges), strict=True))


def _rows_with_values(
    ops: list[Op], column: str, extents: Mapping[str, int]
) -> tuple[int, int] | None:
    names = list(extents)
    at = names.index(column)
    if at != len(names) - 1 or at == 0 or extents[column] < LONG_ROW:
        return None
    loads = [op for op in ops if op.name == "load" and op.index is not None]
    outer = set(names[:-1])
    for_rows = [
        op for op in loads
        if not _moves(op, column) and any(v.name in outer for v in op.index.variables())  # type: ignore[union-attr]
    ]
    return (at, at - 1) if for_rows else None


def _shared_columns(
    ops: list[Op], column: str, extents: Mapping[str, int], gpu: GpuProperties
) -> tuple[int, int] | None:
    """Where neighbouring rows have values of columns in common, and there is so much arithmetic
    that reading these for each element is too much. (Tiles as wide as a power of two leave up to
    half of their lanes idle; what waits for memory alone is no faster.)"""
    names, sizes = list(extents), list(extents.values())
    at = names.index(column)
    if at != len(names) - 1 or at == 0 or any(type(size) is not int for size in sizes):
        return None
    length = extents[column]
    if not FEWEST_SHARED <= length <= MOST_SHARED or length % EVEN_HALVES != 0:
        return None
    if math.prod(sizes) < gpu.scaled(FEWEST_ELEMENTS):
        return None
    rows = names[at - 1]
    if SLOW.isdisjoint(op.name for op in ops):
        return None
    shared = any(op.name == "load" and _moves(op, column) and not _moves(op, rows) for op in ops)
    return (at, at - 1) if shared else None


def rows_alike(index: Index, most: int) -> bool:
    """Whether an index depends on the row `x`, but is the same for all rows of a tile of `most`
    (or of a power of two that divides it).

    >>> x = variable("x", 640)
    >>> rows_alike(floordiv(x, 64) * 4096, 32), rows_alike(floordiv(x, 96), 64)
    (True, False)
    """
    found = [var for var in index.variables() if var.name == "x"]
    if not found or type(found[0].size) is not int:
        return False
    tiles = up_to_multiple(found[0].size, most)
    moved = index.substitute({"x": variable("tile", tiles) * most + variable("row", most)})
    return not moved.depends_on("row")


def _moves(op: Op, loop: str) -> bool:
    return op.index is not None and any(var.name == loop for var in op.index.variables())


def _along(op: Op, extents: Mapping[str, int]) -> str:
    """The loop along which an access touches neighbours; empty if none or not sure."""
    if op.index is None or op.name not in ("load", "store"):
        return ""
    for name, extent in extents.items():
        if extent != 1 and op.index.stride_of(name) == 1:
            return name
    return ""
