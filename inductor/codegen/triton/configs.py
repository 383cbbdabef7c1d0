"""Block sizes and warps of a launch: the likely best first, then what autotuning may try.

In: a `Launch`. Out: `Choices`: a few `Config`s; where sizes are known at a call, for each class of
sizes, of which Triton compiles those that occur. Configs were measured on an H200 (`MEASURED` in
`inductor/ir/gpus.py`); numbers that fill a device are scaled for the device of the launch, and a
config with more warps than a program may have there has fewer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch

from inductor.codegen.triton.aligned import has_unaligned_rows
from inductor.codegen.triton.launch import Launch
from inductor.codegen.triton.matrix_sums import find_matrix_sums, shape_of
from inductor.codegen.triton.online import tiles_of
from inductor.codegen.triton.split import reads_along_rows, shares_columns
from inductor.codegen.triton.tiling import (
    LONG_ROW,
    reads_windows,
    rows_alike,
    window_columns,
)
from inductor.codegen.triton.unroll import count_of_rows
from inductor.ir.body import OF_ROWS
from inductor.ir.extent import Extent, hint_of, power_of_two
from inductor.ir.gpus import GpuProperties

Cut = TypeVar("Cut", bound=Any)  # a record of numbers by which a kernel is cut
LIKELY_ROWS = 1 << 12  # at least, where the number is known at a call only
LIKELY_COLUMNS = 1 << 9  # the same of columns; both are chosen, not measured
TILE = 4096  # elements of a persistent tile of several rows
# Columns of which two rows go together, where that is no strain on registers: a kernel of a hundred
# operations took 202 us on an H200 so, 168 with one row. Where it turns is chosen.
PAIRED, FEW_OPS = 1024, 64
# Rows, columns, warps of kernels that cross rows. A guess: equal sides, so that reads along rows
# and along columns both come in whole lines of the cache.
TILES = ((64, 64, 8), (32, 32, 4), (32, 64, 4), (64, 32, 4), (128, 32, 8))
WINDOW_TILES = ((1024, 4), (2048, 8), (2048, 4))  # elements, of which each is several; warps
# The same where each is one element: of many (MANY_IN_TILES), and of few, where smaller tiles make
# more programs; chosen, not measured.
LONE_WINDOW_TILES = ((2048, 4), (1024, 4))
SMALL_WINDOW_TILES = ((512, 4), (1024, 4))
SHARED_TILES = ((4096, 4), (2048, 4), (8192, 8), (4096, 8))  # elements, warps
MOST_ROWS_OF_TILE = 256  # chosen, not measured: bounds what a program reads of narrow rows
LONG_TILES = ((1, 1024, 4), (1, 2048, 8), (1, 2048, 4), (2, 1024, 8))  # where rows are long
SMALL, MEDIUM = 1 << 16, 1 << 19  # elements of a launch without columns
MANY_IN_TILES = 1 << 21  # elements; chosen for 132 multiprocessors, scaled for others
ROW_LENGTHS = (128, 512, 1024, 2048, 4096, 8192)  # tiles for rows whose length a call brings
ANY_NUMBER = 1 << 62
LOOP_BLOCKS = ((1, 2048, 8), (1, 1024, 4), (1, 4096, 16), (4, 512, 8))  # rows, columns, warps
LONG_LOOP_BLOCKS = ((1 << 15, (1, 8192, 16)), (1 << 13, (1, 4096, 16)))  # for so many columns
UNALIGNED_BLOCK = (1, 2048, 8)  # of rows that begin anywhere, each of which a program passes once
FEW_LOADS = 2  # of which a thread holds many elements without trouble
# Places of a window of a line, with a sum for each: with four of 16 elements a thread, a thread has
# too few registers (ptxas for sm_90 spilt 96 of them).
FEWEST_SUMS = 3
# Long rows of exponentials, of which a step takes several tiles: sums alone, and with a second pass
# that stores, for which the row should still be in the cache.
EXPONENTIALS, EXPONENTIALS_OF_MANY = (1, 1024, 8), (1, 1024, 4)  # rows
EXPONENTIALS_OF_LONGEST, EXPONENTIALS_STORED_LONGEST = (1, 2048, 8), (1, 8192, 32)
MANY_ROWS, LONGEST = 1024, 192 << 10  # bytes of a row of half precision
EXPONENTIALS_STORED, EXPONENTIALS_IN_HALF = (1, 4096, 32), (1, 4096, 16)
EXPONENTIALS_UNALIGNED = (1, 2048, 16)  # in half precision
FEW_WARPS = 2
# Rows of a scan across memory, elements of a thread, of a tile (chosen by counting instructions: of
# rows of 64, 8 for an element with one warp, 11 with two, 70 with sixteen).
LEAST_SCANNED, OF_A_SCAN, MOST_SCANNED = 8, 64, 1 << 14
OF_A_LONG = 8  # of a scan whose steps are long; chosen, not measured
# Elements of a thread of a sort, of a tile: of int64 rows of 1024, a compile takes 1.7 s with four
# for each thread, and 6.7 s with 16.
OF_A_SORT, SORTED = 4, 1 << 10
# Of sums over weights by the bytes of an element (of words, eight values or sixteen, of which a
# thread loads two long ones at a time, as it does of what all rows share); of rows of at most so
# many elements, and of longer ones. Where there are many rows, a warp alone takes one of bytes.
EVEN_WEIGHTS, LONG_WEIGHTS, MANY_WEIGHTS, LONE = 256, 8192, 1 << 15, (1, 256, 1)
WEIGHTS = {
    1: (((1, 1024, 2), (1, 2048, 2), (1, 512, 1), LONE), ((1, 1024, 4), LONE, (1, 2048, 4))),
    2: (((1, 4096, 8), (1, 2048, 8), (1, 2048, 4)), ((4, 1024, 4), (1, 1024, 4), LONE)),
    4: (((4, 512, 4), (2, 512, 4), (8, 512, 4)), ((8, 256, 2), (4, 256, 2))),
    8: (((8, 256, 4), (4, 256, 4), (2, 256, 4)), ((8, 256, 4), (4, 256, 4))),
}
# As EVEN_WEIGHTS, of words of eight bytes: a thread then loads as many neighbours of them as of
# what all rows share, and nothing goes through shared memory.
EVEN_WORDS = 128
EVEN_ROWS = 8  # fewer alike rows are not looked for
FEW_ROWS, ONE_STEP = 16, (1, 4096, 16)  # programs wait for memory, not for each other
# Elements of a tile of all rows, and its warps; chosen, not measured.
COLUMNS_OF_SHARED, WARPS_OF_SHARED = 4096, 8
# Of bytes that lie along rows, by how many vectors they are multiplied with: a thread loads sixteen
# neighbours at a time, and has a sum for each place of the tile. Chosen by counting instructions.
BYTES_ALONG_ROWS = {
    1: ((64, 64, 4), (64, 32, 4), (128, 64, 4), (32, 128, 4)),
    2: ((64, 32, 4), (32, 64, 4), (32, 32, 2)),
    4: ((64, 16, 4), (32, 32, 4), (64, 32, 8)),
}
# As LOOP_BLOCKS, where reads go along rows; a guess as TILES is.
LOOP_BLOCKS_ALONG_ROWS = ((32, 32, 4), (32, 64, 8), (64, 32, 8), (64, 64, 8), (16, 128, 8))


@dataclass(frozen=True, slots=True)
class Config:
    """A candidate for a launch. `columns` is the greatest block of a loop over columns."""

    rows: int
    columns: int
    warps: int


@dataclass(frozen=True, slots=True)
class SizeClass:
    """What is tried where the launch's measure is at most `most`, the default first."""

    most: int
    configs: tuple[Config, ...]


