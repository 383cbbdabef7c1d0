"""Decides how one `Kernel` becomes Triton functions.

In: a `Kernel`. Out: a `Plan` (see `launch`): which loops are rows, which columns, which locals stay
in registers, and where a kernel is cut into several functions since one would not fill the device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from inductor.codegen.triton.aligned import has_unaligned_rows
from inductor.codegen.triton.exact_sums import join_exact_sums
from inductor.codegen.triton.join import join_stages
from inductor.codegen.triton.launch import Launch, Plan, Scratch, Stage, positions
from inductor.codegen.triton.numbers import is_one
from inductor.codegen.triton.online import join_maxima
from inductor.codegen.triton.recompute import hand_on_row_values, nothing, recompute_locals
from inductor.codegen.triton.shared_rows import share_rows
from inductor.codegen.triton.split import ROWS_OF_A_PROGRAM, reads_along_rows, split_columns
from inductor.codegen.triton.tiling import choose_tile, choose_unaligned_rows, choose_window
from inductor.codegen.triton.unroll import rows_side_by_side, unrolled
from inductor.ir.body import LONGEST_SCAN, LoopBody, Op
from inductor.ir.extent import Extent, hint_of
from inductor.ir.gpus import MEASURED, GpuProperties
from inductor.ir.index import Index, IndexLike, constant, variable
from inductor.scheduler.assemble import drop_dead
from inductor.scheduler.domain import product
from inductor.scheduler.fuse import SHORT_COLUMN
from inductor.scheduler.schedule import Kernel, local_position, outer_variables

PERSISTENT_COLUMNS = 1024  # reductions with at most so many columns are one tile
PERSISTENT_WORDS = 256  # the same of words of sixteen numbers, for which there are registers
PERSISTENT_WITH_LOCALS = 8192  # the same where something is kept in registers that way
PERSISTENT_ALONG_ROWS = SHORT_COLUMN  # the same where neighbours in memory are neighbouring rows
# Of a device with as many multiprocessors as that on which choices were measured.
ENOUGH_ROWS = 128
LARGE_KERNEL = 1 << 16
# Elements of a stage, of all rows, that no device is filled with. Chosen, not measured.
SMALL_STAGE = 4096
MANY_IN_WINDOWS = 1 << 20  # elements, of which a thread computes several


def plan_kernel(kernel: Kernel, gpu: GpuProperties = MEASURED) -> Plan:
    """Decide the functions of a kernel."""
    kernel = share_rows(join_exact_sums(kernel), gpu)
    parts, scratch = _split_stages(kernel, gpu)
    launches: list[Launch] = []
    for part in parts:
        launch, spilled = _plan_part(part, gpu)
        scratch += spilled
        pair, partial = split_columns(replace(launch, gpu=gpu))
        launches += pair
        scratch += partial
    return Plan(tuple(launches), tuple(scratch))


def plan_short_rows(kernel: Kernel, gpu: GpuProperties) -> Launch | None:
    """A second way to run a kernel whose rows are as long as a call says: each row one tile.

    None where that is not possible, or no better.
    """
    if _is_flat(kernel):
        return None
    if len(kernel.stages) == 1:
        kernel = _promote_loops(kernel)
    most = _longest_tile(kernel)
    lengths = {_columns_of(stage) for stage in kernel.stages} - {1}
    if len(lengths) != 1 or type(*lengths) is not Extent or most <= PERSISTENT_ALONG_ROWS:
        return None
    if _unfit_locals(kernel, True):
        return None
    stages = tuple(_row_stage(kernel, stage) for stage in kernel.stages)
    return Launch(
        kernel.name, product(kernel.outer), stages, kernel.locals, longest=most, gpu=gpu)


def _iterations(stage: LoopBody) -> int:
    return product(stage.ranges) * product(stage.reduction_ranges)


def _split_stages(
    kernel: Kernel, gpu: GpuProperties
) -> tuple[list[Kernel], list[Scratch]]:
    """A kernel with too few rows to fill the device becomes one kernel for each stage; neighbours
    that are small stay together, as they would not fill it anyway."""
    rows = product(kernel.outer)
    work = hint_of(rows) * max(hint_of(_iterations(stage)) for stage in kernel.stages)
    if not _is_flat(kernel):
        kernel = _as_one_stage(kernel)
    if len(kernel.stages) == 1 or _is_flat(kernel) or work < gpu.scaled(LARGE_KERNEL):
        return [kernel], []
    along_rows = any(reads_along_rows(_row_stage(kernel, stage)) for stage in kernel.stages)
    enough = gpu.scaled(ENOUGH_ROWS) * (ROWS_OF_A_PROGRAM if along_rows else 1)
    if hint_of(rows) >= enough:
        return [kernel], []
    kernel = join_stages(recompute_locals(kernel))
    most = gpu.scaled(SMALL_STAGE)
    runs = _runs_of([hint_of(rows * _iterations(stage)) < most for stage in kernel.stages])
    spilled, scratch = spill_locals(kernel, _shared_locals(kernel, runs))
    parts = []
    for number, run in enumerate(runs):
        stages = spilled.stages[run.start : run.stop]
        touched = {op.buffer for stage in stages for op in stage.ops}
        own = tuple(local for local in spilled.locals if local.name in touched)
        parts.append(replace(
            spilled, name=f"{kernel.name}_{number}", stages=stages, locals=own))
    return parts, scratch


def _runs_of(small: Sequence[bool]) -> list[range]:
    """Which stages share a kernel: those that are small, one after the other."""
    runs: list[range] = []
    for number, is_small in enumerate(small):
        if number and is_small and small[number - 1]:
            runs[-1] = range(runs[-1].start, number + 1)
        else:
            runs.append(range(number, number + 1))
    return runs


def _shared_locals(kernel: Kernel, runs: Sequence[range]) -> set[str]:
    """The locals that are spilled: all but those that only stages of one run touch, of several. A
    stage alone may be cut into launches, which have none."""
    names = {local.name for local in kernel.locals}
    seen: dict[str, set[int]] = {name: set() for name in names}
    for number, run in enumerate(runs):
        for stage in kernel.stages[run.start : run.stop]:
            for op in stage.ops:
                if op.buffer in names:
                    seen[op.buffer].add(number)
    return {
        name for name, found in seen.items()
        if len(found) != 1 or len(runs[next(iter(found))]) == 1
    }  # fmt: skip


def spill_locals(kernel: Kernel, names: set[str]) -> tuple[Kernel, list[Scratch]]:
    """The kernel with the locals called `names` in global memory, one stretch for each row."""
    if not names:
        return kernel, []
    rows = constant(0)
    for extent, position in zip(kernel.outer, outer_variables(kernel.outer), strict=True):
        rows = rows * extent + position
    count = product(kernel.outer)
    moved = {x.name: x for x in kernel.locals if x.name in names}
    stages = []
    for stage in kernel.stages:
        ops = [
            replace(op, buffer=f"{kernel.name}_{op.buffer}",
                    index=rows * moved[op.buffer].elements + _index_of(op))
            if op.buffer in moved else op
            for op in stage.ops
        ]
        stages.append(LoopBody(stage.ranges, stage.reduction_ranges, tuple(ops)))
    scratch = [
        Scratch(f"{kernel.name}_{x.name}", x.dtype, x.elements * count) for x in moved.values()
    ]
    remaining = tuple(local for local in kernel.locals if local.name not in names)
    return replace(kernel, stages=tuple(stages), locals=remaining), scratch


def _index_of(op: Op) -> Index:
    assert op.index is not None
    return op.index


def _is_flat(kernel: Kernel) -> bool:
    """Whether each iteration of all stages stands alone, so that all loops can be rows."""
    if any(_reduces(stage) for stage in kernel.stages):
        return False
    if len(kernel.stages) == 1:
        return True
    count = product(kernel.stages[0].ranges)
    if any(product(stage.ranges) != count for stage in kernel.stages):
        return False
    own = {local.name for local in kernel.locals}
    if any(local.elements != count for local in kernel.locals):
        return False
    written: set[str] = set()
    for stage in kernel.stages:
        touched = {op.buffer for op in stage.ops if op.buffer and op.buffer not in own}
        if touched & written:
            return False
        written |= {op.buffer for op in stage.stores() if op.buffer not in own}
        for op in stage.ops:
            if op.buffer in own and op.index != local_position(stage):
                return False
    return True


def _reduces(stage: LoopBody) -> bool:
    """Whether reductions of the stage see other than exactly one value."""
    return product(stage.reduction_ranges) != 1


def _plan_part(kernel: Kernel, gpu: GpuProperties) -> tuple[Launch, list[Scratch]]:
    if _is_flat(kernel):
        window = choose_window(kernel)
        if window is not None:
            return _window_launch(kernel, *window, gpu.scaled(MANY_IN_WINDOWS)), []
        tile = choose_tile(kernel, gpu)
        if tile is not None:
            return _tiled_launch(kernel, *tile), []
        unaligned = choose_unaligned_rows(kernel, gpu)
        if unaligned is not None:
            launch = replace(_tiled_launch(kernel, *unaligned), tiled=False, persistent=False)
            if has_unaligned_rows(launch):
                return launch, []
        extents = (*kernel.outer, *kernel.stages[0].ranges)
        flat = tuple(_flat_stage(kernel, stage) for stage in kernel.stages)
        return Launch(kernel.name, product(extents), flat, kernel.locals), []
    kernel = _as_one_stage(kernel)
    if len(kernel.stages) == 1:
        kernel = _promote_loops(kernel)
    persistent = _is_persistent(kernel)
    if not persistent:
        kernel = recompute_locals(hand_on_row_values(kernel))
    kernel, scratch = spill_locals(kernel, _unfit_locals(kernel, persistent))
    stages = tuple(_row_stage(kernel, stage) for stage in kernel.stages)
    if not persistent:
        stages = join_maxima(stages, {x.name for x in kernel.locals if is_one(x.elements)})
    rows = product(kernel.outer)
    return Launch(kernel.name, rows, stages, kernel.locals, persistent=persistent), scratch


def _as_one_stage(kernel: Kernel) -> Kernel:
    """What is computed for each row joins the one reduction over neighbouring rows before it, which
    can then be cut; the kernel as it is where that does not make one stage."""
    if len(kernel.stages) == 1:
        return kernel
    if not any(reads_along_rows(_row_stage(kernel, stage)) for stage in kernel.stages):
        return kernel
    joined = join_stages(kernel)
    if len(joined.stages) != 1:
        return kernel
    (stage,) = joined.stages
    own = {local.name for local in kernel.locals}
    if any(op.buffer in own for op in stage.loads()):
        return kernel
    ops = [nothing(op) if op.name == "store" and op.buffer in own else op for op in stage.ops]
    return replace(kernel, stages=(replace(stage, ops=drop_dead(ops)),), locals=())


def _substitute(ops: Sequence[Op], values: Mapping[str, IndexLike]) -> tuple[Op, ...]:
    return tuple(
        op if op.index is None else replace(op, index=op.index.substitute(values)) for op in ops
    )


def _flat_stage(kernel: Kernel, stage: LoopBody) -> Stage:
    extents = (*kernel.outer, *stage.ranges)
    names = [f"o{n}" for n in range(len(kernel.outer))]
    names += [f"i{n}" for n in range(len(stage.ranges))]
    values = dict(zip(names, positions(extents, variable("x", product(extents))), strict=True))
    return Stage(_substitute(stage.ops, values), 1, 1, False)


def _window_launch(
    kernel: Kernel, column: int, row: int, depth: int, is_joined: bool, many: int
) -> Launch:
    """As below. depth: so many iterations of the loop before `row`, which they divide, lie side by
    side within each of its own, of which a few are one row where there are `many`. is_joined: they
    are columns, too, each with all of these."""
    (stage,) = kernel.stages
    extents = (*kernel.outer, *stage.ranges)
    names = [f"o{n}" for n in range(len(kernel.outer))]
    names += [f"i{n}" for n in range(len(stage.ranges))]
    count = 1
    if type(extents[row]) is int and hint_of(product(extents)) > many:
        count = rows_side_by_side(stage.ops, names[column], names[row], extents[row])
    before = [extents[n] for n in range(row)]
    lines = before.pop() if before else 1
    shape = (*before, lines // depth, extents[row] // count, 1 if is_joined else depth)
    *found, line, pixel, within = positions(shape, variable("x", product(shape)))
    columns = extents[column] * (depth if is_joined else 1)
    place: Index = variable("r", columns)
    if is_joined:
        within, place = positions((depth, extents[column]), place)
    fixed = dict(zip(names, [*found, line * depth + within], strict=False))
    fixed[names[column]] = place
    rows = [{**fixed, names[row]: pixel * count + n} for n in range(count)]
    ops = unrolled(stage.ops, rows)
    stages = (Stage(ops, 1, columns, False),)
    return Launch(kernel.name, product(shape), stages, tiled=True)


def _tiled_launch(kernel: Kernel, column: int, row: int) -> Launch:
    """One loop as columns, all others as rows, the loop number `row` last."""
    ranges = kernel.stages[0].ranges
    names = [f"o{n}" for n in range(len(kernel.outer))] + [f"i{n}" for n in range(len(ranges))]
    extents = (*kernel.outer, *ranges)
    order = [n for n in range(len(names)) if n not in (column, row)] + [row]
    shape = [extents[n] for n in order]
    rows = variable("x", product(shape))
    values: dict[str, IndexLike] = {names[column]: variable("r", extents[column])}
    for n, index in zip(order, positions(shape, rows), strict=True):
        values[names[n]] = index
    stages = tuple(
        Stage(_substitute(stage.ops, values), 1, extents[column], False) for stage in kernel.stages
    )
    return Launch(kernel.name, product(shape), stages, tiled=True)


def _promote_loops(kernel: Kernel) -> Kernel:
    """A kernel of one stage with the plain loops of the stage as outer loops."""
    (stage,) = kernel.stages
    count = len(kernel.outer)
    values = {
        f"i{n}": variable(f"o{count + n}", extent) for n, extent in enumerate(stage.ranges)
    }
    body = LoopBody((), stage.reduction_ranges, _substitute(stage.ops, values))
    return replace(kernel, outer=(*kernel.outer, *stage.ranges), stages=(body,))


def _row_stage(kernel: Kernel, stage: LoopBody) -> Stage:
    reduction = _reduces(stage)
    columns = stage.reduction_ranges if reduction else stage.ranges
    serial = stage.ranges if reduction else ()
    values: dict[str, IndexLike] = {}
    for letter, extents, name in (
        ("o", kernel.outer, "x"), ("r" if reduction else "i", columns, "r"), ("i", serial, "s")
    ):
        found = positions(extents, variable(name, product(extents)))
        values.update({f"{letter}{n}": index for n, index in enumerate(found)})
    return Stage(_substitute(stage.ops, values), product(serial), product(columns), reduction)


def _columns_of(stage: LoopBody) -> int:
    return product(stage.reduction_ranges if _reduces(stage) else stage.ranges)


def _is_persistent(kernel: Kernel) -> bool:
    limit = _longest_tile(kernel)
    columns = [_columns_of(stage) for stage in kernel.stages]
    return all(type(count) is not Extent and 0 < count <= limit for count in columns)


def _longest_tile(kernel: Kernel) -> int:
    """So many columns are one tile at most."""
    if any(stage.is_of_rows() for stage in kernel.stages):
        return LONGEST_SCAN
    if any(op.name in ("nibble", "nibbles_dot") for stage in kernel.stages for op in stage.ops):
        return 0  # loops, whose sums go through matrix units
    if any(reads_along_rows(_row_stage(kernel, stage)) for stage in kernel.stages):
        return PERSISTENT_ALONG_ROWS
    if any(op.name == "above_one" for stage in kernel.stages for op in stage.ops):
        return PERSISTENT_WORDS
    tiles = any(not is_one(local.elements) for local in kernel.locals) or _rereads(kernel)
    return PERSISTENT_WITH_LOCALS if tiles else PERSISTENT_COLUMNS


def _rereads(kernel: Kernel) -> bool:
    """Whether a stage reads what an earlier one has read: a tile would have it already."""
    seen: set[tuple[str, Index | None]] = set()
    written = set(kernel.writes())
    for stage in (_row_stage(kernel, stage) for stage in kernel.stages):
        found = {
            (op.buffer, op.index) for op in stage.ops
            if op.name == "load" and op.index is not None and op.buffer not in written
            and op.index.depends_on("r")
        }
        if not found.isdisjoint(seen):
            return True
        seen |= found
    return False


def _unfit_locals(kernel: Kernel, persistent: bool) -> set[str]:
    """Locals that cannot be a tile in registers."""
    unfit = set()
    for local in kernel.locals:
        for stage in kernel.stages:
            touching = [op for op in stage.ops if op.buffer == local.name]
            if not touching:
                continue
            serial = _reduces(stage) and not is_one(product(stage.ranges))
            if local.elements == 1:
                fits = not serial or all(op.name == "load" for op in touching)
            else:
                own = local_position(stage)
                fits = persistent and not serial and all(op.index == own for op in touching)
            if not fits:
                unfit.add(local.name)
    return unfit
