"""A Python module that runs a whole schedule with Triton kernels.

In: a loop graph, its schedule and its printed kernels. Out: the text of a module with one function,
`make(constants, prepare, slow)`, which gives a function of the sizes known at a call (`k0`, ..,
if there are any), and that one gives the function which runs the schedule: tensors in (those of
`graph.inputs` that are not None, in order), a tuple out. It allocates what kernels write, calls
ATen for the rest, and frees every buffer after its last use (inputs, too: see `boxed`). `prepare`
(a method of `runtime.triton_launch.Preparation`) makes a launcher of each Triton function, `slow` a
callable of each kernel that Triton cannot do.

    def make(constants, prepare, slow):
        triton0 = prepare(fused_add_relu_1a2b3c4d, ...)
        def bind(k0):
            launch0 = triton0.at(((k_floordiv_index((k0 + 127), 128), 1, 1),), (k0,))
            new0 = Allocation((k0, 8), (8, 1), torch.float32, device)
            def of_list(args):
                arg0, arg1, = args
                args.clear()
                stream = current_stream(0)
                buf0 = new0()
                launch0(stream, arg0, buf0)
                del arg0
                ...
                return (buf0,)
            of_list = recorded(of_list, 2, device)
            return boxed(of_list)
        return bind

The function is run once, without tensors, to record what it calls: see `runtime/csrc/program.cpp`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from inductor.codegen.bind import FUNCTIONS
from inductor.codegen.triton.numbers import KINDS
from inductor.codegen.triton.print_kernel import MODULE_HEAD, TritonKernel, TritonSource
from inductor.codegen.triton.print_list import ListSource
from inductor.codegen.triton.template import TemplateSource
from inductor.ir.graph import (
    Argument,
    ExternKernel,
    Layout,
    LoopGraph,
    MultiOutput,
    ViewRef,
)
from inductor.scheduler.peak import FRESH, operand_under
from inductor.scheduler.schedule import Kernel, KernelList, Schedule, Step, TemplateKernel

HEAD = '''\
"""Generated: kernels and a function that runs them in order."""

{kernel_imports}
from inductor.runtime.list_launches import over
from inductor.runtime.triton_launch import (
    Allocation, BySize, OperatorCall, boxed, current_stream, recorded, view, without_views,
)

inf, nan = float("inf"), float("nan")
'''
MAKE = "def make(constants, prepare, slow):"
PREPARED = re.compile(r"\bprepare\((\w+), ")


def host_part(text: str, device: torch.device) -> str:
    """The text of a module of one device without its kernels, of which `prepare` gets the names."""
    made = text[text.index(f"\n\n{MAKE}") :]
    names = "".join(f"{name} = {name!r}\n" for name in dict.fromkeys(PREPARED.findall(made)))
    head = HEAD.format(kernel_imports="import torch\n")
    return f"{head}\ndevice = {_print_device(device)}\n{names}{made}"


def print_python_wrapper(
    graph: LoopGraph, schedule: Schedule, kernels: Mapping[str, TritonKernel],
    symbols: Sequence[str] = (), templates: Mapping[str, TemplateSource] | None = None,
    lists: Mapping[str, ListSource | TritonSource] | None = None, dying: Collection[str] = (),
    batched: bool = False,
) -> str:
    """Text of the module; `kernels` by name, without those that Triton cannot do. symbols: names of
    the sizes known at a call. dying: inputs that the caller lets go of. batched: consecutive
    kernels are started together (`runtime/csrc/batches.cpp`)."""
    writer = _Writer(graph, schedule, kernels, templates or {}, lists or {}, frozenset(dying))
    return writer.write(symbols, batched)


class _Writer:
    def __init__(
        self, graph: LoopGraph, schedule: Schedule, kernels: Mapping[str, TritonKernel],
        templates: Mapping[str, TemplateSource], lists: Mapping[str, ListSource | TritonSource],
        given_up: frozenset[str],
    ) -> None:
        self.graph = graph
        self.steps = schedule.steps
        self.kernels = kernels
        self.templates = templates
        self.lists = lists
        self.layouts = graph.layouts()
        self.inputs = [buffer.name for buffer in graph.inputs if buffer is not None]
        self.constants = [buffer.name for buffer in graph.constants]
        self.alive = {*self.inputs, *self.constants}
        self.calls: dict[str, str] = {}
        self.launchers: dict[str, str] = {}
        self.launches: dict[str, str] = {}
        self.conditions: dict[str, str] = {}
        self.allocations: dict[str, str] = {}
        self.slow: dict[str, str] = {}
        self.ours: set[str] = set()  # allocated here: aligned, with the strides of the layout
        self.fresh = _fresh(schedule.steps)  # memory of the run's own, which has one name
        self.given_up = given_up  # inputs of which that is found out in each call
        self.may_write_over = True
        self.dtypes = {name: layout.dtype for name, layout in self.layouts.items()}
        self.body: list[str] = []

    def write(self, symbols: Sequence[str], batched: bool) -> str:
        self.may_write_over = not symbols  # else kernels may be measured on the real buffers
        last = _last_uses(self.steps)
        held = {output.buffer for output in self.graph.outputs if isinstance(output, ViewRef)}
        held |= set(self.constants)
        used = held.union(*last.values())
        self._free(name for name in self.inputs if name not in used)
        for position, step in enumerate(self.steps):
            dying = last.get(position, set()) - held
            self._run(step, dying)
            self._free(n for n in dying if n in self.alive)
        self.body.append(f"return ({''.join(self._output(o) + ', ' for o in self.graph.outputs)})")
        return "\n".join(self._module(symbols, batched))

    def _free(self, names: Iterable[str]) -> None:
        dead = sorted(names)
        if dead:
            self.body.append(f"del {', '.join(dead)}")
            self.alive -= set(dead)

    def _module(self, symbols: Sequence[str], batched: bool) -> Iterator[str]:
        generated = self.kernels or self.templates or self.lists
        yield HEAD.format(kernel_imports=MODULE_HEAD if generated else "import torch\n")
        yield f"device = {_print_device(self.graph.device)}"
        for text in dict.fromkeys(source.text for source in self._sources()):
            yield f"\n\n{text}"
        yield f"\n\n{MAKE}"
        if self.constants:
            yield f"    {', '.join(self.constants)}, = constants"
        for prepared, name in self.launchers.items():
            yield f"    {name} = {prepared}"
        for name, text in self.slow.items():
            yield f"    {name} = {text}"
        if symbols:  # in here, since kernels have functions of the same names
            yield f"    from inductor.codegen.bind import {', '.join(FUNCTIONS)}"
        yield f"\n    def bind({', '.join(symbols)}):"
        bound = (self.conditions, self.launches, self.allocations, self.calls)
        for text, name in itertools.chain.from_iterable(found.items() for found in bound):
            yield f"        {name} = {text}"
        yield "\n        def of_list(args):"
        if self.inputs:
            yield f"            {', '.join(self.inputs)}, = args"
        yield "            args.clear()"
        if self.launches:
            device = self.graph.device
            stream = f"current_stream({device.index or 0})" if device.type == "cuda" else "0"
            yield f"            stream = {stream}"
        yield from ("            " + line for line in self.body)
        if not self.slow:  # those run in Python
            how = ", batched=True" if batched else ""
            yield f"\n        of_list = recorded(of_list, {len(self.inputs)}, device{how})"
        if any(isinstance(o, ViewRef) and not self._is_whole(o) for o in self.graph.outputs):
            yield "\n        of_list = without_views(of_list)"
        yield "\n        return boxed(of_list)\n\n    return bind\n"

    def _sources(self) -> Iterator[TritonSource | TemplateSource | ListSource]:
        for step in self.steps:
            if isinstance(step, KernelList):
                yield self.lists[step.name]
            if isinstance(step, TemplateKernel):
                source = self.templates[step.name]
                yield source
                yield from () if source.combine is None else source.combine.all_sources()
            if isinstance(step, Kernel) and step.name in self.kernels:
                yield from self.kernels[step.name].all_sources()

    def _launch(self, source: TritonSource, likely: bool) -> str:
        """The name of a launch; those that differ in nothing else but tensors share one."""
        launcher = self.launchers.setdefault(
            self._prepared(source, likely), f"triton{len(self.launchers)}"
        )
        grids = [str(tuple(map(source.grid, found.configs))) for found in source.choices.classes]
        numbers = "".join(f"{number.value}, " for number in source.numbers)
        at = grids[0] if len(grids) == 1 else f"{source.choices.measure}, ({', '.join(grids)})"
        text = f"{launcher}.at({at}, ({numbers}))"
        return self.launches.setdefault(text, f"launch{len(self.launches)}")

    def _prepared(self, source: TritonSource, likely: bool) -> str:
        """Everything about a launch that does not change from call to call."""
        kinds = "".join(KINDS[number.kind] for number in source.numbers)
        dtypes = "".join(f"{self.dtypes[name]}, " for name in source.parameters)
        unsure = tuple(n for n, name in enumerate(source.parameters) if name not in self.ours)
        made = []
        for number, found in enumerate(source.choices.classes):
            configs = tuple((config.rows, config.columns, config.warps) for config in found.configs)
            ahead = likely and number == source.choices.likely()
            made.append(
                f"prepare({source.name}, {configs!r}, ({dtypes}), unsure={unsure!r}, "
                f"asserts={source.may_fail}, repeatable={source.repeatable}, kinds={kinds!r}, "
                f"even={source.even}, likely_even={source.likely_even}, ahead={ahead})"
            )
        if len(made) == 1:
            return made[0]
        bounds = tuple(found.most for found in source.choices.classes)
        return f"BySize({bounds}, ({', '.join(made)}))"

    def _run(self, step: Step, dying: set[str]) -> None:
        if isinstance(step, Kernel):
            self._run_kernel(step, dying)
        elif isinstance(step, KernelList):
            self._run_list(step)
        elif isinstance(step, TemplateKernel):
            self._run_template(step)
        elif isinstance(step, ExternKernel):
            self._run_extern(step)
        else:
            assert isinstance(step, MultiOutput)
            self.body.append(f"{step.name} = {step.extern}[{step.index}]")
            self.alive.add(step.name)

    def _run_kernel(self, step: Kernel, dying: set[str]) -> None:
        printed = self.kernels.get(step.name)
        under = dying & (self.fresh | self.given_up)
        if printed is None or not self.may_write_over:
            under = set()
        for name in step.writes():
            if name not in self.alive and not self._write_over(step, name, under):
                self._allocate(name, self.layouts[name])
        if printed is None:
            names = tuple(dict.fromkeys((*step.reads(), *step.writes())))
            slow = f"slow{len(self.slow)}"
            self.slow[slow] = f"slow({step.nodes!r}, {names!r})"
            self.body.append(f"{slow}({', '.join(names)})")
            return
        if printed.short is None:
            self._run_sources(printed, True)
            return
        choices = printed.short.choices
        likely = choices.likely() < len(choices.classes)
        text = f"{choices.measure} <= {choices.classes[-1].most}"
        fits = self.conditions.setdefault(text, f"fits{len(self.conditions)}")
        self.body += [f"if {fits}:", f"    {self._called(printed.short, likely)}", "else:"]
        start = len(self.body)
        self._run_sources(printed, not likely)
        self.body[start:] = ["    " + line for line in self.body[start:]]

    def _run_list(self, step: KernelList) -> None:
        """One launch for several kernels."""
        for name in step.writes():
            if name not in self.alive:
                self._allocate(name, self.layouts[name])
        source = self.lists[step.name]
        if isinstance(source, TritonSource):  # unlike kernels
            self.body.append(self._called(source, True))
            return
        dtypes = "".join(f"{dtype}, " for dtype in source.dtypes)
        launchers = []
        for aligned in (True, not source.vectors):
            prepared = (
                f"prepare({source.name}, ((0, 0, {source.warps}),), ({dtypes}), unsure=(), "
                f"asserts=False, repeatable=False, options={source.options(aligned)!r}, "
                f"ahead={aligned})"
            )
            name = self.launchers.setdefault(prepared, f"triton{len(self.launchers)}")
            launchers.append(name)
        text = (
            f"over({', '.join(launchers)}, {source.sizes}, {source.tile}, {source.width}, "
            f"{source.vectors})"
        )
        launch = self.launches.setdefault(text, f"launch{len(self.launches)}")
        self.body.append(f"{launch}({', '.join(('stream', *source.parameters))})")

    def _write_over(self, step: Kernel, name: str, under: set[str]) -> bool:
        """Gives a result the memory of an operand that dies in this step, if there is one for it.
        """
        fitting = [n for n in operand_under(step, self.layouts) if n in under] if under else []
        if not fitting:
            return False
        operand = next((n for n in fitting if n in self.fresh), fitting[0])
        if operand not in self.fresh:
            self._allocate(name, self.layouts[name], operand)
            return True
        self.body.append(f"{name} = {operand}")
        self.layouts[name] = self.layouts[operand]
        self.alive.add(name)
        if operand in self.ours:
            self.ours.add(name)
        return True

    def _run_template(self, step: TemplateKernel) -> None:
        for name in step.writes():
            if name not in self.alive:
                self._allocate(name, self.layouts[name])
        source = self.templates[step.name]
        if source.partial is not None:
            self.dtypes[source.partial.name] = source.partial.dtype
            size = (source.partial.elements,)
            self._allocate(
                source.partial.name, Layout(self.graph.device, source.partial.dtype, size, (1,))
            )
        kinds = "".join(KINDS[number.kind] for number in source.numbers)
        dtypes = "".join(f"{self.dtypes[name]}, " for name in source.parameters)
        unsure = tuple(n for n, name in enumerate(source.parameters) if name not in self.ours)
        prepared = (
            f"prepare({source.name}, ((0, 0, {source.blocks.warps}),), ({dtypes}), "
            f"unsure={unsure!r}, asserts={source.may_fail}, repeatable=True, kinds={kinds!r}, "
            f"options={source.options()!r}, scratch={source.scratch})"
        )
        launcher = self.launchers.setdefault(prepared, f"triton{len(self.launchers)}")
        numbers = "".join(f"{number.value}, " for number in source.numbers)
        text = f"{launcher}.at(({source.grid},), ({numbers}))"
        launch = self.launches.setdefault(text, f"launch{len(self.launches)}")
        tensors = ["stream", *source.parameters]
        if source.scratch:
            layout = Layout(self.graph.device, torch.uint8, (source.scratch,), (1,))
            tensors.append(f"{step.name}_scratch")
            self._allocate(tensors[-1], layout)
        self.body.append(f"{launch}({', '.join(tensors)})")
        if source.scratch:
            self.body.append(f"del {tensors[-1]}")
            self.alive.remove(tensors[-1])
        if source.partial is not None and source.combine is not None:
            self._run_sources(source.combine, True)
            self.body.append(f"del {source.partial.name}")
            self.alive.remove(source.partial.name)

    def _run_sources(self, printed: TritonKernel, likely: bool) -> None:
        """likely: what runs at the sizes of the first compile, so it is compiled ahead."""
        for scratch in printed.scratch:
            self.dtypes[scratch.name] = scratch.dtype
            layout = Layout(self.graph.device, scratch.dtype, (scratch.elements,), (1,))
            self._allocate(scratch.name, layout)
        for source in printed.sources:
            self.body.append(self._called(source, likely))
        if printed.scratch:
            dead = [scratch.name for scratch in printed.scratch]
            self.body.append(f"del {', '.join(dead)}")
            self.alive -= set(dead)

    def _called(self, source: TritonSource, likely: bool) -> str:
        return f"{self._launch(source, likely)}({', '.join(('stream', *source.parameters))})"

    def _allocate(self, name: str, layout: Layout, over: str = "") -> None:
        """over: an input whose memory it may have."""
        if layout.offset != 0 or any(step < 0 for step in layout.stride):
            layout = Layout(layout.device, layout.dtype, (layout.storage_elements(),), (1,))
        else:
            self.ours.add(name)
        text = f"Allocation({layout.size}, {layout.stride}, {layout.dtype}, device)"
        new = self.allocations.setdefault(text, f"new{len(self.allocations)}")
        self.body.append(f"{name} = {new}.over({over})" if over else f"{name} = {new}()")
        self.alive.add(name)

    def _run_extern(self, step: ExternKernel) -> None:
        """A call of the library, made of everything about it that does not change."""
        tensors: dict[str, int] = {}  # positions of buffers in the call
        operands = "".join(
            f"{self._operand(value, tensors)}, " for value in step.values_by_argument()
        )
        results = "".join(f"{self._result(layout)}, " for layout in self._results(step))
        target, alone = step.target, step.layout is not None
        overload = "" if target._overloadname == "default" else target._overloadname
        name = f"{target._schema.name!r}, {overload!r}"
        text = f"OperatorCall({name}, ({operands}), ({results}), {alone})"
        call = self.calls.setdefault(text, f"call{len(self.calls)}")
        self.body.append(f"{step.name} = {call}({', '.join(tensors)})")
        self.alive.add(step.name)

    def _results(self, step: ExternKernel) -> list[Layout | None]:
        """What readers expect of each result; None where there are none."""
        if step.layout is not None:
            return [step.layout]
        parts = {s.index: s.layout for s in self.steps
                 if isinstance(s, MultiOutput) and s.extern == step.name}  # fmt: skip
        return [parts.get(index) for index in range(max(parts, default=-1) + 1)]

    def _result(self, layout: Layout | None) -> str:
        return "None" if layout is None else f"({layout.size}, {layout.stride}, {layout.dtype})"

    def _operand(self, value: Argument, tensors: dict[str, int]) -> str:
        if isinstance(value, ViewRef):
            return self._shown(value, tensors)
        if isinstance(value, tuple) and any(isinstance(item, ViewRef) for item in value):
            items = "".join(f"{item and self._shown(item, tensors)}, " for item in value)
            return f"('views', ({items}))"
        return f"('constant', {self._constant(value)})"

    def _shown(self, ref: Any, tensors: dict[str, int]) -> str:
        position = tensors.setdefault(ref.buffer, len(tensors))
        if self._is_whole(ref):
            return f"('whole', {position})"
        return f"('view', {position}, {ref.size}, {ref.stride}, {ref.offset}, {ref.dtype})"

    def _constant(self, value: Argument) -> str:
        if isinstance(value, tuple):
            return f"[{', '.join(map(self._constant, value))}]"
        return _print_device(value) if isinstance(value, torch.device) else repr(value)

    def _is_whole(self, ref: ViewRef) -> bool:
        layout = self.layouts[ref.buffer]
        same = (ref.size, ref.stride, ref.offset) == (layout.size, layout.stride, layout.offset)
        return same and ref.dtype is layout.dtype and layout.offset == 0

    def _view(self, ref: ViewRef) -> str:
        if self._is_whole(ref):
            return ref.buffer
        kind = "" if ref.dtype is self.layouts[ref.buffer].dtype else f", {ref.dtype}"
        return f"view({ref.buffer}, {ref.size}, {ref.stride}, {ref.offset}{kind})"

    def _output(self, output: Any) -> str:
        return self._view(output) if isinstance(output, ViewRef) else repr(output)


def _print_device(device: torch.device) -> str:
    return f'torch.device("{device}")'


def _fresh(steps: tuple[Step, ...]) -> set[str]:
    """What kernels and GEMMs make, but for what an operator may give views of."""
    made, shown = set[str](), set[str]()
    for step in steps:
        if isinstance(step, (Kernel, KernelList, TemplateKernel)):
            made.update(set(step.writes()) & set(step.nodes))
        elif isinstance(step, ExternKernel):
            if step.target in FRESH and step.layout is not None:
                made.add(step.name)
            if any(value.alias_info is not None for value in step.target._schema.returns):
                shown.update(step.reads())
    return made - shown


def _last_uses(steps: tuple[Step, ...]) -> dict[int, set[str]]:
    """Buffers by the step after which nothing needs them."""
    last: dict[str, int] = {}
    for position, step in enumerate(steps):
        names = set(step.reads())
        if isinstance(step, (Kernel, KernelList, TemplateKernel)):
            names |= set(step.writes())
        else:
            names.add(step.name)
            names |= set(getattr(step, "mutates", ()))
        last.update({name: position for name in names})
    found: dict[int, set[str]] = {}
    for name, position in last.items():
        found.setdefault(position, set()).add(name)
    return found
