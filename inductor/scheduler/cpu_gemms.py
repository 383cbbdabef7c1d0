"""Which kernels run inside of our own GEMMs on the CPU, part by part of the result.

In: a loop graph and its schedule, where GEMMs of our own are library calls. Out: the same
schedule where kernels behind them are `TemplateKernel`s: what the GEMM has written is still in
the cache when they read it, and no further parallel region begins. Where nothing else wants the
result, it is stored where the kernel stores its own, which takes its place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace

import torch

from inductor.ir.graph import ExternKernel, Layout, LoopGraph, ViewRef
from inductor.kernels.cpu.gemm_chain import MOST_POINTERS
from inductor.scheduler.gemms import (
    TemplateCandidate,
    as_gemm,
    choose_disjoint,
    epilogue_ops,
    epilogue_over_rows,
    find_candidates,
    place,
    with_templates,
    written,
)
from inductor.scheduler.schedule import (
    Gemm,
    GemmChain,
    Kernel,
    Schedule,
    Step,
    TemplateKernel,
)
from inductor.scheduler.verify import verify_steps

MATRICES = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)


def attach_epilogues(graph: LoopGraph, schedule: Schedule) -> Schedule:
    """The schedule with each kernel attached that can follow a GEMM of our own."""
    if graph.device.type != "cpu":
        return schedule
    found = [each for each in find_candidates(graph, schedule) if _is_ours(each)]
    free = _free_targets(graph, schedule)
    chosen = choose_disjoint(found, lambda each: _wanted(each, free))
    if not chosen:
        return schedule
    made = with_templates(schedule, chosen)
    verify_steps(graph, made.steps)
    return made


def _is_ours(candidate: TemplateCandidate) -> bool:
    calls = [gemm.call for gemm in candidate.template.gemms()]
    return all(call.ours and call.target in MATRICES for call in calls)


def _free_targets(graph: LoopGraph, schedule: Schedule) -> frozenset[str]:
    """Buffers of float32 that one step alone writes, and that no other tensor lies in."""
    given = {buffer.name for buffer in (*graph.inputs, *graph.constants) if buffer is not None}
    count = Counter(name for step in schedule.steps for name in written(step))
    return frozenset(
        name
        for name, layout in graph.layouts().items()
        if layout.dtype is torch.float32 and count[name] == 1 and name not in given
    )


def _wanted(candidate: TemplateCandidate, free: Collection[str]) -> TemplateKernel | None:
    """The template, if it is one GEMM of known sizes with a kernel that walks along its rows;
    the result itself is stored, too, if somebody else reads it or none of the free buffers can
    hold it."""
    template = candidate.template
    gemms = template.gemms()
    if len(gemms) != 1 or len(template.epilogues()) != 1:
        return None
    (gemm,), (kernel,) = gemms, template.epilogues()
    if any(type(size) is not int for size in (gemm.m, gemm.n, gemm.k)):
        return None
    if gemm.batch != 1 or not _walks_along_rows(kernel, gemm):
        return None
    (part,) = template.parts
    target = "" if part.stored else _target(kernel, gemm, free)
    stored = () if target else (gemm.name,)
    return replace(template, parts=(replace(part, stored=stored, target=target),))


def _target(kernel: Kernel, gemm: Gemm, free: Collection[str]) -> str:
    """The buffer in which the result may be stored: the kernel stores another one there, element
    by element. "" where there is none."""
    if gemm.dtype is not torch.float32:
        return ""
    flat = place(gemm)
    ops = epilogue_ops(kernel, flat)
    loaded = max(at for at, op in enumerate(ops) if op.buffer == gemm.name)
    stores = (op for op in ops[loaded:] if op.name == "store")
    return next((op.buffer for op in stores if op.index == flat and op.buffer in free), "")


def _walks_along_rows(kernel: Kernel, gemm: Gemm) -> bool:
    """Whether neighbours of a row are neighbours, or one and the same, in all that it touches."""
    (stage,) = epilogue_over_rows(kernel, gemm).stages
    near = {"load": (0, 1), "store": (1,)}
    return all(
        op.index is not None and op.index.stride_of("i1") in near[op.name]
        for op in stage.ops
        if op.name in near
    )


def join_chains(graph: LoopGraph, schedule: Schedule) -> Schedule:
    """The schedule where two GEMMs of our own, of which the second one alone reads what the
    first one makes, are a chain where that is faster."""
    if graph.device.type != "cpu":
        return schedule
    steps: list[Step] = []
    readers = Counter(name for step in schedule.steps for name in step.reads())
    readers.update(o.buffer for o in graph.outputs if isinstance(o, ViewRef))
    free = _free_targets(graph, schedule)
    layouts = graph.layouts()
    for step in schedule.steps:
        between = _between(steps[-1], step, layouts) if steps else ""
        if between in free and readers[between] == 1:
            first, second = steps.pop(), step
            assert isinstance(first, (TemplateKernel, ExternKernel))
            assert isinstance(second, (TemplateKernel, ExternKernel))
            step = GemmChain((first, second), (between,))
        steps.append(step)
    if len(steps) == len(schedule.steps):
        return schedule
    made = replace(schedule, steps=tuple(steps))
    verify_steps(graph, made.steps)
    return made


# A chain pays where what lies between does not stay in the third cache, and the weights do in the
# second one, more or less. In numbers.
LEAST_BETWEEN, MOST_WEIGHTS = 3 << 19, 1 << 19


def _between(first: Step, second: Step, layouts: Mapping[str, Layout]) -> str:
    """The buffer between two GEMMs that can be a chain and are faster so; "" if they are not."""
    one, two = _own_gemm(first, layouts), _own_gemm(second, layouts)
    if one is None or two is None:
        return ""
    name = first.parts[0].target if isinstance(first, TemplateKernel) else one.name
    left = two.left
    whole = (name, (one.m, one.n), (one.n, 1), 0)
    if (left.buffer, left.size, left.stride, left.offset) != whole:
        return ""
    if [view.buffer for view in two.call.views()].count(name) != 1 or one.left.stride[1] != 1:
        return ""
    others = (second.epilogues()[0].reads() if isinstance(second, TemplateKernel) else ())
    if name in others or set(written(first)) & set(second.reads()) != {name}:
        return ""
    if set(written(second)) & {*first.reads(), *written(first)}:
        return ""
    pays = one.m * one.n >= LEAST_BETWEEN and one.n * (one.k + two.n) <= MOST_WEIGHTS
    return name if pays else ""


def _own_gemm(step: Step, layouts: Mapping[str, Layout]) -> Gemm | None:
    """The GEMM of float32 and known sizes that a step computes with our own function."""
    gemm: Gemm | None
    if isinstance(step, TemplateKernel):
        (gemm,), (kernel,) = step.gemms(), step.epilogues()
        if len({*kernel.reads(), *kernel.writes()}) > MOST_POINTERS:
            return None
    elif isinstance(step, ExternKernel) and step.ours and step.target in MATRICES:
        gemm = as_gemm(step, dict(layouts))
    else:
        return None
    if gemm is None or gemm.dtype is not torch.float32 or gemm.batch != 1:
        return None
    sizes = (gemm.m, gemm.n, gemm.k)
    return gemm if all(type(size) is int for size in sizes) else None
