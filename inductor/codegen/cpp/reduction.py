"""Stages with reduction: a strategy, and the loops that carry it out.

*row*: an r loop is the innermost one and is vectorised; one accumulator for each i.
*column*: an i loop is the innermost one, walked in blocks; a tile of accumulators, r loops around.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from math import prod

from inductor.codegen.cpp.accumulators import CELL, Accumulator, Variable, make_accumulator
from inductor.codegen.cpp.collisions import may_collide
from inductor.codegen.cpp.nest import Loop, Nest, indirect_variables, stride_in
from inductor.codegen.cpp.phases import Pass, Phases, acts, split_phases
from inductor.codegen.cpp.pointwise import BAD_STRIDE, simd_pragma
from inductor.codegen.cpp.scope import Scope, checked_ops
from inductor.codegen.cpp.strips import narrow_loads
from inductor.codegen.cpp.types import value_type
from inductor.ir.body import Op
from inductor.ir.extent import Extent, divides, hint_of, surely_less, up_to_multiple
from inductor.ir.index import variable as index_variable
from inductor.scheduler.split import find_parts, find_truths

# Chosen, not measured: elements of a row, and rows of columns, that are added up before their sum
# is added to that of all, which keeps rounding small.
ROW_CHUNK = 1024
COLUMN_CHUNK = 256
MOST_SHORT = 4 * ROW_CHUNK  # is little in each of the lanes
# Columns that are reduced side by side; extents that are dear innermost; partial results of a row:
# 16 elements of float32 are a cache line and a vector of AVX-512.
BLOCK = 64
SHORT = 16
LANES = 16
FOLDS = {"+": "sum", "*": "prod", "|": "or", "&": "and"}


@dataclass(frozen=True, slots=True)
class ReductionPlan:
    """`outer`: i loops around everything; `tile`: the i loop walked in blocks; `inner`: r loops."""

    outer: tuple[Loop, ...]
    tile: Loop | None
    inner: tuple[Loop, ...]
    block: int = BLOCK

    @property
    def blocks(self) -> int:
        return 1 if self.tile is None else up_to_multiple(self.tile.extent, self.block)


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
    block = BLOCK if type(tile.extent) is Extent else min(BLOCK, tile.extent)
    return ReductionPlan(rest, tile, inner, block)


def _cost(nest: Nest, loop: Loop) -> int:
    """How dear it is to have this loop innermost, for what runs inside of the r loops."""
    inner = {loop.name for loop in nest.of_kind("r")}
    indirect = indirect_variables(nest)
    cost = 2 if hint_of(loop.extent) < SHORT else 0
    for op, depends in zip(nest.ops, nest.depends, strict=True):
        if op.name in ("load", "store") and op.index is not None and depends & inner:
            step = stride_in(op.index, loop.name, indirect)
            cost += BAD_STRIDE if step is None or abs(hint_of(step)) > 1 else 0
    return cost


class ReductionPrinter:
    """Prints one reduction stage inside of the loops `plan.outer`."""

    def __init__(self, scope: Scope, plan: ReductionPlan) -> None:
        self.scope = scope
        self.nest = scope.nest
        self.writer = scope.writer
        self.plan = plan
        self.phases: Phases = split_phases(self.nest)
        self.chunk = COLUMN_CHUNK if plan.tile else ROW_CHUNK
        self.share = ("0", str(plan.inner[0].extent)) if plan.inner else ("0", "0")
        self.flushed: dict[int, Accumulator] = {}
        self.lanes = 0
        self.width = ""  # the lanes in the text
        self.truths: dict[int, str] = {}  # comparisons that are constant in the open loop
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
        skipped = self._skipped_where(one)
        if not skipped:
            for accumulator in self._reduce(one):
                self._finish(accumulator)
            return
        names = {n: f"z{n}" for n in one.reductions}
        for position, name in names.items():
            self.writer.line(f"{value_type(self.nest.ops[position].dtype)} {name} = 0;")
        with self.writer.block(f"if (!{skipped}) {{"), self.scope.nested():
            for accumulator in self._reduce(one):
                self._finish(accumulator)
                position = accumulator.position
                self.writer.line(f"{names[position]} = {self.scope.known[position]};")
        self.scope.known.update(names)

    def _skipped_where(self, one: Pass) -> str:
        """The condition under which all terms of the pass are 0; "" where there is none. It is
        evaluated once for a row, so that a pass costs nothing where it is not needed."""
        ops = self.nest.ops
        sums = [ops[n] for n in one.reductions if ops[n].imm == "sum"]
        conditions = {self._zero_where(ops[op.args[0]]) for op in sums}
        if self.plan.tile is not None or len(sums) != len(one.reductions) or len(conditions) != 1:
            return ""
        return "" if any(acts(self.nest, n) for n in one.members) else conditions.pop()

    def _zero_where(self, term: Op) -> str:
        """The condition outside of the r loops under which a term is 0."""
        if term.name != "where":
            return ""
        zero = self.nest.ops[term.args[1]]
        is_zero = zero.name == "constant" and zero.imm == 0
        return self.scope.known.get(term.args[0], "") if is_zero else ""

    def _reduce(self, one: Pass) -> list[Accumulator]:
        """The accumulators of a pass, after its r loops."""
        found = self._accumulators(one)
        wide = [a for a in found if a.position not in self.flushed]
        for accumulator in found:
            self._declare(accumulator.variables, lanes=accumulator in wide)
        if all(loop.extent != 0 for loop in self.plan.inner):
            self._print_short_or_long(list(self.plan.inner), one, found)
        for variable in (v for a in wide for v in a.variables if self.lanes):
            self.writer.line(f"const {variable.type} {variable.name} = {_fold(variable)};")
        return found

    def _accumulators(self, one: Pass) -> list[Accumulator]:
        """The accumulators of a pass; sums over more than one chunk have a total."""
        count = prod(loop.extent for loop in self.plan.inner)
        found = [self._make(n) for n in one.reductions]
        self.flushed = {a.position: a for a in found if a.chunked and not self._fits(count)}
        self.lanes = self._count_lanes(found)
        # An extreme has two variables: with more lanes they would not stay in registers.
        narrow = self.lanes > LANES and any(a.sticky for a in found)
        self.width = "K_PAIR" if narrow else str(self.lanes)
        found = [a.without_flag() if self.lanes else a for a in found]
        return [a.with_total() if a.position in self.flushed else a for a in found]

    def _fits(self, count: int, parts: int = 1) -> bool:
        """Whether so many iterations are at most a part of a chunk, for all sizes."""
        return surely_less(count, self.chunk // parts + 1)

    def _count_lanes(self, accumulators: Sequence[Accumulator]) -> int:
        """How many accumulators stand side by side in a row; 0: OpenMP makes them up.

        Those of OpenMP are put together one by one, which shows in short rows.
        """
        if self.plan.tile is not None or not self.plan.inner or not accumulators:
            return 0
        if checked_ops(self.nest) or may_collide(self.nest):
            return 0
        if not all(a.vectorizes() for a in accumulators):
            return 0
        return lanes_in(self.plan.inner[-1].extent)

    def _make(self, position: int) -> Accumulator:
        op = self.nest.ops[position]
        values = tuple(f"$${arg}$" for arg in op.args)
        return make_accumulator(position, op, values, self.nest.ops[op.args[0]])

    def _declare(self, variables: Sequence[Variable], lanes: bool = False) -> None:
        for variable in variables:
            if self.plan.tile is not None:
                size = self.plan.block
                self.writer.line(f"alignas(64) {variable.type} {variable.name}[{size}];")
                self._for_lanes(f"{variable.name}{CELL} = {variable.start};")
            elif lanes and self.lanes:
                name = f"{variable.name}_l"
                self.writer.line(f"alignas(64) {variable.type} {name}[{self.width}];")
                head = f"for (i64 k = 0; k < {self.width}; ++k)"
                self.writer.line(f"{head} {name}[k] = {variable.start};")
            else:
                self.writer.line(f"{variable.type} {variable.name} = {variable.start};")

    def _print_short_or_long(
        self, loops: list[Loop], one: Pass, accumulators: list[Accumulator]
    ) -> None:
        """The r loops; twice where rows are likely so short that chunks would cost as much."""
        count = prod(loop.extent for loop in loops)
        if not self.flushed or not self.lanes or hint_of(count) > ROW_CHUNK:
            self._print_loops(loops, one, accumulators)
            return
        with self.writer.block(f"if ({count} <= {MOST_SHORT}) {{"), self.scope.nested():
            self._print_chunk(loops, one, accumulators)
        with self.writer.block("else {"), self.scope.nested():
            self._print_loops(loops, one, accumulators)

    def _print_loops(
        self, loops: list[Loop], one: Pass, accumulators: list[Accumulator], inside: bool = False
    ) -> None:
        """The r loops; sums are flushed once what is inside has at most `chunk` iterations.

        inside: of a chunk, or there are no sums to flush.
        """
        inside = inside or not self.flushed
        count = prod(loop.extent for loop in loops)
        if not inside and self._fits(count):
            self._print_chunk(loops, one, accumulators)
            return
        if not loops:
            self._print_innermost(one, accumulators)
            return
        loop, *rest = loops
        begin, end = self.share if loop is self.plan.inner[0] else ("0", str(loop.extent))
        within = count // loop.extent
        if not inside and self._fits(within, 2):
            step, name = max(1, self.chunk // within), loop.name
            head = f"for (i64 {name}b = {begin}; {name}b < {end}; {name}b += {step}) {{"
            with self.writer.block(head):
                limit = f"{name}b + {step}"
                self.writer.line(f"const i64 {name}e = {limit} < {end} ? {limit} : {end};")
                self._print_chunk(loops, one, accumulators, (f"{name}b", f"{name}e"))
            return
        for opened in self._loops(loop, rest, one, accumulators, (begin, end)):
            with opened:
                self.scope.print_ready(one.members)
                self._print_loops(rest, one, accumulators, inside)

    def _print_chunk(
        self,
        loops: list[Loop],
        one: Pass,
        accumulators: list[Accumulator],
        bounds: tuple[str, str] | None = None,
    ) -> None:
        """Sums of their own, added to the totals at the end."""
        narrow = [self.flushed.get(a.position, a) for a in accumulators]
        for accumulator in self.flushed.values():
            self._declare(accumulator.variables, lanes=True)
        if bounds is not None:
            loop, *rest = loops
            for opened in self._loops(loop, rest, one, narrow, bounds):
                with opened:
                    self.scope.print_ready(one.members)
                    self._print_loops(rest, one, narrow, inside=True)
        else:
            self._print_loops(loops, one, narrow, inside=True)
        for accumulator in self.flushed.values():
            (variable,) = accumulator.variables
            value = _fold(variable) if self.lanes else f"{variable.name}{CELL}"
            self._for_lanes(f"{accumulator.total.name}{CELL} += {value};")

    def _for_lanes(self, line: str) -> None:
        """A statement for the scalar, or for each lane of the tile."""
        if self.plan.tile is None:
            self.writer.line(line.replace(CELL, ""))
        else:
            text = line.replace(CELL, "[k]")
            self.writer.line(f"for (i64 k = 0; k < {self.plan.block}; ++k) {{ {text} }}")

    def _loops(
        self, loop: Loop, rest: list[Loop], one: Pass, accumulators: list[Accumulator],
        bounds: tuple[str, str],
    ) -> Iterator[AbstractContextManager[None]]:
        """The loop, to be filled; one for each part of it in which comparisons are constant."""
        if rest or not self.lanes:
            yield self._loop(loop, rest, accumulators, bounds)
            return
        parts = find_parts(self.nest.ops, loop.name, loop.extent)
        if len(parts) == 1:
            yield from self._lane_loops(loop, one, bounds)
            return
        name, (begin, end) = f"{loop.name}p", bounds
        for start, stop in parts:
            with self.writer.block("{"):
                self.writer.line(f"const i64 {name} = ({begin}) < {start} ? {start} : {begin};")
                self.writer.line(f"const i64 {name}e = ({end}) < {stop} ? {end} : {stop};")
                truths = find_truths(self.nest.ops, loop.name, start, stop)
                self.truths = {n: str(truth).lower() for n, truth in truths.items()}
                yield from self._lane_loops(loop, one, (name, f"{name}e"), part=True)
                self.truths = {}

    def _lane_loops(
        self, loop: Loop, one: Pass, bounds: tuple[str, str], part: bool = False
    ) -> Iterator[AbstractContextManager[None]]:
        """The loop; two where what is left over by the lanes has one of its own."""
        name, (begin, end) = loop.name, bounds
        if not part and divides(self.lanes, loop.extent):
            yield self._lane_loop(loop, one, f"{begin}; {name}l < {end}")
            return
        whole = f"{name}w"
        steps = f"({end} - {begin}) / {self.lanes}"
        with self.writer.block("{"):
            self.writer.line(f"const i64 {whole} = {begin} + {steps} * {self.lanes};")
            yield self._lane_loop(loop, one, f"{begin}; {name}l < {whole}")
            yield self._rest_loop(name, whole, end)

    @contextmanager
    def _lane_loop(self, loop: Loop, one: Pass, bounds: str) -> Iterator[None]:
        name = loop.name
        with self.writer.block(f"for (i64 {name}l = {bounds}; {name}l += {self.width}) {{"):
            with self.scope.nested():
                narrow = narrow_loads(self.scope, name, one.members)
                self._widen(loop, narrow)
                self.writer.line("#pragma omp simd")
                with self.writer.block(f"for (i64 k = 0; k < {self.width}; ++k) {{"):
                    self.writer.line(f"const i64 {name} = {name}l + k;")
                    with self.scope.nested(name):
                        self.scope.known.update({n: f"h{n}[k]" for n in narrow})
                        self.scope.known.update(self.truths)
                        yield

    def _widen(self, loop: Loop, narrow: Sequence[int]) -> None:
        """Float32 of all lanes of these loads, in arrays called `h` and their positions."""
        first = index_variable(f"{loop.name}l", loop.extent)
        for position in narrow:
            op = self.nest.ops[position]
            assert op.index is not None
            place = self.scope.memory(op.buffer, op.index.substitute({loop.name: first}))
            self.writer.line(f"alignas(64) f32 h{position}[{self.width}];")
            self.writer.line(f"k_widen_strip(&{place}, h{position}, {self.width});")

    @contextmanager
    def _rest_loop(self, name: str, begin: str, end: str) -> Iterator[None]:
        """All lanes calculate, so that it is vector code; those beyond the end touch nothing."""
        with self.writer.block(f"if ({begin} < {end}) {{"):
            self.writer.line("#pragma omp simd")
            with self.writer.block(f"for (i64 k = 0; k < {self.lanes}; ++k) {{"):
                self.writer.line(f"const i64 {name} = {begin} + k;")
                self.writer.line(f"const bool in = {name} < {end};")
                with self.scope.nested(name):
                    self.scope.known.update(self.truths)
                    self.scope.guard = "in"
                    yield
                    self.scope.guard = ""

    @contextmanager
    def _loop(
        self, loop: Loop, rest: list[Loop], accumulators: list[Accumulator], bounds: tuple[str, str]
    ) -> Iterator[None]:
        name, (begin, end) = loop.name, bounds
        vector = not rest and self.plan.tile is None and not may_collide(self.nest)
        if vector and all(a.vectorizes() for a in accumulators):
            clauses = "".join(
                f" reduction({v.clause()}:{v.name})" for a in accumulators for v in a.variables
            )
            self.writer.line(simd_pragma(self.nest, clauses))
        with self.writer.block(f"for (i64 {name} = {begin}; {name} < {end}; ++{name}) {{"):
            with self.scope.nested(name):
                yield

    def _print_innermost(self, one: Pass, accumulators: list[Accumulator]) -> None:
        with self._lanes():
            self.scope.print_ready(self.phases.before)
            self.scope.print_ready(one.members, stores=True)
            for accumulator in accumulators:
                op = self.nest.ops[accumulator.position]
                for line in accumulator.update:
                    for arg in op.args:
                        value = self.scope.known[arg]
                        if self.scope.guard:
                            neutral = accumulator.variables[0].start
                            value = f"({self.scope.guard} ? {value} : {neutral})"
                        line = line.replace(f"$${arg}$", value)
                    self.writer.line(line.replace(CELL, "_l[k]" if self.lanes else self.cell))

    def _finish(self, accumulator: Accumulator) -> None:
        """The value of a reduction; in a tile it is kept in memory."""
        kind, position = value_type(accumulator.dtype), accumulator.position
        if self.plan.tile is None:
            text = accumulator.result.replace(CELL, "")
            self.writer.line(f"const {kind} v{position} = {text};")
            self.scope.known[position] = f"v{position}"
            return
        self.writer.line(f"alignas(64) {kind} w{position}[{self.plan.block}];")
        self._for_lanes(f"w{position}{CELL} = {accumulator.result};")
        self.tiled[position] = f"w{position}"

    def partial_variables(self) -> list[Variable]:
        """What a share of the r loops leaves for the others."""
        (one,) = self.phases.passes
        return [v for accumulator in self._accumulators(one) for v in accumulator.variables]

    def print_partial(self, share: tuple[str, str], place: str) -> None:
        """Reduce over a share of the first r loop; `place`: where partial results are kept."""
        (one,) = self.phases.passes
        self.share = share
        self._print_before()
        found = self._reduce(one)
        for variable in (v for accumulator in found for v in accumulator.variables):
            self._for_lanes(f"q_{variable.name}[{self._slot_of(place)}] = {variable.name}{CELL};")

    def print_merged(self, slots: int, place: str) -> None:
        """Put partial results together in order, and do what comes after."""
        (one,) = self.phases.passes
        found = self._accumulators(one)
        for accumulator in found:
            self._declare(accumulator.variables)
        with self.writer.block(f"for (i64 slot = 0; slot < {slots}; ++slot) {{"):
            for accumulator in found:
                for line in accumulator.merge:
                    for variable in accumulator.variables:
                        element = f"q_{variable.name}[{self._slot_of(place)}]"
                        line = line.replace(f"#{variable.name}#", element)
                    self._for_lanes(line)
        for accumulator in found:
            self._finish(accumulator)
        with self._lanes():
            self.scope.print_ready(self.phases.after, stores=True)

    def _slot_of(self, place: str) -> str:
        return f"({place}) * {self.plan.block} + k" if self.plan.tile else place


def lanes_in(extent: int) -> int:
    """How many accumulators suit a loop that is walked in steps of them; 0: none.

    They may leave something over.
    """
    if type(extent) is Extent:
        return LANES
    if extent < LANES:
        return 0
    return 2 * LANES if extent % (2 * LANES) == 0 and extent >= 16 * LANES else LANES


def _fold(variable: Variable) -> str:
    """All lanes of an accumulator put together."""
    combine = variable.combine
    return f"k_lanes_{FOLDS.get(combine, combine)}({variable.name}_l)"


def reduces(nest: Nest) -> bool:
    """Whether a nest belongs here; its r loops may all have had one iteration and be gone."""
    return bool(nest.of_kind("r")) or any(op.name == "reduction" for op in nest.ops)
