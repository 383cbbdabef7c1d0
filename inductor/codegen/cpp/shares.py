"""One stage, printed as a loop over a share of its work: what the parts of a kernel consist of.

A share is `begin` .. `end` out of `items`: iterations of leading loops, blocks of a tile, or
(where a reduction has too few of those) slots, each with its own piece of the first r loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import takewhile
from math import prod

from inductor.codegen.cpp.accumulators import Variable
from inductor.codegen.cpp.collisions import apart_loops, is_apart, may_collide
from inductor.codegen.cpp.nest import Loop, Nest
from inductor.codegen.cpp.phases import split_phases
from inductor.codegen.cpp.pointwise import Level, print_pointwise, shared_levels
from inductor.codegen.cpp.reduction import ReductionPlan, ReductionPrinter, lanes_in
from inductor.codegen.cpp.scope import Scope, Writer
from inductor.ir.extent import divides, surely_less


def share_pointwise(scope: Scope, levels: tuple[Level, ...], threads: int) -> tuple[int, int]:
    """Print; the leading levels that are enough for all threads are shared. (items, alignment)"""
    if levels and may_collide(scope.nest):
        return _share_colliding(scope, levels)
    count = shared_levels(levels, threads)
    shared, rest = levels[:count], levels[count:]
    items = prod(level.extent for level in shared)
    if count == 1 and shared[0].step == 1:
        print_pointwise(scope, (replace(shared[0], begin="begin", end="end"), *rest))
        return items, 1 if rest else 64
    with over_items(scope.writer, items):
        decode(scope.writer, [(x.name, x.extent, x.step) for x in shared])
        with scope.nested(*(level.loop for level in shared)):
            print_pointwise(scope, rest)
    return items, 1


def _share_colliding(scope: Scope, levels: tuple[Level, ...]) -> tuple[int, int]:
    """Every thread walks iterations that may meet in their order: all, for a range of the innermost
    loop where that keeps places apart, or all behind its share of leading loops that do."""
    *outer, last = levels
    if is_apart(scope.nest, last.loop):
        print_pointwise(scope, (*outer, replace(last, begin="begin", end="end")))
        return last.extent, 16
    apart = {loop.name for loop in apart_loops(scope.nest)}
    leading = list(takewhile(lambda level: level.loop in apart, outer))
    if not leading:
        print_pointwise(scope, levels)
        return 1, 1
    items = prod(level.extent for level in leading)
    with over_items(scope.writer, items):
        decode(scope.writer, [(level.name, level.extent, 1) for level in leading])
        with scope.nested(*(level.loop for level in leading)):
            print_pointwise(scope, levels[len(leading) :])
    return items, 1


def share_reduction(scope: Scope, plan: ReductionPlan) -> int:
    """Print a reduction whose plain loops are shared; how many items there are."""
    items = count_items(plan)
    with over_items(scope.writer, items):
        with _inside_item(scope, plan):
            ReductionPrinter(scope, plan).print_inside()
    return items


def count_items(plan: ReductionPlan) -> int:
    return prod(loop.extent for loop in plan.outer) * plan.blocks


def wants_split(nest: Nest, plan: ReductionPlan, threads: int) -> bool:
    """Whether the r loops should be shared because there are too few other iterations."""
    if threads < 2 or not plan.inner or not surely_less(count_items(plan), threads):
        return False
    if surely_less(plan.inner[0].extent, 4 * threads):
        return False
    return len(split_phases(nest).passes) == 1 and not may_collide(nest)


def share_partial(scope: Scope, plan: ReductionPlan, slots: int) -> list[Variable]:
    """Print the first half of a split reduction: `slots` pieces of the first r loop."""
    extent = plan.inner[0].extent
    writer = scope.writer
    with writer.block("for (i64 slot = begin; slot < end; ++slot) {"):
        align = lanes_in(extent) or 1
        writer.line(f"const i64 from = k_share({extent}, {align}, slot, {slots});")
        writer.line(f"const i64 to = k_share({extent}, {align}, slot + 1, {slots});")
        items = count_items(plan)
        with writer.block("{" if items == 1 else f"for (i64 p = 0; p < {items}; ++p) {{"):
            with _inside_item(scope, plan):
                printer = ReductionPrinter(scope, plan)
                printer.print_partial(("from", "to"), _slot_place(items))
    return printer.partial_variables()


def share_merged(scope: Scope, plan: ReductionPlan, slots: int) -> int:
    """Print the second half: partial results in the order of the slots, and what comes after."""
    items = count_items(plan)
    with over_items(scope.writer, items):
        with _inside_item(scope, plan):
            ReductionPrinter(scope, plan).print_merged(slots, _slot_place(items))
    return items


def _slot_place(items: int) -> str:
    return "slot" if items == 1 else f"slot * {items} + p"


def print_reduction(scope: Scope, plan: ReductionPlan, loops: Sequence[Loop]) -> None:
    """A reduction with all of its loops, inside of open outer loops."""
    writer = scope.writer
    if loops:
        loop, *rest = loops
        name = loop.name
        with writer.block(f"for (i64 {name} = 0; {name} < {loop.extent}; ++{name}) {{"):
            with scope.nested(name):
                print_reduction(scope, plan, rest)
        return
    if plan.tile is None:
        ReductionPrinter(scope, plan).print_inside()
        return
    base, extent = f"{plan.tile.name}b", plan.tile.extent
    with writer.block(f"for (i64 {base} = 0; {base} < {extent}; {base} += {plan.block}) {{"):
        _print_block_end(writer, plan.tile, plan.block)
        ReductionPrinter(scope, plan).print_inside()


@contextmanager
def _inside_item(scope: Scope, plan: ReductionPlan) -> Iterator[None]:
    """The plain loops behind item `p` of a reduction."""
    loops = [(loop.name, loop.extent, 1) for loop in plan.outer]
    if plan.tile is not None:
        loops.append((f"{plan.tile.name}b", plan.blocks, plan.block))
    decode(scope.writer, loops)
    with scope.nested(*(loop.name for loop in plan.outer)):
        if plan.tile is not None:
            _print_block_end(scope.writer, plan.tile, plan.block)
        yield


@contextmanager
def over_items(writer: Writer, items: int) -> Iterator[None]:
    """The loop over a share; a single item needs none (nor can all compilers take it away)."""
    if items == 1:
        yield
        return
    with writer.block("for (i64 p = begin; p < end; ++p) {"):
        yield


def decode(writer: Writer, loops: Sequence[tuple[str, int, int]]) -> None:
    """Variables (name, extent, step) behind the flat number `p`."""
    rest = prod(extent for _, extent, _ in loops)
    for position, (name, extent, step) in enumerate(loops):
        rest //= extent
        text = "p" if rest == 1 else f"p / {rest}"
        text = f"({text}) % {extent}" if position > 0 else text
        text = "0" if extent == 1 else text
        writer.line(f"const i64 {name} = {text if step == 1 else f'{text} * {step}'};")


def _print_block_end(writer: Writer, tile: Loop, block: int) -> None:
    name, limit = tile.name, f"{tile.name}b + {block}"
    if not divides(block, tile.extent):
        limit = f"({limit} < {tile.extent} ? {limit} : {tile.extent})"
    writer.line(f"const i64 {name}e = {limit};")
