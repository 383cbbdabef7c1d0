"""Stages with reduction: a strategy, and the loops that carry it out.

*row*: an r loop is the innermost one and is vectorised; one accumulator for each i.
*column*: an i loop is the innermost one, walked in blocks; a tile of accumulators, r loops around.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from inductor.codegen.cpp.accumulators import CELL, Accumulator, Variable, make_accumulator
from inductor.codegen.cpp.nest import Loop, Nest, indirect_variables, stride_in
from inductor.codegen.cpp.phases import Pass, Phases, split_phases
from inductor.codegen.cpp.pointwise import BAD_STRIDE, may_collide, simd_pragma
from inductor.codegen.cpp.scope import Scope
from inductor.codegen.cpp.types import value_type

ROW_CHUNK = 1024
COLUMN_CHUNK = 256
BLOCK = 64
SHORT = 16


@dataclass(frozen=True, slots=True)
class ReductionPlan:
    """`outer`: i loops around everything; `tile`: the i loop walked in blocks; `inner`: r loops."""

    outer: tuple[Loop, ...]
    tile: Loop | None
    inner: tuple[Loop, ...]
    block: int = BLOCK


def plan_reduction(nest: Nest) -> ReductionPlan:
    """Row or column, and the order of the loops."""
    outer, inner = nest.of_kind("i"), nest.of_kind("r")
    if not inner or may_collide(nest):
        return ReductionPlan(outer, None, inner)
    ordered = any(op.name == "reduction" and "arg" in str(op.imm) for op in nest.ops)
    row = inner[-1] if ordered else min(reversed(inner), key=lambda loop: _cost(nest, loop))
    tile = min(reversed(outer), key=lambda loop: _cost(nest, loop), default=None)
    if tile is None or _cost(nest, tile) >= _cost(nest, row):
        return ReductionPlan(outer, None, (*(r for r in inner if r is not row), row))
    rest = tuple(loop for loop in outer if loop is not tile)
    return ReductionPlan(rest, tile, inner, min(BLOCK, tile.extent))


def _cost(nest: Nest, loop: Loop) -> int:
    """How dear it is to have this loop innermost, for what runs inside of the r loops."""
    inner = {loop.name for loop in nest.of_kind("r")}
    indirect = indirect_variables(nest)
    cost = 2 if loop.extent < SHORT else 0
    for op, depends in zip(nest.ops, nest.depends, strict=True):
        if op.name in ("load", "store") and op.index is not None and depends & inner:
            step = stride_in(op.index, loop.name, indirect)
            cost += BAD_STRIDE if step is None or abs(step) > 1 else 0
    return cost


class ReductionPrinter:
    """Prints one reduction stage inside of the loops `plan.outer`."""

    def __init__(self, scope: Scope, plan: ReductionPlan) -> None:
        self.scope = scope
        self.nest = scope.nest
        self.writer = scope.writer
        self.plan = plan
        self.phases: Phases = split_phases(self.nest)
        self.empty = any(loop.extent == 0 for loop in plan.inner)
        self.tiled: dict[int, str] = {}
        self.declared: set[int] = set()
        self.cell = f"[{plan.tile.name} - {plan.tile.name}b]" if plan.tile else ""

    def print_inside(self) -> None:
        """All phases, where the loops `outer` (and the block of the tile) are open."""
        for one in self.phases.passes:
            self._print_before()
            self._print_pass(one)
        with self._lanes():
            self.scope.print_ready(self.phases.after, stores=True)

    @contextmanager
    def _lanes(self, pragma: bool = True) -> Iterator[None]:
        """The loop over the block of the tile, if there is one."""
        tile = self.plan.tile
        if tile is None:
            yield
            return
        if pragma:
            self.writer.line(simd_pragma(self.nest))
        name = tile.name
        with self.writer.block(f"for (i64 {name} = {name}b; {name} < {name}e; ++{name}) {{"):
            with self.scope.nested(name):
                for position, text in self.tiled.items():
                    self.scope.known[position] = text + self.cell
                yield

    def _print_before(self) -> None:
        """What a pass uses and no r variable changes; with a tile it is kept for each lane."""
        self.scope.print_ready(self.phases.before)
        if self.plan.tile is None:
            return
        missing = [n for n in self._boundary() if n not in self.scope.known | self.tiled]
        if not missing:
            return
        for position in missing:
            if position not in self.declared:
                kind = value_type(self.nest.ops[position].dtype)
                self.writer.line(f"alignas(64) {kind} w{position}[{self.plan.block}];")
        self.declared.update(missing)
        done = []
        with self._lanes():
            self.scope.print_ready(self.phases.before)
            for position in missing:
                if position in self.scope.known:
                    self.writer.line(f"w{position}{self.cell} = {self.scope.known[position]};")
                    done.append(position)
        self.tiled.update({position: f"w{position}" for position in done})

    def _boundary(self) -> list[int]:
        """Operations of `before` whose value is used inside of the r loops."""
        inside = {n for one in self.phases.passes for n in (*one.members, *one.reductions)}
        used = {arg for n in inside for arg in self.nest.ops[n].args}
        indirect = {n for n, op in enumerate(self.nest.ops) if op.name in ("indirect", "constant")}
        return [n for n in self.phases.before if n in used and n not in indirect]

    def _print_pass(self, one: Pass) -> None:
        found = [self._make(n) for n in one.reductions]
        chunk = COLUMN_CHUNK if self.plan.tile else ROW_CHUNK
        count = 1
        for loop in self.plan.inner:
            count *= loop.extent
        totals = [a for a in found if a.chunked and count > chunk]
        for accumulator in found:
            wide = accumulator in totals
            self._declare((accumulator.total,) if wide else accumulator.variables)
        if not self.empty:
            self._print_loops(list(self.plan.inner), one, found, totals, chunk)
        for accumulator in found:
            self._finish(accumulator, accumulator in totals)

    def _make(self, position: int) -> Accumulator:
        op = self.nest.ops[position]
        values = tuple(f"$${arg}$" for arg in op.args)
        return make_accumulator(position, op, values, self.nest.ops[op.args[0]])

    def _declare(self, variables: Sequence[Variable]) -> None:
        for variable in variables:
            if self.plan.tile is None:
                self.writer.line(f"{variable.type} {variable.name} = {variable.start};")
            else:
                size = self.plan.block
                self.writer.line(f"alignas(64) {variable.type} {variable.name}[{size}];")
                self.writer.line(
                    f"for (i64 k = 0; k < {size}; ++k) {variable.name}[k] = {variable.start};"
                )

    def _print_loops(
        self,
        loops: list[Loop],
        one: Pass,
        found: list[Accumulator],
        totals: list[Accumulator],
        chunk: int,
        flushed: bool = False,
    ) -> None:
        """The r loops; sums are flushed once what is inside has at most `chunk` iterations."""
        count = 1
        for loop in loops:
            count *= loop.extent
        if totals and not flushed and count <= chunk:
            self._print_flushed(loops, one, found, totals, chunk)
            return
        if not loops:
            self._print_innermost(one, found)
            return
        loop, *rest = loops
        name = loop.name
        inner = count // max(loop.extent, 1)
        if totals and not flushed and inner <= chunk // 2:
            step = max(1, chunk // max(inner, 1))
            head = f"for (i64 {name}b = 0; {name}b < {loop.extent}; {name}b += {step}) {{"
            with self.writer.block(head):
                limit = f"{name}b + {step}"
                end = f"({limit} < {loop.extent} ? {limit} : {loop.extent})"
                self.writer.line(f"const i64 {name}e = {end};")
                self._print_flushed(loops, one, found, totals, chunk, (f"{name}b", f"{name}e"))
            return
        with self._loop(loop, rest, found, ("0", str(loop.extent))):
            self.scope.print_ready(self._hoisted(one))
            self._print_loops(rest, one, found, totals, chunk, flushed)

    def _print_flushed(
        self,
        loops: list[Loop],
        one: Pass,
        found: list[Accumulator],
        totals: list[Accumulator],
        chunk: int,
        bounds: tuple[str, str] | None = None,
    ) -> None:
        for accumulator in totals:
            self._declare(accumulator.variables)
        if loops and bounds is not None:
            loop, *rest = loops
            with self._loop(loop, rest, found, bounds):
                self.scope.print_ready(self._hoisted(one))
                self._print_loops(rest, one, found, totals, chunk, flushed=True)
        else:
            self._print_loops(loops, one, found, totals, chunk, flushed=True)
        for accumulator in totals:
            (variable,) = accumulator.variables
            name = accumulator.total.name
            if self.plan.tile is None:
                self.writer.line(f"{name} += {variable.name};")
            else:
                size = self.plan.block
                self.writer.line("#pragma omp simd")
                self.writer.line(
                    f"for (i64 k = 0; k < {size}; ++k) {name}[k] += {variable.name}[k];"
                )

    @contextmanager
    def _loop(
        self, loop: Loop, rest: list[Loop], found: list[Accumulator], bounds: tuple[str, str]
    ) -> Iterator[None]:
        name, (begin, end) = loop.name, bounds
        vector = not rest and self.plan.tile is None and not may_collide(self.nest)
        if vector and all(a.vectorizes() for a in found):
            clauses = "".join(
                f" reduction({v.combine}:{v.name})" for a in found for v in a.variables
            )
            self.writer.line(simd_pragma(self.nest, clauses))
        with self.writer.block(f"for (i64 {name} = {begin}; {name} < {end}; ++{name}) {{"):
            with self.scope.nested(name):
                yield

    def _hoisted(self, one: Pass) -> tuple[int, ...]:
        return one.members

    def _print_innermost(self, one: Pass, found: list[Accumulator]) -> None:
        with self._lanes():
            self.scope.print_ready(self.phases.before)
            self.scope.print_ready(one.members, stores=True)
            for accumulator in found:
                op = self.nest.ops[accumulator.position]
                for line in accumulator.update:
                    for arg in op.args:
                        line = line.replace(f"$${arg}$", self.scope.known[arg])
                    self.writer.line(line.replace(CELL, self.cell))

    def _finish(self, accumulator: Accumulator, flushed: bool) -> None:
        """The value of a reduction; in a tile it is kept in memory."""
        kind = value_type(accumulator.dtype)
        text = f"({kind}){accumulator.total.name}{CELL}" if flushed else accumulator.result
        position = accumulator.position
        if self.plan.tile is None:
            self.writer.line(f"const {kind} v{position} = {text.replace(CELL, '')};")
            self.scope.known[position] = f"v{position}"
            return
        size = self.plan.block
        self.writer.line(f"alignas(64) {kind} w{position}[{size}];")
        self.writer.line(
            f"for (i64 k = 0; k < {size}; ++k) w{position}[k] = {text.replace(CELL, '[k]')};"
        )
        self.tiled[position] = f"w{position}"
