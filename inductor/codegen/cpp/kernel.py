"""A whole kernel as C++: parts that each do a share of the work, and the function that calls them.

    static void NAME_part0(Runtime* rt, BUFFERS, i64 begin, i64 end) { one share }
    static int NAME(Runtime* rt, BUFFERS) { all shares, in parallel if it is worth it }

With outer loops the only part walks all stages for a share of the outer iterations; without, or
where there are few large ones, every stage is a part of its own (or two) and locals are memory that
the parts share. The outer loops of a single stage are loops of it. Buffers of different names must
not overlap, and are called arg0.., const0.., buf0..: not as the variables here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod

import torch

from inductor.codegen.cpp.collisions import apart_loops, may_collide
from inductor.codegen.cpp.nest import Nest, make_nest
from inductor.codegen.cpp.pointwise import plan_levels, print_pointwise
from inductor.codegen.cpp.reduction import plan_reduction, reduces
from inductor.codegen.cpp.rewrite import split_arg_reductions
from inductor.codegen.cpp.scope import Scope, Writer, checked_ops, error_name
from inductor.codegen.cpp.shares import (
    count_items,
    decode,
    print_reduction,
    share_merged,
    share_partial,
    share_pointwise,
    share_reduction,
    wants_split,
)
from inductor.codegen.cpp.types import memory_type
from inductor.codegen.cpp.work import count_threads, stage_work
from inductor.ir.body import IndirectVar, LoopBody
from inductor.ir.extent import Extent, hint_of, surely_less
from inductor.ir.graph import Layout
from inductor.ir.index import Index, print_cpp
from inductor.scheduler.schedule import Kernel

# Chosen, not measured: a local array up to this size lies on the stack; so do the first bytes of
# a row of symbolic size, of which longer rows are allocated.
STACK_BYTES = 1 << 16
SHORT_ROW_BYTES = 1 << 13
SHORT_ROW = 64  # elements of a row whose loop is worth a version of constant length
SIZES = {"f64": 8, "i64": 8, "u64": 8, "f32": 4, "i32": 4, "u32": 4, "i16": 2, "u16": 2, "f16": 2}


@dataclass(frozen=True, slots=True)
class KernelSource:
    """Text of a function `static int name(Runtime* rt, parameters)`.

    parameters: names of buffers in the order of the arguments; types: C++ type of each argument;
    symbols: sizes known at a call, which are the last parameters; begins: the elements before those
    that are passed, if there are any.
    """

    name: str
    text: str
    parameters: tuple[str, ...]
    types: tuple[str, ...]
    symbols: tuple[str, ...] = ()
    begins: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Shared:
    """Memory that the parts of one call share."""

    name: str
    type: str
    elements: int


@dataclass(frozen=True, slots=True)
class Part:
    """A function over `items` units of work, shared among `threads`; work: of all together;
    words: all names in the lines."""

    name: str
    lines: tuple[str, ...]
    words: frozenset[str]
    items: int
    align: int
    threads: int
    work: int
    shared: tuple[Shared, ...] = ()


def print_kernel(kernel: Kernel, layouts: Mapping[str, Layout], threads: int) -> KernelSource:
    """The C++ function of a kernel. `layouts`: dtype of each buffer that it touches."""
    written = kernel.writes()
    parameters = tuple(dict.fromkeys((*kernel.reads(), *written)))
    types = tuple(pointer_type(layouts[name].dtype, name in written) for name in parameters)
    printer = KernelPrinter(kernel, threads)
    declared = dict(zip(parameters, types, strict=True))
    known = declared | {x.name: f"{x.type}*" for x in printer.shared_memory()}
    if not (printer.folded or printer.by_row):
        known |= {f"o{n}": "i64" for n, size in enumerate(kernel.outer) if size != 1}
    symbols = printer.symbols()
    known |= dict.fromkeys(symbols, "i64")
    lines: list[str] = []
    for part in printer.parts:
        arguments = [f"{kind} {name}" for name, kind in known.items() if name in part.words]
        head = ", ".join(["Runtime* rt", *arguments, "i64 begin", "i64 end"])
        guess = {name: hint for name, hint in printer.guess.items() if name in part.words}
        lines += _print_part(part, head, [name for name in known if name in part.words], guess)
    declared |= dict.fromkeys(symbols, "i64")
    head = ", ".join(["Runtime* rt", *(f"{kind} {name}" for name, kind in declared.items())])
    lines += [f"static int {kernel.name}({head}) {{", *printer.caller(list(known)), "}"]
    return KernelSource(kernel.name, "\n".join(lines) + "\n", parameters, types, symbols)


def _print_part(part: Part, head: str, names: list[str], guess: Mapping[str, int]) -> list[str]:
    """The function of a part; one for the sizes of the compile is a branch of it."""
    start = f"static __attribute__((noipa)) void {part.name}({head}) {{"
    if not guess:
        return [start, *part.lines, "}"]
    constant = [str(guess.get(name, name)) for name in names]
    condition = " && ".join(f"{name} == {hint}" for name, hint in guess.items())
    return [
        f"K_INLINE void {part.name}_body({head}) {{", *part.lines, "}", start,
        f"  if ({condition}) {part.name}_body({', '.join(['rt', *constant, 'begin', 'end'])});",
        f"  else {part.name}_body({', '.join(['rt', *names, 'begin', 'end'])});", "}",
    ]


def _short_rows(kernel: Kernel) -> dict[str, int]:
    """Symbols of innermost loops that are short at the sizes of the compile, and these sizes."""
    found: dict[str, int] = {}
    for stage in kernel.stages:
        last = (*stage.ranges, *stage.reduction_ranges)[-1:]
        for size in last:
            if type(size) is Extent and hint_of(size) <= SHORT_ROW:
                hints = size.sizes.hints
                found |= {name: hints[name] for name in SYMBOL.findall(str(size))}
    return dict(sorted(found.items()))


def pointer_type(dtype: torch.dtype, written: bool) -> str:
    kind = memory_type(dtype)
    return f"{kind}*" if written else f"const {kind}* __restrict__"


WORD = re.compile(r"[A-Za-z_]\w*")
SYMBOL = re.compile(r"k\d+")


def _words(lines: Iterable[str]) -> frozenset[str]:
    return frozenset(WORD.findall("\n".join(lines)))


class KernelPrinter:
    """Prints the parts of one kernel."""

    def __init__(self, kernel: Kernel, threads: int) -> None:
        self.kernel = kernel
        self.threads = threads
        self.locals = {local.name: local for local in kernel.locals}
        self.folded = len(kernel.stages) == 1 and not kernel.locals
        rows = prod(kernel.outer)
        few = surely_less(rows, threads) and count_threads(self._row_work(), threads) > 1
        self.by_row = not self.folded and rows > 1 and not few
        self.parts: list[Part] = []
        self.guess = _short_rows(kernel)
        if self.by_row:
            self._add_row_part()
        elif rows != 0:
            for stage in kernel.stages:
                self._add_stage_parts(stage)

    def _row_work(self) -> int:
        """Work of one outer iteration."""
        return sum(stage_work(stage) for stage in self.kernel.stages)

    def memory(self, buffer: str, index: Index) -> str:
        local = self.locals.get(buffer)
        if local is not None and local.elements == 1 and self.by_row:
            return buffer
        return f"{buffer}[{print_cpp(index)}]"

    def shared_memory(self) -> list[Shared]:
        """Memory that the kernel's function makes and the parts get."""
        own = [Shared(x.name, memory_type(x.dtype), x.elements) for x in self.kernel.locals]
        return ([] if self.by_row else own) + [x for part in self.parts for x in part.shared]

    def symbols(self) -> tuple[str, ...]:
        """The sizes (`k0`, `k1`, ..) that the text uses."""
        numbers = [*self.kernel.outer, *(x.elements for x in self.shared_memory())]
        numbers += [number for part in self.parts for number in (part.items, part.work)]
        words = _words([str(number) for number in numbers if type(number) is Extent])
        words = words.union(*(part.words for part in self.parts))
        return tuple(sorted(word for word in words if SYMBOL.fullmatch(word)))

    def caller(self, known: list[str]) -> list[str]:
        """The lines of the kernel's own function."""
        writer = Writer()
        if self.kernel.may_fail():
            writer.line("rt->error_code = 0;")
        ends = []
        for memory in self.shared_memory():
            ends += _declare(writer, memory)
        with self._rows(writer):
            for part in self.parts:
                self._call(writer, part, ["rt", *(name for name in known if name in part.words)])
        for line in ends:
            writer.line(line)
        writer.line("return rt->error_code != 0;" if self.kernel.may_fail() else "return 0;")
        return writer.lines

    @contextmanager
    def _rows(self, writer: Writer) -> Iterator[None]:
        """The loop over few outer iterations whose stages are shared among threads."""
        rows = prod(self.kernel.outer)
        if self.folded or self.by_row or rows in (0, 1):
            yield
            return
        with writer.block(f"for (i64 p = 0; p < {rows}; ++p) {{"):
            decode(writer, [(f"o{n}", size, 1) for n, size in enumerate(self.kernel.outer)])
            yield

    def _call(self, writer: Writer, part: Part, names: list[str]) -> None:
        alone = f"{part.name}({', '.join(names)}, 0, {part.items});"
        if part.threads < 2 or surely_less(part.items, 2):
            writer.line(alone)
        elif Extent in (type(part.work), type(part.items)):
            with writer.block("{"):
                count = f"k_threads({part.work}, {part.items}, {part.threads})"
                writer.line(f"const i64 count = {count};")
                writer.line(f"if (count < 2) {alone}")
                with writer.block("else {"):
                    self._call_shared(writer, part, names, "count")
        else:
            self._call_shared(writer, part, names, str(min(part.threads, part.items)))

    def _call_shared(self, writer: Writer, part: Part, names: list[str], threads: str) -> None:
        writer.line(f"#pragma omp parallel num_threads({threads})")
        with writer.block("{"):
            writer.line("const i64 t = omp_get_thread_num(), n = omp_get_num_threads();")
            shares = [f"k_share({part.items}, {part.align}, {x}, n)" for x in ("t", "t + 1")]
            writer.line(f"{part.name}({', '.join([*names, *shares])});")

    def _add(
        self, writer: Writer, items: int, align: int, threads: int, work: int, *shared: Shared
    ) -> None:
        name = f"{self.kernel.name}_part{len(self.parts)}"
        lines = tuple(writer.lines)
        self.parts.append(Part(name, lines, _words(lines), items, align, threads, work, shared))

    def _add_row_part(self) -> None:
        """All stages for a share of the outer iterations."""
        writer, outer = Writer(), self.kernel.outer
        items = prod(outer)
        ends: list[str] = []
        for local in self.kernel.locals:
            if local.elements != 1:
                memory = Shared(local.name, memory_type(local.dtype), local.elements)
                ends += _declare(writer, memory)
        collides = False
        with writer.block("for (i64 p = begin; p < end; ++p) {"):
            decode(writer, [(f"o{n}", size, 1) for n, size in enumerate(outer)])
            for local in self.kernel.locals:
                if local.elements == 1:
                    writer.line(f"{memory_type(local.dtype)} {local.name} = {{}};")
            for stage in self.kernel.stages:
                nest = prepare_nest(stage, outer, fold_outer=False)
                collides |= may_collide(nest)
                if not _is_empty(nest):
                    with writer.block("{"):
                        self._print_nest(writer, nest)
        for line in ends:
            writer.line(line)
        work = items * self._row_work()
        self._add(writer, items, 1, 1 if collides else count_threads(work, self.threads), work)

    def _print_nest(self, writer: Writer, nest: Nest) -> None:
        """A stage inside of open outer loops."""
        scope = Scope(nest, writer, self.memory)
        _open_errors(writer, nest)
        if reduces(nest):
            plan = plan_reduction(nest)
            print_reduction(scope, plan, plan.outer)
        else:
            print_pointwise(scope, plan_levels(nest))
        _close_errors(writer, nest)

    def _add_stage_parts(self, stage: LoopBody) -> None:
        """One stage for a share of its own iterations."""
        nest = prepare_nest(stage, self.kernel.outer, self.folded)
        if _is_empty(nest):
            return
        work = stage_work(stage) * (prod(self.kernel.outer) if self.folded else 1)
        threads = count_threads(work, self.threads)
        if may_collide(nest) and (reduces(nest) or not apart_loops(nest)):
            threads = 1
        if reduces(nest) and wants_split(nest, plan_reduction(nest), threads):
            self._add_split_parts(nest, threads, work)
            return
        writer = Writer()
        scope = Scope(nest, writer, self.memory)
        _open_errors(writer, nest)
        if reduces(nest):
            items, align = share_reduction(scope, plan_reduction(nest)), 1
        else:
            items, align = share_pointwise(scope, plan_levels(nest), threads)
        _close_errors(writer, nest)
        self._add(writer, items, align, threads, work)

    def _add_split_parts(self, nest: Nest, threads: int, work: int) -> None:
        """A reduction over few or no plain loops: the r loops are shared, results merged."""
        plan = plan_reduction(nest)
        writer = Writer()
        _open_errors(writer, nest)
        variables = share_partial(Scope(nest, writer, self.memory), plan, threads)
        _close_errors(writer, nest)
        count = threads * count_items(plan) * (plan.block if plan.tile else 1)
        number = len(self.parts)
        names = {f"q_{v.name}": f"q{number}_{v.name}" for v in variables}
        shared = [Shared(names[f"q_{v.name}"], v.type, count) for v in variables]
        writer.lines[:] = [_renamed(line, names) for line in writer.lines]
        self._add(writer, threads, 1, threads, work, *shared)
        writer = Writer()
        _open_errors(writer, nest)
        items = share_merged(Scope(nest, writer, self.memory), plan, threads)
        _close_errors(writer, nest)
        writer.lines[:] = [_renamed(line, names) for line in writer.lines]
        self._add(writer, items, 1, 1, 0)