@dataclass(frozen=True, slots=True)
class Choices:
    """The classes in order. measure: what they go by; a call with more than the last has none."""

    measure: int
    classes: tuple[SizeClass, ...]

    def all(self) -> tuple[Config, ...]:
        """The configs of all classes."""
        return tuple(config for found in self.classes for config in found.configs)

    def likely(self) -> int:
        """The position of the class at the first compile; their number if there is none."""
        return sum(found.most < hint_of(self.measure) for found in self.classes)


def by_factor(best: Cut, factor: float, *names: str) -> list[Cut]:
    """The record with each of these numbers by itself times the factor.

    >>> by_factor(Config(2, 64, 4), 0.5, "rows", "warps")
    [Config(rows=1, columns=64, warps=4), Config(rows=2, columns=64, warps=2)]
    """
    return [replace(best, **{name: int(getattr(best, name) * factor)}) for name in names]


def likely_rows(launch: Launch) -> int:
    """A power of two; blocks are not larger."""
    least = LIKELY_ROWS if type(launch.rows) is Extent else 1
    return max(power_of_two(hint_of(launch.rows)), least)


def likely_columns(columns: int) -> int:
    """The same for columns, of which no less fit into a tile unless their number is known."""
    least = LIKELY_COLUMNS if type(columns) is Extent else 1
    return max(power_of_two(hint_of(columns)), least)


