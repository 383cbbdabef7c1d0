"""A whole kernel as C++: parts that each do a share of the work, and the function that calls them.

    static void NAME_part0(Runtime* rt, BUFFERS, i64 begin, i64 end) { one share }
    static int NAME(Runtime* rt, BUFFERS) { all shares, in parallel if it is worth it }

With outer loops the only part walks all stages for a share of the outer iterations; without, every
stage is a part of its own and locals are memory that the parts share. Buffers of different names
must not overlap.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import torch

from inductor.codegen.cpp.nest import Loop, Nest, make_nest
from inductor.codegen.cpp.pointwise import may_collide, order_loops, print_pointwise
from inductor.codegen.cpp.reduction import ReductionPlan, ReductionPrinter, plan_reduction
from inductor.codegen.cpp.scope import Scope, Writer, checked_ops, error_name
from inductor.codegen.cpp.types import BYTES, memory_type
from inductor.ir.body import IndirectVar, LoopBody, Op
from inductor.ir.graph import Layout
from inductor.ir.index import Index, print_cpp
from inductor.scheduler.schedule import Kernel

PARALLEL_WORK = 1 << 14
STACK_BYTES = 1 << 16
DEAR = {"load": 1, "store": 1, "constant": 0, "add": 1, "sub": 1, "mul": 1, "to_dtype": 1}


@dataclass(frozen=True, slots=True)
class KernelSource:
    """Text of a function `static int name(Runtime* rt, parameters)`.

    parameters: names of buffers in the order of the arguments; types: C++ type of each argument.
    """

    name: str
    text: str
    parameters: tuple[str, ...]
    types: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """A function over `items` units of work that may be shared among threads."""

    name: str
    lines: tuple[str, ...]
    items: int
    align: int
    parallel: bool


def print_kernel(kernel: Kernel, layouts: Mapping[str, Layout], threads: int) -> KernelSource:
    """The C++ function of a kernel. `layouts`: dtype of each buffer that it touches."""
    written = kernel.writes()
    parameters = tuple(dict.fromkeys((*kernel.reads(), *written)))
    types = tuple(_pointer(layouts[name].dtype, name in written) for name in parameters)
    local_types = {local.name: memory_type(local.dtype) for local in kernel.locals}
    declared = [f"{t} {name}" for t, name in zip(types, parameters, strict=True)]
    printer = KernelPrinter(kernel, threads)
    shared = [] if printer.has_outer else [f"{t}* {n}" for n, t in local_types.items()]
    lines: list[str] = []
    for part in printer.parts():
        arguments = ", ".join(["Runtime* rt", *declared, *shared, "i64 begin", "i64 end"])
        lines.append(f"static __attribute__((noipa)) void {part.name}({arguments}) {{")
        lines += part.lines
        lines.append("}")
    lines.append(f"static int {kernel.name}({', '.join(['Runtime* rt', *declared])}) {{")
    lines += printer.caller(list(parameters))
    lines.append("}")
    return KernelSource(kernel.name, "\n".join(lines) + "\n", parameters, types)


def _pointer(dtype: torch.dtype, written: bool) -> str:
    kind = memory_type(dtype)
    return f"{kind}*" if written else f"const {kind}* __restrict__"


class KernelPrinter:
    """Prints the parts of one kernel."""

    def __init__(self, kernel: Kernel, threads: int) -> None:
        self.kernel = kernel
        self.threads = threads
        self.locals = {local.name: local for local in kernel.locals}
        single = len(kernel.stages) == 1 and not kernel.locals
        self.has_outer = prod(kernel.outer) != 1 and not single
        self.printed: list[Part] | None = None

    def parts(self) -> list[Part]:
        if self.printed is None:
            if self.has_outer:
                self.printed = [self._print_stages(f"{self.kernel.name}_part0")]
            else:
                self.printed = [
                    self._print_stage(f"{self.kernel.name}_part{n}", stage)
                    for n, stage in enumerate(self.kernel.stages)
                ]
        return [part for part in self.printed if part.items > 0]

    def memory(self, buffer: str, index: Index) -> str:
        local = self.locals.get(buffer)
        if local is not None and local.elements == 1 and self.has_outer:
            return buffer
        return f"{buffer}[{print_cpp(index)}]"

    def caller(self, parameters: list[str]) -> list[str]:
        """The lines of the kernel's own function."""
        writer = Writer()
        if self.kernel.may_fail():
            writer.line("rt->error_code = 0;")
        names = ["rt", *parameters]
        heap = []
        if not self.has_outer:
            names += self.locals
            for local in self.kernel.locals:
                heap += _declare_local(writer, local.name, local.dtype, local.elements)
        for part in self.parts():
            self._call(writer, part, names)
        for name in heap:
            writer.line(f"__builtin_free({name});")
        writer.line("return rt->error_code != 0;" if self.kernel.may_fail() else "return 0;")
        return writer.lines

    def _call(self, writer: Writer, part: Part, names: list[str]) -> None:
        if not part.parallel or self.threads < 2 or part.items < 2:
            writer.line(f"{part.name}({', '.join(names)}, 0, {part.items});")
            return
        writer.line(f"#pragma omp parallel num_threads({self.threads})  // k_threads")
        with writer.block("{"):
            writer.line("const i64 t = omp_get_thread_num(), n = omp_get_num_threads();")
            shares = [f"k_share({part.items}, {part.align}, {x}, n)" for x in ("t", "t + 1")]
            writer.line(f"{part.name}({', '.join([*names, *shares])});")

    def _print_stages(self, name: str) -> Part:
        """All stages for a share of the outer iterations."""
        writer, outer = Writer(), self.kernel.outer
        heap: list[str] = []
        for local in self.kernel.locals:
            if local.elements != 1:
                heap += _declare_local(writer, local.name, local.dtype, local.elements)
        collides = False
        with writer.block("for (i64 p = begin; p < end; ++p) {"):
            _decode(writer, [Loop(f"o{n}", size, "i") for n, size in enumerate(outer)])
            for local in self.kernel.locals:
                if local.elements == 1:
                    writer.line(f"{memory_type(local.dtype)} {local.name} = {{}};")
            for stage in self.kernel.stages:
                nest = make_nest(stage, outer, fold_outer=False)
                collides |= may_collide(nest)
                if not _is_empty(nest):
                    with writer.block("{"):
                        self._print_nest(writer, nest)
        for name_ in heap:
            writer.line(f"__builtin_free({name_});")
        items = prod(outer)
        work = items * sum(_work(stage) for stage in self.kernel.stages)
        parallel = work > PARALLEL_WORK and not collides
        return Part(name, tuple(writer.lines), items, 1, parallel)

    def _print_nest(self, writer: Writer, nest: Nest) -> None:
        """A stage inside of open outer loops."""
        scope = Scope(nest, writer, self.memory)
        _open_errors(writer, nest)
        if nest.of_kind("r") or _reduces(nest):
            plan = plan_reduction(nest)
            self._print_reduction_loops(scope, plan, list(plan.outer))
        else:
            print_pointwise(scope, order_loops(nest), {})
        _close_errors(writer, nest)

    def _print_reduction_loops(
        self, scope: Scope, plan: ReductionPlan, loops: list[Loop]
    ) -> None:
        if loops:
            loop, *rest = loops
            name = loop.name
            with scope.writer.block(f"for (i64 {name} = 0; {name} < {loop.extent}; ++{name}) {{"):
                with scope.nested(name):
                    self._print_reduction_loops(scope, plan, rest)
            return
        if plan.tile is None:
            ReductionPrinter(scope, plan).print_inside()
            return
        base, extent = f"{plan.tile.name}b", plan.tile.extent
        head = f"for (i64 {base} = 0; {base} < {extent}; {base} += {plan.block}) {{"
        with scope.writer.block(head):
            _print_block_end(scope.writer, plan.tile, plan.block)
            ReductionPrinter(scope, plan).print_inside()

    def _print_stage(self, name: str, stage: LoopBody) -> Part:
        """One stage for a share of its own iterations."""
        nest = make_nest(stage, self.kernel.outer, fold_outer=True)
        if _is_empty(nest):
            return Part(name, (), 0, 1, False)
        writer = Writer()
        _open_errors(writer, nest)
        scope = Scope(nest, writer, self.memory)
        parallel = _work(stage) * prod(self.kernel.outer) > PARALLEL_WORK and not may_collide(nest)
        if nest.of_kind("r") or _reduces(nest):
            items, align = self._share_reduction(scope, plan_reduction(nest)), 1
        else:
            items, align = self._share_pointwise(scope, order_loops(nest))
        _close_errors(writer, nest)
        return Part(name, tuple(writer.lines), items, align, parallel)

    def _share_pointwise(self, scope: Scope, loops: tuple[Loop, ...]) -> tuple[int, int]:
        """Print; the leading loops that are enough for all threads are shared."""
        if not loops:
            print_pointwise(scope, (), {})
            return 1, 1
        count = 1
        while count < len(loops) - 1 and prod(x.extent for x in loops[:count]) < 4 * self.threads:
            count += 1
        if count == 1:
            print_pointwise(scope, loops, {loops[0].name: ("begin", "end")})
            return loops[0].extent, 64 if len(loops) == 1 else 1
        with scope.writer.block("for (i64 p = begin; p < end; ++p) {"):
            _decode(scope.writer, list(loops[:count]))
            with scope.nested(*(loop.name for loop in loops[:count])):
                print_pointwise(scope, loops[count:], {})
        return prod(loop.extent for loop in loops[:count]), 1

    def _share_reduction(self, scope: Scope, plan: ReductionPlan) -> int:
        loops = list(plan.outer)
        if plan.tile is not None:
            blocks = -(-plan.tile.extent // plan.block)
            loops.append(Loop(f"{plan.tile.name}b", blocks, "i"))
        writer = scope.writer
        with writer.block("for (i64 p = begin; p < end; ++p) {"):
            _decode(writer, loops, plan.block if plan.tile else 1)
            with scope.nested(*(loop.name for loop in plan.outer)):
                if plan.tile is not None:
                    _print_block_end(writer, plan.tile, plan.block)
                ReductionPrinter(scope, plan).print_inside()
        return prod(loop.extent for loop in loops)


def _print_block_end(writer: Writer, tile: Loop, block: int) -> None:
    name, limit = tile.name, f"{tile.name}b + {block}"
    if tile.extent % block:
        limit = f"({limit} < {tile.extent} ? {limit} : {tile.extent})"
    writer.line(f"const i64 {name}e = {limit};")


def _decode(writer: Writer, loops: list[Loop], last_scale: int = 1) -> None:
    """The loop variables behind the flat number `p`; the last one is scaled."""
    rest = prod(loop.extent for loop in loops)
    for position, loop in enumerate(loops):
        rest //= loop.extent
        text = "p" if rest == 1 else f"p / {rest}"
        if position > 0 or not loops:
            text = f"({text}) % {loop.extent}"
        if position == len(loops) - 1 and last_scale != 1:
            text = f"{text} * {last_scale}"
        writer.line(f"const i64 {loop.name} = {text};")


def _declare_local(writer: Writer, name: str, dtype: torch.dtype, elements: int) -> list[str]:
    """Memory for a local; the name comes back if it has to be freed."""
    kind, size = memory_type(dtype), max(elements, 1)
    if size * BYTES[dtype] <= STACK_BYTES:
        writer.line(f"alignas(64) {kind} {name}[{size}];")
        return []
    room = -(-size * BYTES[dtype] // 64) * 64
    writer.line(f"{kind}* {name} = ({kind}*)__builtin_aligned_alloc(64, {room});")
    return [name]


def _is_empty(nest: Nest) -> bool:
    return any(loop.extent == 0 for loop in nest.of_kind("i"))


def _reduces(nest: Nest) -> bool:
    return any(op.name == "reduction" for op in nest.ops)


def _work(stage: LoopBody) -> int:
    weight = sum(_weigh(op) for op in stage.ops)
    return weight * prod(stage.ranges) * max(1, prod(stage.reduction_ranges))


def _weigh(op: Op) -> int:
    return DEAR.get(op.name, 2)


def _open_errors(writer: Writer, nest: Nest) -> None:
    for op in checked_ops(nest):
        writer.line(f"i64 {error_name(op)} = K_NO_ERROR;")


def _close_errors(writer: Writer, nest: Nest) -> None:
    for op in checked_ops(nest):
        assert isinstance(op.imm, IndirectVar)
        name = error_name(op)
        writer.line(f"if ({name} != K_NO_ERROR) k_fail(rt, {name}, {op.imm.var.size});")
