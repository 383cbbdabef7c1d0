"""The lines of a wrapper, and what all its calls share: slots, views, operators, pointers.

In: kernels and calls of operators. Out: lines of C++, and rows of the description that the
launcher needs (`runtime/csrc/spec.cpp`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inductor.codegen.cpp.kernel import KernelSource
from inductor.ir.graph import Argument, ExternKernel, Layout, LoopGraph, MultiOutput, ViewRef
from inductor.scheduler.memory import MemoryPlan
from inductor.scheduler.schedule import Kernel, Schedule


class CallWriter:
    """lines: of the wrapper so far; declarations: of the functions that these call. threads: for
    functions of our own. slots, views, externs: rows by number, which lines say."""

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
        self.declarations: set[str] = set()
        # What an operator returns and nobody looks at may have any size.
        self.used = {name for step in schedule.steps for name in step.reads()}
        self.used.update(o.buffer for o in graph.outputs if isinstance(o, ViewRef))
        self.symbols = {name for source in kernels.values() for name in source.symbols}
        for buffer, place in plan.places.items():
            layout = self.layouts[buffer]
            self.slot_of[buffer] = len(self.slots)
            meta = (layout.dtype, layout.size, layout.stride)
            self.slots.append((place.kind, place.position, *meta))

    def call_kernel(self, kernel: Kernel) -> None:
        source = self.kernels[kernel.name]
        call = f"{source.name}({', '.join(['rt', *self.arguments(source), *source.symbols])})"
        self.lines.append(f"  if ({call}) return 1;" if kernel.may_fail() else f"  {call};")

    def arguments(self, source: KernelSource) -> list[str]:
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

    def call_extern(self, step: ExternKernel) -> None:
        number = self.extern_number(step)
        self.called.append(number)
        self.lines.append(f"  if (rt->call(rt, {number})) return 1;  // {self.externs[-1][0]}")

    def extern_number(self, step: ExternKernel, result: ViewRef | None = None) -> int:
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
                value = result or self.whole(step.name)
            else:
                value = argument.default_value
            operands.append(self.operand(value))
        results = [-1] if step.name in self.plan.given else self.results(step)
        overload = target._overloadname
        overload = "" if overload == "default" else overload
        self.externs.append((target._schema.name, overload, operands, results))
        return len(self.externs) - 1

    def pointer(self, view: ViewRef, kind: str = "f32") -> str:
        return f"({kind}*)d[{self.slot_of[view.buffer]}] + ({view.offset})"

    def byte(self, view: ViewRef) -> str:
        return f"(const u8*)d[{self.slot_of[view.buffer]}] + ({view.offset * view.dtype.itemsize})"

    def results(self, step: ExternKernel) -> list[int]:
        if step.layout is not None:
            return [self.slot_of[step.name]]
        parts = [s for s in self.schedule.steps if isinstance(s, MultiOutput)]
        parts = [part for part in parts if part.name in self.used]
        slots = {part.index: self.slot_of[part.name] for part in parts if part.extern == step.name}
        return [slots.get(index, -1) for index in range(max(slots, default=-1) + 1)]

    def whole(self, buffer: str) -> ViewRef:
        layout: Layout = self.layouts[buffer]
        return ViewRef(buffer, layout.size, layout.stride, 0, layout.dtype)

    def operand(self, value: Argument) -> tuple[str, Any]:
        if isinstance(value, ViewRef):
            return ("view", self.view(value))
        if isinstance(value, tuple) and any(isinstance(item, ViewRef) for item in value):
            return (
                "views",
                [self.view(item) if isinstance(item, ViewRef) else -1 for item in value],
            )
        return ("constant", list(value) if isinstance(value, tuple) else value)

    def view(self, ref: ViewRef) -> int:
        row = (self.slot_of[ref.buffer], ref.offset, ref.dtype, ref.size, ref.stride)
        return self.views.setdefault(row, len(self.views))

    def output(self, output: Any) -> tuple[str, Any]:
        if isinstance(output, ViewRef):
            return ("view", self.view(output))
        return ("object", output)
