"""Stages without reduction: every operation once for each combination of the loops.

The innermost loop is the one that most accesses walk through one by one, stores above all. Where
another loop is the contiguous one of some load (a transposition), both are walked in square tiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from inductor.codegen.cpp.collisions import apart_loops, is_apart, may_collide
from inductor.codegen.cpp.nest import Loop, Nest, indirect_variables, stride_in
from inductor.codegen.cpp.scope import Scope, checked_ops, error_name
from inductor.codegen.cpp.strips import find_strips, print_strips
from inductor.ir.extent import divides, hint_of, up_to_multiple

# Chosen, not measured: what an access with gaps costs beside a dense one; elements of a side of a
# tile (16 of float32 are a cache line) and of a tile of tiles; elements that are worth tiles.
BAD_STRIDE = 3
TILE, BIG_TILE = 16, 64
TILED_ELEMENTS = 4096


@dataclass(frozen=True, slots=True)
class Level:
    """`for (name = begin; name < end; name += step)`; loop: the loop variable that it is, or "".

    whole: the end of a tile that does not reach over `limit`, "" where none does.
    """

    name: str
    begin: str
    end: str
    extent: int
    step: int = 1
    loop: str = ""
    whole: str = ""
    limit: str = ""


def plan_levels(nest: Nest) -> tuple[Level, ...]:
    """The loops to print, from the outermost on."""
    loops = order_loops(nest)
    crossing = find_crossing(nest, loops)
    if crossing is None:
        return tuple(plain_level(loop) for loop in loops)
    inner = loops[-1]
    rest = [plain_level(loop) for loop in loops if loop not in (inner, crossing)]
    tiled = [(crossing, "ty"), (inner, "tx")]
    rest += [_big_level(loop, name) for loop, name in tiled]
    rest += [_tile_level(loop, name) for loop, name in tiled]
    return (*rest, *(_within_level(loop, name) for loop, name in tiled))


def plain_level(loop: Loop) -> Level:
    return Level(loop.name, "0", str(loop.extent), loop.extent, 1, loop.name)


def _big_level(loop: Loop, name: str) -> Level:
    count = up_to_multiple(loop.extent, BIG_TILE)
    return Level(f"{name}_big", "0", str(loop.extent), count, BIG_TILE)


def _tile_level(loop: Loop, name: str) -> Level:
    end = _limit(f"{name}_big + {BIG_TILE}", loop.extent, BIG_TILE)
    return Level(name, f"{name}_big", end, BIG_TILE // TILE, TILE)


def _within_level(loop: Loop, name: str) -> Level:
    whole = f"{name} + {TILE}"
    end = _limit(whole, loop.extent, TILE)
    level = Level(loop.name, name, end, TILE, 1, loop.name)
    return level if end == whole else replace(level, whole=whole, limit=str(loop.extent))


def _limit(end: str, extent: int, step: int) -> str:
    return end if divides(step, extent) else f"({end} < {extent} ? {end} : {extent})"


def order_loops(nest: Nest) -> tuple[Loop, ...]:
    """The loops with the best one innermost; where stores may collide only if their order stays,
    and only if vectors along another loop than the last one do not jump through memory."""
    loops = nest.of_kind("i")
    free = apart_loops(nest) if may_collide(nest) else loops
    if not free:
        return loops
    best = max(free, key=lambda loop: (-access_cost(nest, loop), loops.index(loop)))
    if loops[0] in free and access_cost(nest, best) > access_cost(nest, loops[-1]):
        return loops
    return (*(loop for loop in loops if loop is not best), best)


def find_crossing(nest: Nest, loops: Sequence[Loop]) -> Loop | None:
    """A loop that is the contiguous one of a load which jumps along the innermost loop."""
    if len(loops) < 2 or may_collide(nest):
        return None
    indirect = indirect_variables(nest)
    inner, others = loops[-1], loops[:-1]
    for op in nest.ops:
        if op.name != "load" or op.index is None:
            continue
        step = stride_in(op.index, inner.name, indirect)
        if step is None or abs(hint_of(step)) < 2:
            continue
        for other in others:
            along = stride_in(op.index, other.name, indirect)
            extents = hint_of(inner.extent), hint_of(other.extent)
            if along in (1, -1) and prod(extents) >= TILED_ELEMENTS and min(extents) >= TILE // 2:
                return other
    return None


def access_cost(nest: Nest, loop: Loop) -> int:
    """How dear the accesses are when this loop is the innermost one."""
    indirect = indirect_variables(nest)
    cost = 0
    for op in nest.ops:
        if op.name in ("load", "store") and op.index is not None:
            step = stride_in(op.index, loop.name, indirect)
            if step is None or abs(hint_of(step)) > 1:
                cost += BAD_STRIDE * (2 if op.name == "store" else 1)
            elif step == 0 and op.name == "store":
                cost += BAD_STRIDE
    return cost


def shared_levels(levels: Sequence[Level], threads: int) -> int:
    """How many leading levels are enough to keep all threads busy."""
    count = min(1, len(levels))
    while count < len(levels) - 1 and levels[count].begin == "0":
        if hint_of(prod(level.extent for level in levels[:count])) >= 4 * threads:
            break
        count += 1
    return count


def print_pointwise(scope: Scope, levels: Sequence[Level]) -> None:
    """Loops around all operations; those of loops that are open already are not among `levels`."""
    nest, writer = scope.nest, scope.writer
    scope.print_ready(range(len(nest.ops)), stores=not levels)
    if not levels:
        return
    if any(level.whole for level in levels) and not any(level.step > 1 for level in levels):
        print_tile(scope, levels)
        return
    level, *rest = levels
    strips = find_strips(scope, level.loop, level.extent) if level.loop and not rest else None
    if strips is not None:
        print_strips(scope, strips, level.begin, level.end, simd_pragma(nest))
        return
    masks = [] if rest else fixed_masks(scope, level.loop)
    if masks:
        texts = dict.fromkeys(scope.known[position] for position in masks)
        with writer.block(f"if ({' & '.join(texts)}) {{"), scope.nested():
            scope.known.update(dict.fromkeys(masks, "true"))
            print_loop(scope, level, rest)
        with writer.block("else {"):
            print_loop(scope, level, rest)
        return
    print_loop(scope, level, rest)


def fixed_masks(scope: Scope, loop: str) -> list[int]:
    """Conditions of loads that do not change in a loop, as at the edges of an image: inside of it,
    where all are true, the loop is plain vector code."""
    found = [arg for op in scope.nest.ops if op.name == "load" for arg in op.args]
    fixed = [at for at in dict.fromkeys(found) if at in scope.known and scope.known[at] != "true"]
    return fixed if all(loop not in scope.nest.depends[at] for at in found) else []


def print_loop(scope: Scope, level: Level, rest: Sequence[Level]) -> None:
    """One level, and those inside of it."""
    writer, name = scope.writer, level.name
    if not rest and is_apart(scope.nest, level.loop):
        writer.line(simd_pragma(scope.nest))
    step = f"++{name}" if level.step == 1 else f"{name} += {level.step}"
    with writer.block(f"for (i64 {name} = {level.begin}; {name} < {level.end}; {step}) {{"):
        with scope.nested(level.loop):
            print_pointwise(scope, rest)


def print_tile(scope: Scope, levels: Sequence[Level]) -> None:
    """The loops of a tile: of constant length, but for tiles at the edge."""
    inside = " && ".join(f"{level.whole} <= {level.limit}" for level in levels if level.whole)
    for head, ends in ((f"if ({inside}) {{", True), ("else {", False)):
        with scope.writer.block(head):
            loops = [
                replace(level, end=level.whole if ends and level.whole else level.end, whole="")
                for level in levels
            ]
            print_pointwise(scope, loops)


def simd_pragma(nest: Nest, extra: str = "") -> str:
    """The pragma of an innermost loop; errors of checked indices are collected by it."""
    names = ", ".join(error_name(op) for op in checked_ops(nest))
    clause = f" reduction(max:{names})" if names else ""
    return f"#pragma omp simd{clause}{extra}"
