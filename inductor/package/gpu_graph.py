"""A captured graph as the code of a package for a GPU: launches of Triton kernels, and weights.

In: a captured graph of inference, of tensors on a CPU or a GPU, where each input and each result of
the program comes from. Out: a `GpuCode`. All work is done by Triton kernels of our own: GEMMs by
the template, attention by its kernel. What is left makes an error with the user's line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import torch
from torch import fx

from dynamo.aot.api import functional_graph
from dynamo.aot.records import Unsupported
from dynamo.base.fallbacks import AT
from dynamo.base.graph_copies import copy_module
from inductor.codegen.triton.launch import NotPrintable
from inductor.codegen.triton.print_kernel import (
    MODULE_HEAD,
    TritonKernel,
    TritonSource,
    print_kernel,
)
from inductor.codegen.triton.template import TemplateSource, print_template
from inductor.codegen.triton.template_configs import candidate_blocks, shared_of
from inductor.codegen.triton.template_likely import likely_blocks
from inductor.config import config, is_enabled
from inductor.driver.known_results import with_known_calls
from inductor.fx_passes.pipeline import decompositions, where_it_lies
from inductor.ir.gpus import described, most_shared
from inductor.ir.graph import ExternKernel, Layout, LoopGraph, MultiOutput, Origins, ViewRef
from inductor.lowering.run import lower_graph
from inductor.package.cpu_graph import WEIGHT, Place, Slots, Weights, check_graph, written_places
from inductor.package.decompositions import gpu_decompositions
from inductor.package.gpu_attention import attention_launch, is_attention, replace_attention
from inductor.package.gpu_kernels import Function, Launch, Operand
from inductor.scheduler.gemms import choose_disjoint, find_candidates, with_templates
from inductor.scheduler.memory import pack_arena
from inductor.scheduler.peak import with_less_held
from inductor.scheduler.run import schedule_graph
from inductor.scheduler.schedule import Blocks, Kernel, Schedule, TemplateKernel

GPU = torch.device("cuda", 0)
SETTINGS: Mapping[str, Any] = {"freezing": False, "library_kernels": "default"}
# For devices with less memory than the figures of templates are of.
SMALL = (Blocks(64, 64, 32, 4, 3), Blocks(64, 64, 32, 4, 2), Blocks(32, 32, 32, 4, 2))
# Of pointwise kernels and reductions: no contraction, denormals kept, as `triton_launch.py` has it.
EXACT = {"sanitize_overflow": False, "enable_fp_fusion": False, "enable_reflect_ftz": False}


@dataclass(frozen=True, slots=True)
class GpuCode:
    """spec: slots and `arena_bytes`, as in `cpu_graph.Code`. launches: in order, each with the
    slot and the byte of each operand. results, written: as there."""

    launches: tuple[tuple[Function, tuple[int, int, int], tuple[tuple[int, int], ...]], ...]
    spec: dict[str, Any]
    results: list[Any]
    written: frozenset[int]


def generate_gpu(
    gm: fx.GraphModule, examples: list[Any], arguments: Sequence[torch.Tensor],
    inputs: Sequence[Place], results: Sequence[Place], settings: Mapping[str, Any],
    weights: Weights, capability: int,
) -> GpuCode:
    """As `cpu_graph.generate`. capability: 90 stands for compute capability 9.0. Errors:
    Unsupported; those of the program and defects."""
    settings = {**settings, **SETTINGS, "gpu": _gpu_for(capability, settings.get("gpu", ""))}
    with config.patch(**settings), torch.no_grad():
        gm = with_known_calls(copy_module(gm), examples, settings)
        check_graph(gm, examples)
        replace_attention(gm)
        table = {**decompositions(), **gpu_decompositions()}
        graph = functional_graph(gm, examples, decompositions=table, epilogue_in_graph=True)
        written = written_places(graph, inputs)
        module = where_it_lies(graph.module)
        loops = lower_graph(
            module, inline=is_enabled("inlining"), in_memory_order=is_enabled("layout")).graph
        _check_devices(loops)
        made = _Launches(loops, _scheduled(loops, capability)).made()
        slots = Slots(made.spec, loops.inputs, arguments, inputs, [
            value if kind == WEIGHT else None for kind, value in inputs])
        found = [slots.of_result(place, graph) for place in results]
        used = {slot for _, _, operands in made.launches for slot, _ in operands}
        slots.number_weights(found, weights, used)
    return GpuCode(made.launches, slots.spec, found, written)


def _gpu_for(capability: int, wanted: str) -> str:
    """The device for which kernels are cut: the one that is wanted, if it has this capability."""
    wanted = wanted or config.gpu
    fits = wanted and described(wanted).capability == capability
    return wanted if fits else f"sm_{capability}"


def _check_devices(loops: LoopGraph) -> None:
    """Errors: Unsupported for a graph of several devices."""
    devices = {layout.device for layout in loops.layouts().values()}
    if len(devices) > 1:
        listed = ", ".join(sorted(map(str, devices)))
        raise Unsupported(f"its tensors are on several devices ({listed})")


# -- schedule -------------------------------------------------------------------------------------


def _scheduled(loops: LoopGraph, capability: int) -> Schedule:
    """In the order of a GPU, with templates for all GEMMs. Errors: Unsupported."""
    there = replace(loops, device=GPU)
    schedule = schedule_graph(there, 1, is_enabled("fusion"))
    layouts = loops.layouts()
    candidates = [each for each in find_candidates(loops, schedule)
                  if is_enabled("fusion") or not each.template.epilogues()]  # fmt: skip
    chosen = choose_disjoint(
        candidates, lambda each: _with_blocks(each.template, layouts, capability))
    schedule = with_templates(schedule, chosen)
    for step in schedule.steps:
        if isinstance(step, ExternKernel) and not is_attention(step):
            why = f" ({step.reason})" if step.reason else ""
            refuse(step.origins,
                   f"there is no kernel of ours for {step.target._schema.name} on a GPU{why}")
    return with_less_held(there, schedule)


def refuse(origins: Origins, why: str) -> NoReturn:
    """Errors: Unsupported with the user's line."""
    refusal = Unsupported(why)
    refusal.__dict__[AT] = next(iter(origins.lines), "")
    raise refusal