def prepare_nest(stage: LoopBody, outer: tuple[int, ...], fold_outer: bool) -> Nest:
    """The nest of a stage in the form in which it is printed."""
    nest = make_nest(stage, outer, fold_outer)
    if reduces(nest) and plan_reduction(nest).tile is None:
        return split_arg_reductions(nest)
    return nest


def _renamed(line: str, names: Mapping[str, str]) -> str:
    for old, new in names.items():
        line = line.replace(f"{old}[", f"{new}[")
    return line


def _declare(writer: Writer, memory: Shared) -> list[str]:
    """Lines that free it come back."""
    size = memory.elements
    width = SIZES.get(memory.type, 2)
    name = memory.name
    if type(size) is Extent:
        small = SHORT_ROW_BYTES // width
        writer.line(f"alignas(64) {memory.type} {name}_short[{small}];")
        room = f"({size} * {width} + 63) / 64 * 64"
        text = f"({memory.type}*)K_ALLOCATE(64, {room})"
        writer.line(f"{memory.type}* {name} = {size} <= {small} ? {name}_short : {text};")
        return [f"if ({name} != {name}_short) K_FREE({name});"]
    size = max(size, 1)
    if size * width <= STACK_BYTES:
        writer.line(f"alignas(64) {memory.type} {memory.name}[{size}];")
        return []
    whole = -(-size * width // 64) * 64
    text = f"({memory.type}*)K_ALLOCATE(64, {whole})"
    writer.line(f"{memory.type}* {name} = {text};")
    return [f"K_FREE({name});"]


def _is_empty(nest: Nest) -> bool:
    return any(loop.extent == 0 for loop in nest.of_kind("i"))


def _open_errors(writer: Writer, nest: Nest) -> None:
    for op in checked_ops(nest):
        writer.line(f"i64 {error_name(op)} = K_NO_ERROR;")


def _close_errors(writer: Writer, nest: Nest) -> None:
    for op in checked_ops(nest):
        assert isinstance(op.imm, IndirectVar)
        name, fault = error_name(op), int(op.imm.error)
        writer.line(f"if ({name} != K_NO_ERROR) k_fail(rt, {name}, {op.imm.var.size}, {fault});")