def choose_configs(launch: Launch) -> Choices:
    """One class where the sizes are known; otherwise several where the best config differs. None
    has more threads than a program may have."""
    found, most = _all_choices(launch), launch.gpu.most_warps
    if all(config.warps <= most for config in found.all()):
        return found
    return Choices(found.measure, tuple(
        SizeClass(each.most, _unique([
            replace(config, warps=min(config.warps, most)) for config in each.configs]))
        for each in found.classes))


def _all_choices(launch: Launch) -> Choices:
    columns = max((stage.columns for stage in launch.stages), key=likely_columns)
    if launch.tiled:
        return _tile_choices(launch, columns)
    if columns == 1 and launch.splits == 1:
        return _flat_choices(launch)
    if not launch.persistent:
        return _one_class(_loop_configs(launch, likely_columns(columns)))
    if type(columns) is Extent:
        lengths = [length for length in ROW_LENGTHS if length <= launch.longest]
        return Choices(columns, tuple(
            SizeClass(most, _persistent_configs(launch, most)) for most in lengths))
    return _one_class(_persistent_configs(launch, likely_columns(columns)))


def _one_class(configs: tuple[Config, ...]) -> Choices:
    return Choices(0, (SizeClass(ANY_NUMBER, configs),))


def _flat_choices(launch: Launch) -> Choices:
    rows, gpu = launch.rows, launch.gpu
    if type(rows) is not Extent:
        return _one_class(_flat_configs(power_of_two(rows), gpu))
    small, medium = gpu.scaled(SMALL), gpu.scaled(MEDIUM)
    found = ((small, LIKELY_ROWS), (medium, medium), (ANY_NUMBER, 2 * medium))
    return Choices(rows, tuple(
        SizeClass(most, _flat_configs(likely, gpu)) for most, likely in found))


def _flat_configs(rows: int, gpu: GpuProperties) -> tuple[Config, ...]:
    """Small launches spread over the device; large ones give each thread several elements."""
    if rows > gpu.scaled(MEDIUM):
        found = [(1024, 4), (512, 4), (512, 8), (2048, 8), (256, 4)]
    elif rows > gpu.scaled(SMALL):
        found = [(512, 4), (256, 4), (1024, 4), (128, 2)]
    else:
        found = [(128, 4), (256, 4), (64, 2)]
    return _unique([Config(min(block, rows), 1, warps) for block, warps in found])


