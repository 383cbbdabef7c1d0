"""The C++ function that runs a whole schedule, and the description that the launcher needs.

In: a schedule, its memory plan and its printed kernels. Out: the text of `run` and a dict in the
format of `runtime/csrc/spec.cpp`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import torch

from inductor.codegen.attention.spec import broadcast_steps
from inductor.codegen.cpp.attention import attention_declaration, attention_name
from inductor.codegen.cpp.convolution import (
    CHAIN_NAME,
    CONVOLUTION_DECLARATIONS,
    CONVOLUTION_NAME,
    DEPTHWISE_NAME,
    WINOGRAD_NAME,
)
from inductor.codegen.cpp.half_product import HALF_DECLARATION, HALF_NAME
from inductor.codegen.cpp.kernel import KernelSource
from inductor.codegen.cpp.own_calls import STACKS, SUMS, print_stack, print_sums
from inductor.codegen.cpp.product import (
    CHAIN_DECLARATION as PRODUCT_CHAIN_DECLARATION,
)
from inductor.codegen.cpp.product import (
    PRODUCT_DECLARATION,
    PRODUCT_NAME,
)
from inductor.codegen.cpp.types import literal, memory_type
from inductor.codegen.step_facts import Row, facts_of_step
from inductor.cpu_attention import OPERATOR as ATTENTION
from inductor.ir.convolutions import Geometry, geometry_of, is_own_convolution
from inductor.ir.graph import Argument, ExternKernel, Layout, LoopGraph, MultiOutput, ViewRef
from inductor.runtime.cpu_attention import HALF, facts_of
from inductor.scheduler.convolutions import bounds_of
from inductor.scheduler.memory import MemoryPlan
from inductor.scheduler.schedule import (
    ConvolutionChain,
    FusedConvolution,
    Kernel,
    ProductChain,
    Schedule,
    TemplateKernel,
)

HEAD = """\
extern "C" __attribute__((visibility("default"))) int run(Runtime* rt) {
  void** d = rt->data;
  rt->error_code = 0;
"""


SYMBOL = re.compile(r"\bk\d+\b")


@dataclass(frozen=True, slots=True)
class Wrapper:
    """text: of the function `run`; spec: for `Launcher`, with extents where sizes are known at a
    call (see `codegen/bind.py`)."""

    text: str
    spec: dict[str, Any]


def print_wrapper(
    name: str,
    graph: LoopGraph,
    schedule: Schedule,
    plan: MemoryPlan,
    kernels: Mapping[str, KernelSource],
    threads: int,
    epilogues: Mapping[str, KernelSource] = MappingProxyType({}),
) -> Wrapper:
    """The wrapper of a schedule; `kernels` by name; threads: for products of our own; epilogues:
    functions that these call, by the name of the kernel."""
    return _Writer(graph, schedule, plan, {**kernels, **epilogues}, threads).write(name)


@dataclass(frozen=True, slots=True)
class _Convolution:
    """Texts for a call of a convolution of our own. lines: tables; pointers: to x, weight, bias and
    the result. data: the `count` pointers that the epilogue gets; inner: bits for the result's."""

    call: ExternKernel
    geometry: Geometry
    lines: tuple[str, ...]
    pointers: tuple[str, ...]
    bounds: str
    epilogue: str
    data: str
    count: int
    inner: int


def _product_in(step: TemplateKernel | ExternKernel) -> tuple[ExternKernel, Kernel | None, str]:
    """The product of a step, what follows it, and where its result lies if not in its own
    buffer."""
    if isinstance(step, ExternKernel):
        return step, None, ""
    (part,) = step.parts
    return part.products[0].call, part.epilogue, part.target


class _Writer:
    def __init__(
        self,
        graph: LoopGraph,
        schedule: Schedule,
        plan: MemoryPlan,
        kernels: Mapping[str, KernelSource],
        threads: int,
    ) -> None:
        self.threads = threads
        self.graph = graph
        self.schedule = schedule
        self.plan = plan
        self.kernels = kernels
        self.layouts = graph.layouts()
        self.slot_of: dict[str, int] = {}
        self.slots: list[tuple[Any, ...]] = []
        self.views: dict[tuple[Any, ...], int] = {}
        self.externs: list[tuple[Any, ...]] = []
        self.called: list[int] = []  # externs that are not only for want of memory
        self.lines: list[str] = []
        self.steps: list[Row] = []
        self.declarations: set[str] = set()
        # What an operator returns and nobody looks at may have any size.
        self.used = {name for step in schedule.steps for name in step.reads()}
        self.used.update(o.buffer for o in graph.outputs if isinstance(o, ViewRef))
        self.symbols = {name for source in kernels.values() for name in source.symbols}

    def write(self, name: str) -> Wrapper:
        for buffer, place in self.plan.places.items():
            layout = self.layouts[buffer]
            self.slot_of[buffer] = len(self.slots)
            meta = (layout.dtype, layout.size, layout.stride)
            self.slots.append((place.kind, place.position, *meta))
        for position, step in enumerate(self.schedule.steps):
            facts = facts_of_step(step, self.layouts)
            if facts is not None:
                self.lines.append(f"  if (rt->step) rt->step(rt, {len(self.steps)});")
                self.steps.append(facts)
            if isinstance(step, Kernel):
                self._call_kernel(step)
            elif isinstance(step, FusedConvolution):
                self._call_convolution(step)
            elif isinstance(step, ConvolutionChain):
                self._call_convolution_chain(step)
            elif isinstance(step, ExternKernel) and is_own_convolution(step):
                self._call_convolution(step)
            elif isinstance(step, ExternKernel) and step.ours and step.target is STACKS:
                self._call_stack(step)
            elif isinstance(step, ExternKernel) and step.ours and step.target is SUMS:
                self._call_sums(step)
            elif isinstance(step, ExternKernel) and step.ours:
                self._call_product(step)
            elif isinstance(step, TemplateKernel):
                self._call_product(*_product_in(step))
            elif isinstance(step, ProductChain):
                self._call_product_chain(step)
            elif isinstance(step, ExternKernel) and step.target is ATTENTION:
                self._call_attention(step)
            elif isinstance(step, ExternKernel):
                self._call_extern(step)
            for dead in self.plan.dead_after.get(position, ()):
                self.lines.append(f"  rt->drop(rt, {self.slot_of[dead]});")
        spec = {
            "name": name,
            "lives": [(self.slot_of[x.name], x.first, x.last, x.bytes) for x in self.plan.lives],
            "arena_bytes": self.plan.arena_bytes,
            "release_gil": len(self.schedule.steps) > 4,
            "slots": self.slots,
            "views": [],
            "constants": [constant.value for constant in self.graph.constants],
            "externs": self.externs,
            "called": self.called,
            "outputs": [self._output(output) for output in self.graph.outputs],
            "steps": self.steps,
        }
        spec["views"] = list(self.views)
        head = [*sorted(self.declarations), HEAD, *self._sizes()]
        end = "  if (rt->step) rt->step(rt, -1);"
        lines = [*head, *self.lines, end, "  return 0;", "}", ""]
        return Wrapper("\n".join(lines), spec)

    def _sizes(self) -> list[str]:
        """Sizes known at a call are read from the last slot."""
        symbols = sorted(self.symbols)
        if not symbols:
            return []
        lines = [f"  const i64* sizes = (const i64*)d[{len(self.slots)}];"]
        return lines + [f"  const i64 {name} = sizes[{int(name[1:])}];" for name in symbols]

    def _call_kernel(self, kernel: Kernel) -> None:
        source = self.kernels[kernel.name]
        call = f"{source.name}({', '.join(['rt', *self._arguments(source), *source.symbols])})"
        self.lines.append(f"  if ({call}) return 1;" if kernel.may_fail() else f"  {call};")

    def _arguments(self, source: KernelSource) -> list[str]:
        """The pointers that a kernel gets."""
        arguments = [
            f"({kind.replace('__restrict__', '').strip()})d[{self.slot_of[buffer]}]"
            for buffer, kind in zip(source.parameters, source.types, strict=True)
        ]
        begins = source.begins or [0] * len(arguments)
        return [
            f"{argument} + {begin}" if begin else argument
            for argument, begin in zip(arguments, begins, strict=True)
        ]

    def _call_extern(self, step: ExternKernel) -> None:
        number = self._extern_number(step)
        self.called.append(number)
        self.lines.append(f"  if (rt->call(rt, {number})) return 1;  // {self.externs[-1][0]}")

    def _extern_number(self, step: ExternKernel, result: ViewRef | None = None) -> int:
        """result: what the operator writes into, if it has such an overload: its own buffer if
        that is not given."""
        target = self.plan.given.get(step.name, step.target)
        given = dict(step.kwargs)
        operands = []
        for position, argument in enumerate(target._schema.arguments):
            if position < len(step.args):
                value: Any = step.args[position]
            elif argument.name in given:
                value = given[argument.name]
            elif argument.is_out:
                value = result or self._whole(step.name)
            else:
                value = argument.default_value
            operands.append(self._operand(value))
        results = [-1] if step.name in self.plan.given else self._results(step)
        overload = target._overloadname
        overload = "" if overload == "default" else overload
        self.externs.append((target._schema.name, overload, operands, results))
        return len(self.externs) - 1

    def _call_product(
        self, step: ExternKernel, epilogue: Kernel | None = None, target: str = ""
    ) -> None:
        """target: the buffer for the result, if that is not the product's own."""
        assert step.layout is not None
        half = step.layout.dtype is HALF
        function = HALF_NAME if half else PRODUCT_NAME
        kind = "u16" if half else "f32"
        m, n, k, *_ = numbers = self._sides(step, kind)
        self.symbols.update(*(SYMBOL.findall(f"{number}") for number in numbers))
        whole = replace(self._whole(step.name), buffer=target or step.name)
        result = self._pointer(whole, kind)
        arguments = ", ".join(f"{n}" for n in (*numbers, result, self.threads))
        # Where it finds no memory for its copies the operator runs.
        instead = f"if (rt->call(rt, {self._extern_number(step, whole)})) return 1;"
        behind = "0, 0"
        if epilogue is not None:
            source, context = self.kernels[epilogue.name], f"c{len(self.lines)}"
            pointers = [f"(void*)({each})" for each in self._arguments(source)]
            self.lines.append(f"  void* {context}[] = {{{', '.join(pointers)}}};")
            behind = f"{source.name}, {context}"
            instead += f" {source.name}({context}, 0, {m}, 0, {n});"
        self.lines.append(f"  if ({function}({arguments}, {behind})) {{ {instead} }}")
        self.declarations.add(HALF_DECLARATION if half else PRODUCT_DECLARATION)

    def _sides(self, step: ExternKernel, kind: str) -> tuple[Any, ...]:
        """m, n, k, the left side and its strides, the right side and its strides, the bias."""
        *bias, x, weight = (view for view in step.args if isinstance(view, ViewRef))
        (m, k), n = x.size, weight.size[1]
        left, right = self._pointer(x, kind), self._pointer(weight, kind)
        strides, start = weight.stride, self._pointer(bias[0], kind) if bias else "0"
        if step.panels:
            right, strides = f"({kind}*)d[{self.slot_of[step.panels]}]", (0, 0)
        return (m, n, k, left, *x.stride, right, *strides, start)

    def _call_product_chain(self, chain: ProductChain) -> None:
        """Both products by one function; one behind the other, where that finds no memory."""
        at, links, sides = len(self.lines), [], []
        for number, step in enumerate(chain.links):
            call, epilogue, _ = _product_in(step)
            _, n, k, *left, right, row, column, start = self._sides(call, "f32")
            sides.append(left)
            behind, pointers = "0, 0", []
            if epilogue is not None:
                source = self.kernels[epilogue.name]
                pointers = [
                    "0" if buffer in chain.between else f"(void*)({argument})"
                    for buffer, argument in zip(
                        source.parameters, self._arguments(source), strict=True
                    )
                ]
                behind = f"{source.name}, p{at}_{number}"
                self.lines.append(f"  void* p{at}_{number}[] = {{{', '.join(pointers)}}};")
            numbers = (n, k, right, row, column, start, behind, len(pointers))
            links.append(f"{{{', '.join(map(str, numbers))}}}")
        call, _, target = _product_in(chain.links[-1])
        m, between = self.layouts[call.name].size[0], self._whole(*chain.between)
        result = self._pointer(self._whole(target or call.name))
        places = (m, *sides[0][:2], f"links{at}", self._pointer(between), result, self.threads)
        self.lines.append(f"  const ProductLink links{at}[] = {{{', '.join(links)}}};")
        self.lines.append(f"  if ({PRODUCT_NAME}_chain({', '.join(map(str, places))})) {{")
        for step in chain.links:
            self._call_product(*_product_in(step))
        self.lines.append("  }")
        self.declarations.add(PRODUCT_CHAIN_DECLARATION)

    def _call_stack(self, step: ExternKernel) -> None:
        x, weight = (view for view in step.args if isinstance(view, ViewRef))
        pointers = [self._pointer(view) for view in (x, weight, self._whole(step.name))]
        instead = f"rt->call(rt, {self._extern_number(step)})"
        self.lines += print_stack(x, weight, pointers, self.threads, instead)
        self.declarations.add(PRODUCT_DECLARATION)

    def _call_sums(self, step: ExternKernel) -> None:
        x, dim, *_ = step.args
        assert isinstance(x, ViewRef) and isinstance(dim, int) and step.layout is not None
        views = (x, self._whole(step.name))
        pointers = [self._pointer(view, memory_type(view.dtype)) for view in views]
        self.lines += print_sums(x, step.layout, dim, pointers)

    def _call_attention(self, step: ExternKernel) -> None:
        """The library's function; the operator, where that is not there or finds no memory."""
        views: Sequence[Any] = step.args[:5]
        rest: Sequence[Any] = step.args[5:]
        causal, scale, window, cap, nan_rows, fills, _ = rest
        q, k, v, bias, mask = views
        out = self._whole(step.name)
        assert isinstance(q, ViewRef) and isinstance(k, ViewRef) and isinstance(v, ViewRef)
        if any(x.size[3] != 1 and x.stride[3] != 1 for x in (q, k, v, out)):
            return self._call_extern(step)
        sizes = (*q.size[:2], k.size[1], q.size[2], *k.size[2:], v.size[3])
        added = [broadcast_steps(x.size, x.stride) if isinstance(x, ViewRef) else (0,) * 4
                 for x in (bias, mask)]  # fmt: skip
        strides = [x.stride[:3] for x in (q, k, v, out)]
        facts = facts_of(sizes, strides, added, causal, window, nan_rows, fills)
        name = f"facts{len(self.externs)}"
        half, half_bias = (isinstance(x, ViewRef) and x.dtype is HALF for x in (q, bias))
        places = [self._byte(x) if isinstance(x, ViewRef) else "0" for x in (*views, out)]
        values = ", ".join(map(str, (name, int(half_bias), *places, 0, scale, cap, self.threads)))
        function = attention_name(half)
        call = f"!{function} || {function}({values})"
        instead = f"rt->call(rt, {self._extern_number(step)})"
        self.lines.append(f"  static const i64 {name}[] = {{{', '.join(map(str, facts))}}};")
        self.lines.append(f"  if (({call}) && {instead}) return 1;")
        self.declarations.add(attention_declaration(half))

    def _byte(self, view: ViewRef) -> str:
        return f"(const u8*)d[{self.slot_of[view.buffer]}] + ({view.offset * view.dtype.itemsize})"

    def _call_convolution(self, link: ExternKernel | FusedConvolution) -> None:
        given = self._convolution(link, "")
        function = CONVOLUTION_NAME
        if given.call.winograd:
            function = WINOGRAD_NAME
        elif given.geometry.is_depthwise():
            function = DEPTHWISE_NAME
        bounds = [] if given.call.winograd else [given.bounds]
        arguments = ("sizes", *given.pointers, *bounds, given.epilogue, given.data)
        text = ", ".join((*arguments, str(self.threads)))
        self.lines += ["  {", *given.lines, f"    {function}({text}); }}"]
        self.declarations.add(CONVOLUTION_DECLARATIONS[function])

    def _call_convolution_chain(self, chain: ConvolutionChain) -> None:
        rows = []
        self.lines.append("  {")
        for n, link in enumerate(chain.links):
            given = self._convolution(link, str(n))
            inner = 0 if n + 1 == len(chain.links) else given.inner
            facts = map(str, (given.count, inner, int(given.geometry.is_depthwise())))
            row = (f"sizes{n}", *given.pointers, given.bounds, given.epilogue, given.data, *facts)
            rows.append(f"{{{', '.join(row)}}}")
            self.lines += given.lines
        self.lines.append(f"    const ConvolutionStage stages[] = {{{', '.join(rows)}}};")
        self.lines.append(f"    {CHAIN_NAME}(stages, {len(rows)}, {self.threads}); }}")
        self.declarations.add(CONVOLUTION_DECLARATIONS[CHAIN_NAME])

    def _convolution(self, link: ExternKernel | FusedConvolution, suffix: str) -> _Convolution:
        """suffix: of the names of the tables."""
        call = link.call if isinstance(link, FusedConvolution) else link
        geometry = geometry_of(call)
        x, weight, bias = call.args[:3]
        assert isinstance(x, ViewRef) and isinstance(weight, ViewRef) and geometry is not None
        start = self._pointer(bias) if isinstance(bias, ViewRef) else "0"
        numbers = ", ".join(map(str, geometry.numbers()))
        lines = [f"    static const i64 sizes{suffix}[] = {{{numbers}}};"]
        target, bounds, epilogue, data, count, inner = call.name, "0", "0", "0", 0, 0
        if isinstance(link, FusedConvolution):
            target, ends = link.target, bounds_of(link)
            if ends is not None:
                bounds = f"bounds{suffix}"
                values = ", ".join(literal(end, torch.float32) for end in ends)
                lines.append(f"    static const f32 {bounds}[] = {{{values}}};")
            else:
                source = self.kernels[link.name]
                epilogue, data, count = source.name, f"at{suffix}", len(source.parameters)
                memory = ", ".join(f"(void*)({text})" for text in self._arguments(source))
                inner = sum(1 << n for n, own in enumerate(source.parameters) if own == target)
                lines.append(f"    void* {data}[] = {{{memory}}};")
        result = f"(f32*)d[{self.slot_of[target]}]"
        pointers = (self._pointer(x), self._pointer(weight), start, result)
        return _Convolution(
            call, geometry, tuple(lines), pointers, bounds, epilogue, data, count, inner
        )

    def _pointer(self, view: ViewRef, kind: str = "f32") -> str:
        return f"({kind}*)d[{self.slot_of[view.buffer]}] + ({view.offset})"

    def _results(self, step: ExternKernel) -> list[int]:
        if step.layout is not None:
            return [self.slot_of[step.name]]
        parts = [s for s in self.schedule.steps if isinstance(s, MultiOutput)]
        parts = [part for part in parts if part.name in self.used]
        slots = {part.index: self.slot_of[part.name] for part in parts if part.extern == step.name}
        return [slots.get(index, -1) for index in range(max(slots, default=-1) + 1)]

    def _whole(self, buffer: str) -> ViewRef:
        layout: Layout = self.layouts[buffer]
        return ViewRef(buffer, layout.size, layout.stride, 0, layout.dtype)

    def _operand(self, value: Argument) -> tuple[str, Any]:
        if isinstance(value, ViewRef):
            return ("view", self._view(value))
        if isinstance(value, tuple) and any(isinstance(item, ViewRef) for item in value):
            return (
                "views",
                [self._view(item) if isinstance(item, ViewRef) else -1 for item in value],
            )
        return ("constant", list(value) if isinstance(value, tuple) else value)

    def _view(self, ref: ViewRef) -> int:
        row = (self.slot_of[ref.buffer], ref.offset, ref.dtype, ref.size, ref.stride)
        return self.views.setdefault(row, len(self.views))

    def _output(self, output: Any) -> tuple[str, Any]:
        if isinstance(output, ViewRef):
            return ("view", self._view(output))
        return ("object", output)