def _with_blocks(
    template: TemplateKernel, layouts: Mapping[str, Layout], capability: int
) -> TemplateKernel | None:
    """The template with blocks that the device can hold and Triton can print; None without."""
    likely = likely_blocks(template, layouts)
    tried = [] if likely is None or likely.blocks is None else [likely.blocks]
    for blocks in (*tried, *candidate_blocks(template), *SMALL):
        if blocks.descriptors or blocks.splits > 1 or not _fits(blocks, template, capability):
            continue
        found = replace(template, blocks=blocks)
        try:
            print_template(found, layouts)
        except NotPrintable:
            continue
        return found
    return None


def _fits(blocks: Blocks, template: TemplateKernel, capability: int) -> bool:
    result = blocks.rows * blocks.columns * 4  # an epilogue may move what was summed
    return max(shared_of(blocks, template), result) <= most_shared(capability)


# -- launches -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Made:
    launches: tuple[tuple[Function, tuple[int, int, int], tuple[tuple[int, int], ...]], ...]
    spec: dict[str, Any]


class _Launches:
    """All launches of a schedule, and where each buffer lives."""

    def __init__(self, graph: LoopGraph, schedule: Schedule) -> None:
        self.graph, self.schedule = graph, schedule
        self.layouts = graph.layouts()
        self.memory: dict[str, tuple[torch.dtype, int]] = {}  # of what is made here: elements
        self.dtypes = {name: layout.dtype for name, layout in self.layouts.items()}

    def made(self) -> _Made:
        """Errors: Unsupported."""
        launches = [launch for step in self.schedule.steps for launch in self._of_step(step)]
        slots, places, arena = self._slots(launches)
        rows = []
        for launch in launches:
            operands = [(places[one.buffer], one.offset) for one in launch.operands]
            rows.append((launch.function, launch.grid, tuple(operands)))
        views: list[tuple[Any, ...]] = []
        outputs: list[tuple[str, Any]] = []
        for output in self.graph.outputs:
            if isinstance(output, ViewRef):
                views.append((places[output.buffer], output.offset, output.dtype, output.size,
                              output.stride))
                outputs.append(("view", len(views) - 1))
            else:
                outputs.append(("value", output))
        constants = [buffer.value.detach() for buffer in self.graph.constants]
        return _Made(tuple(rows), {
            "slots": slots, "views": views, "outputs": outputs, "constants": constants,
            "arena_bytes": arena})

    def _of_step(self, step: Any) -> Iterator[Launch]:
        if isinstance(step, Kernel):
            yield from self._of_kernel(step)
        elif isinstance(step, TemplateKernel):
            yield from self._of_template(step)
        elif isinstance(step, ExternKernel):
            yield from self._of_attention(step)
        elif not isinstance(step, MultiOutput):
            raise AssertionError(f"a step of another kind: {step}")

    def _of_kernel(self, step: Kernel) -> Iterator[Launch]:
        try:
            printed = print_kernel(step, self.layouts)
        except NotPrintable as why:
            refuse(step.origins, f"Triton can't compute {', '.join(step.origins.targets)}: {why}")
        for name in step.writes():
            self._make(name)
        yield from self._of_printed(printed)

    def _of_printed(self, printed: TritonKernel) -> Iterator[Launch]:
        assert printed.short is None
        for scratch in printed.scratch:
            self.memory[scratch.name] = scratch.dtype, scratch.elements
            self.dtypes[scratch.name] = scratch.dtype
        yield from map(self._of_source, printed.sources)

    def _of_source(self, source: TritonSource) -> Launch:
        assert not source.numbers and not source.even
        [found] = source.choices.classes
        best = found.configs[0]
        operands = self._operands(source.parameters)
        constants = {"XBLOCK": best.rows, "RBLOCK": best.columns}
        options = {**EXACT, "num_warps": best.warps, "debug": source.may_fail}
        text = f"{MODULE_HEAD}\n\n{source.text}"
        function = Function.of(text, source.name, operands, constants, options)
        return Launch(function, source.grid(best), operands)

    def _of_template(self, step: TemplateKernel) -> Iterator[Launch]:
        source: TemplateSource = print_template(step, self.layouts)
        assert not source.numbers and not source.scratch and source.partial is None
        for name in step.writes():
            self._make(name)
        operands = self._operands(source.parameters)
        options = {**EXACT, "debug": source.may_fail, **source.options()}
        text = f"{MODULE_HEAD}\n\n{source.text}"
        function = Function.of(text, source.name, operands, {}, options)
        yield Launch(function, source.grid, operands)

    def _of_attention(self, step: ExternKernel) -> Iterator[Launch]:
        parts = [one for one in self.schedule.steps
                 if isinstance(one, MultiOutput) and one.extern == step.name]  # fmt: skip
        for part in parts:
            if part.index != 0:
                refuse(step.origins, "sums of attention are not there in a package")
            try:
                launch = attention_launch(step, part.name, part.layout)
            except Unsupported as why:
                refuse(step.origins, why.reason)
            self._make(part.name)
            yield launch

    def _operands(self, names: Sequence[str]) -> tuple[Operand, ...]:
        return tuple(Operand(name, 0, self.dtypes[name]) for name in names)

    def _make(self, name: str) -> None:
        """Memory for a buffer that is written, unless it is an input or a constant."""
        layout = self.layouts[name]
        self.memory[name] = layout.dtype, layout.storage_elements()

    # -- where buffers live -----------------------------------------------------------------------

    def _slots(
        self, launches: Sequence[Launch]
    ) -> tuple[list[tuple[Any, ...]], dict[str, int], int]:
        """Rows of slots as in `cpu_graph.py`, each buffer's slot, and the bytes of the arena."""
        shown = {output.buffer for output in self.graph.outputs if isinstance(output, ViewRef)}
        rows: list[tuple[Any, ...]] = []
        places: dict[str, int] = {}

        def add(name: str, kind: str, position: int, meta: tuple[Any, ...]) -> None:
            places[name] = len(rows)
            rows.append((kind, position, *meta))

        given = [buffer for buffer in self.graph.inputs if buffer is not None]
        known = [(one.name, one.layout, "input", n) for n, one in enumerate(given)]
        known += [(one.name, one.layout, "constant", n)
                  for n, one in enumerate(self.graph.constants)]
        for name, layout, kind, position in known:
            add(name, kind, position, (layout.dtype, layout.size, layout.stride))
        inner = [name for name in self.memory if name not in places and name not in shown]
        positions, total = pack_arena([
            (*life, self._bytes(name)) for name, life in
            zip(inner, map(_lives(launches), inner), strict=True)])  # fmt: skip
        for name, position in zip(inner, positions, strict=True):
            add(name, "arena", position, self._flat(name))
        for name in self.memory:
            if name not in places:
                add(name, "output", 0, self._flat(name))
        return rows, places, total

    def _flat(self, name: str) -> tuple[Any, ...]:
        dtype, elements = self.memory[name]
        return dtype, (elements,), (1,)

    def _bytes(self, name: str) -> int:
        dtype, elements = self.memory[name]
        return dtype.itemsize * elements


def _lives(launches: Sequence[Launch]) -> Callable[[str], tuple[int, int]]:
    """The first and the last launch that touch a buffer."""
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for position, launch in enumerate(launches):
        for operand in launch.operands:
            first.setdefault(operand.buffer, position)
            last[operand.buffer] = position
    return lambda name: (first.get(name, 0), last.get(name, 0))