def _window_configs(launch: Launch, columns: int) -> tuple[Config, ...]:
    """Tiles of few channels, as many pixels as fit, and enough of them to fill the device."""
    width = window_columns(columns)
    alike = max(count_of_rows(stage.ops) for stage in launch.stages)
    many = hint_of(launch.rows) * columns > launch.gpu.scaled(MANY_IN_TILES)
    tiles = WINDOW_TILES if alike > 1 else LONE_WINDOW_TILES if many else SMALL_WINDOW_TILES
    return _unique([
        Config(max(1, min(elements // width, likely_rows(launch))), width, warps)
        for elements, warps in tiles
    ])


def _window_rows(columns: int, rows: int, gpu: GpuProperties) -> Config:
    """Whole rows of channels, several of which share the weights of a window. These are loaded as
    the threads want them if they are fewer than the threads, or 8 for each; else they would go
    through shared memory, one place of the window after the other."""
    if columns >= gpu.warp * EVEN_ROWS:
        return Config(min(2, rows), columns, min(columns // (gpu.warp * EVEN_ROWS), 16))
    return Config(max(1, min(TILE // columns, rows)), columns, 8)


def _tile_choices(launch: Launch, columns: int) -> Choices:
    if any(reads_windows(stage.ops, "r", in_stretches=True) for stage in launch.stages):
        return _one_class(_window_configs(launch, columns))
    if not _crosses_rows(launch) and hint_of(columns) < LONG_ROW:
        return _one_class(_shared_configs(launch, columns))
    if not _crosses_rows(launch):
        return _one_class(_unique([
            Config(min(x, likely_rows(launch)), min(r, likely_columns(columns)), warps)
            for x, r, warps in LONG_TILES]))
    elements, least = launch.rows * columns, launch.gpu.scaled(MANY_IN_TILES)
    few, many = (
        _unique([Config(min(x, likely_rows(launch)), min(r, likely_columns(columns)), warps)
                 for x, r, warps in tiles])
        for tiles in ((TILES[1], TILES[0]), TILES)
    )
    if type(elements) is not Extent:
        return _one_class(many if elements >= least else few)
    return Choices(elements, (SizeClass(least - 1, few), SizeClass(ANY_NUMBER, many)))


def _shared_configs(launch: Launch, columns: int) -> tuple[Config, ...]:
    """Tiles of whole rows that have values of columns in common. What is the same for a stretch of
    rows (of an image, say) is read once for a tile that does not reach into the next stretch."""
    width = power_of_two(columns)
    loads = [
        op.index for stage in launch.stages for op in stage.ops
        if op.name == "load" and op.index is not None
    ]  # fmt: skip
    most = MOST_ROWS_OF_TILE
    for index in loads:
        if rows_alike(index, EVEN_ROWS):
            while not rows_alike(index, most):
                most //= 2
    return _unique([
        Config(max(1, min(elements // width, most, likely_rows(launch))), width, warps)
        for elements, warps in SHARED_TILES
    ])


def _crosses_rows(launch: Launch) -> bool:
    """Whether some access of a tiled launch goes along the rows."""
    return any(
        op.index is not None and op.index.step_of("x") == 1 and op.index.stride_of("r") != 0
        for stage in launch.stages for op in stage.ops if op.name in ("load", "store")
    )


def _persistent_configs(launch: Launch, columns: int) -> tuple[Config, ...]:
    of_weights = _for_weights(launch)
    if of_weights:
        return _unique([
            Config(rows, columns, max(1, min(16, warps * columns // block)))
            for rows, block, warps in of_weights
        ])
    rows = likely_rows(launch)
    along_rows = any(reads_along_rows(stage) for stage in launch.stages)
    of_rows = [op for stage in launch.stages for op in stage.ops if op.name in OF_ROWS]
    if any(op.name == "sort" for op in of_rows):
        return _sort_configs(rows, columns, launch.gpu)
    if along_rows and of_rows:
        is_long = any(op.imm == "logaddexp" for op in of_rows)
        return _scan_configs(rows, columns, launch.gpu.warp * (OF_A_LONG if is_long else OF_A_SCAN))
    if along_rows:
        wanted = max(1, min(64, TILE // columns, rows))
    else:
        wanted = max(1, min(64, 1024 // columns, rows // 256))
    found = []
    if any(reads_windows(stage.ops, "r") for stage in launch.stages):
        found.append(_window_rows(columns, rows, launch.gpu))
    operations = sum(len(stage.ops) for stage in launch.stages)
    if columns == PAIRED and rows >= LIKELY_ROWS // 2 and not along_rows and operations <= FEW_OPS:
        found.append(Config(2, columns, 4))
    for block in (wanted, wanted * 2, max(wanted // 2, 1), 1):
        if block * columns <= 16384 and block <= rows:
            warps = _warps(block * columns, launch.gpu)
            if along_rows and warps > FEW_WARPS:  # a sum goes from warp to warp through memory
                found.append(Config(block, columns, FEW_WARPS))
            found.append(Config(block, columns, warps))
    return _unique(found or [Config(1, columns, _warps(columns, launch.gpu))])


def _sort_configs(rows: int, columns: int, gpu: GpuProperties) -> tuple[Config, ...]:
    """Of sorted rows: few elements for each thread, whose exchanges are all written out."""
    few = rows <= gpu.multiprocessors
    share = gpu.warp * (OF_A_SORT // 2 if few else OF_A_SORT)
    wanted = 1 if few else max(1, min(SORTED // columns, rows))
    return _unique([
        Config(block, columns, max(1, min(16, block * columns // share)))
        for block in (wanted, max(wanted // 2, 1), 1)
    ])


def _scan_configs(rows: int, columns: int, share: int) -> tuple[Config, ...]:
    """Of scans across memory: enough neighbours for whole sectors of it, and few warps, between
    which each part of a scan goes through shared memory. share: elements of a warp."""
    wanted = max(1, min(max(LEAST_SCANNED, min(64, share // columns)), rows))
    return _unique([
        Config(block, columns, max(1, min(16, block * columns // share)))
        for block in (wanted, min(2 * wanted, rows), max(wanted // 2, 1))
        if block * columns <= MOST_SCANNED or block == 1
    ])


def _loop_configs(launch: Launch, widest: int) -> tuple[Config, ...]:
    rows = likely_rows(launch)
    along_rows = any(reads_along_rows(stage) for stage in launch.stages)
    blocks = _of_bytes_along_rows(launch) or LOOP_BLOCKS_ALONG_ROWS
    sums = find_matrix_sums(launch)
    if sums is not None:
        shape = shape_of(launch, sums)
        return (Config(shape.rows, shape.step // sums.per_column, shape.shares),)
    of_weights = _for_weights(launch)
    if of_weights:
        return _unique([Config(*block) for block in of_weights])
    configs = [Config(*block) for block in _for_shared_columns(launch)]
    if not along_rows:
        blocks = LOOP_BLOCKS
        if launch.splits == 1:
            configs += [Config(*block) for block in _for_exponentials(launch)]
            blocks = (*_for_long_rows(launch, widest), *_for_few_rows(rows), *LOOP_BLOCKS)
    for block, columns, warps in blocks:
        columns = min(columns, widest)
        if launch.splits != 1:
            columns = min(columns, launch.chunk & -launch.chunk)
        block = 1 if has_unaligned_rows(launch) else min(block, rows)
        configs.append(Config(block, columns, min(warps, _warps(block * columns, launch.gpu))))
    return _unique(configs)


def _for_weights(launch: Launch) -> list[tuple[int, int, int]]:
    """Of sums of products of a weight, row by row, with what all rows have in common; each thread
    loads 16 bytes of a row at a time. Nothing for others, and for rows of odd lengths."""
    first, *others = launch.stages
    if launch.splits != 1 or hint_of(launch.rows) <= FEW_ROWS:
        return []
    if any(stage.columns != 1 for stage in others):
        return []
    if not first.reduction or first.serial != 1 or type(first.columns) is not int:
        return []
    moving = [
        op for op in first.ops
        if op.name in ("load", "store") and op.index is not None and op.index.stride_of("r") != 0
    ]  # fmt: skip
    rows = [op for op in moving if op.index is not None and op.index.depends_on("x")]
    along = [op for op in rows if op.index is not None and op.index.step_of("r") == 1]
    if not along or len(rows) == len(moving) or any(op.name == "store" for op in moving):
        return []
    width = max(op.dtype.itemsize for op in along)
    even = first.columns & -first.columns
    least = EVEN_WEIGHTS if width < torch.int64.itemsize else EVEN_WORDS
    if even < least or width not in WEIGHTS or torch.float32 in {op.dtype for op in along}:
        return []
    found = WEIGHTS[width][first.columns > LONG_WEIGHTS]
    if width == 1 and hint_of(launch.rows) >= MANY_WEIGHTS:
        found = (LONE, *found)
    if width == torch.int64.itemsize and sum(op.name == "reduction" for op in first.ops) > 1:
        found = found[1:]  # rows that share the weights have that many sums in registers
    return [
        (block, min(columns, even), max(1, min(warps, warps * even // columns)))
        for block, columns, warps in found
    ]


def _for_shared_columns(launch: Launch) -> list[tuple[int, int, int]]:
    """One program takes all rows, so that what some of them share is read once."""
    if launch.splits == 1 or not shares_columns(launch):
        return []
    rows = power_of_two(hint_of(launch.rows))
    columns = min(COLUMNS_OF_SHARED // rows, launch.chunk & -launch.chunk)  # no more than a chunk
    return [(rows, columns, WARPS_OF_SHARED)]


def _of_bytes_along_rows(launch: Launch) -> tuple[tuple[int, int, int], ...]:
    """Of sums over a weight of bytes whose neighbours in memory belong to neighbouring rows."""
    found = [
        op for stage in launch.stages for op in stage.ops
        if op.name == "load" and op.index is not None and op.index.depends_on("r")
        and op.index.stride_of("x") == 1
    ]  # fmt: skip
    if not found or any(op.dtype.itemsize != 1 for op in found):
        return ()
    vectors = sum(op.name == "reduction" for stage in launch.stages for op in stage.ops)
    return next((BYTES_ALONG_ROWS[n] for n in sorted(BYTES_ALONG_ROWS) if vectors <= n), ())


def _for_exponentials(launch: Launch) -> list[tuple[int, int, int]]:
    if all(tiles_of(stage) == 1 for stage in launch.stages):
        return []
    accesses = [
        op for stage in launch.stages for op in stage.ops
        if op.name in ("load", "store") and op.index is not None and op.index.stride_of("r") != 0
    ]  # fmt: skip
    columns = max(stage.columns for stage in launch.stages)
    width = max(op.dtype.itemsize for op in accesses if op.name == "load")
    is_half = width == torch.float16.itemsize
    longest = is_half and width * hint_of(columns) > LONGEST
    if all(op.name == "load" for op in accesses):
        many = EXPONENTIALS_OF_MANY if hint_of(launch.rows) >= MANY_ROWS else EXPONENTIALS
        return [EXPONENTIALS_OF_LONGEST if longest else many]
    if not is_half:
        return [EXPONENTIALS_STORED]
    if longest:
        return [EXPONENTIALS_STORED_LONGEST]
    return [EXPONENTIALS_UNALIGNED if has_unaligned_rows(launch) else EXPONENTIALS_IN_HALF]


def _for_long_rows(launch: Launch, widest: int) -> list[tuple[int, int, int]]:
    """More in flight at a time, where that is no strain on registers."""
    read = [
        {op.buffer for op in stage.ops
         if op.name == "load" and op.index is not None and op.index.stride_of("r") != 0}
        for stage in launch.stages
    ]
    if max(map(len, read)) > FEW_LOADS:
        return []
    if any(reads_windows(stage.ops, "r", FEWEST_SUMS, True) for stage in launch.stages):
        return []
    if has_unaligned_rows(launch) and not any(stage.reduction for stage in launch.stages):
        return [UNALIGNED_BLOCK]
    return [block for least, block in LONG_LOOP_BLOCKS if widest >= least][:1]


def _for_few_rows(rows: int) -> list[tuple[int, int, int]]:
    return [ONE_STEP] if rows <= FEW_ROWS else []


def _warps(elements: int, gpu: GpuProperties) -> int:
    return max(1, min(16, power_of_two(elements // (gpu.warp * 8))))


def _unique(configs: list[Config]) -> tuple[Config, ...]:
    return tuple(dict.fromkeys(configs))
