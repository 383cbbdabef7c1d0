"""Which GEMMs on a GPU are computed by our template, with what follows them.

In: a loop graph and its schedule, where all GEMMs are ATen's. Out: the same schedule where some
GEMMs, and kernels that read them, are `TemplateKernel`s. By default a template is taken where it
is likely to be faster (`codegen/triton/template_likely.py`); with a tuner each candidate runs
beside the library's GEMM and the kernels behind it.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import Any

import torch

from dynamo.base import logs
from inductor.autotune.tuning import Candidate, Question, Times, Tuner, make_question_key, part_of
from inductor.codegen.python_wrapper import print_python_wrapper
from inductor.codegen.triton.launch import NotPrintable
from inductor.codegen.triton.print_kernel import print_kernel
from inductor.codegen.triton.template import TEMPLATE_VERSION, print_template
from inductor.codegen.triton.template_configs import (
    FEW,
    candidate_blocks,
    is_alone,
    keep_to_rows,
    neighbours,
    why_not,
)
from inductor.codegen.triton.template_likely import likely_blocks
from inductor.ir.extent import Sizes, hint_of
from inductor.ir.graph import LoopGraph
from inductor.ir.wide_groups import FEWEST_OF_UNITS
from inductor.scheduler.gemms import (
    TemplateCandidate,
    choose_disjoint,
    find_candidates,
    with_templates,
)
from inductor.scheduler.schedule import Blocks, Kernel, Schedule, Step
from inductor.scheduler.verify import verify_steps

LIBRARY = "library"
ADVANTAGE = 0.94  # of the library's time: what is measured differs from run to run, and in a graph
ROUNDS = 2  # of neighbours of the best blocks
CLOSE = 1.1  # times the library's time: further from it, neighbours are not tried
# Of the largest result: sums in another order, roundings in between that may differ by one place.
TOLERANCE = {torch.float16: 0.01, torch.bfloat16: 0.04, torch.float32: 0.001}
ANY_BLOCKS = Blocks(64, 64, 32, 4, 3)


def choose_templates(
    graph: LoopGraph, schedule: Schedule, tuner: Tuner | None, fuse: bool = True,
    sizes: Sizes | None = None,
) -> Schedule:
    """The schedule with templates where they are faster. fuse: with what follows them. sizes: those
    of the graph that are known at a call only; blocks are then chosen for the hints, and the number
    of rows is assumed to stay few, or more."""
    found = find_candidates(graph, schedule, prologues=fuse)
    candidates = [
        each for each in found
        if (fuse or not each.template.epilogues()) and _is_worth_asking(each, found)
        and _is_undecided(each) and _can_print(each, graph, schedule)
    ]
    if not candidates:
        return schedule
    if tuner is None:
        layouts = graph.layouts()
        chosen = choose_disjoint(candidates, lambda each: likely_blocks(each.template, layouts))
    else:
        chosen = _measured(graph, schedule, candidates, tuner, sizes or Sizes())
    for each in chosen:
        nodes = ", ".join(each.template.nodes)
        logs.log("autotuning").emit(f"a template computes {nodes}: {each.template.blocks}")
        keep_to_rows(each.template)
    if not chosen:
        return schedule
    made = with_templates(schedule, chosen)
    verify_steps(graph, made.steps)
    return made


def _is_worth_asking(candidate: TemplateCandidate, chosen: Sequence[TemplateCandidate]) -> bool:
    """Not a GEMM of many rows alone: the library is faster by a tenth. A convolution through a
    window alone only where nothing can follow it, unless it has groups. Not one with groups of so
    few channels that most of a tile would be left out."""
    template = candidate.template
    one = template.gemms()[0]
    if one.groups > 1:
        return min(one.left.size[-1], one.columns) >= FEWEST_OF_UNITS
    if not is_alone(template):
        return True
    if one.window is None:
        return hint_of(one.m) <= FEW
    return not any(
        one in each.template.gemms() for each in chosen if not is_alone(each.template)
    )


def _is_undecided(candidate: TemplateCandidate) -> bool:
    """Whether its sizes allow a template; the log says where they do not."""
    why = why_not(candidate.template)
    if why:
        nodes = ", ".join(candidate.template.nodes)
        logs.log("autotuning").emit(f"no template computes {nodes}: {why}")
    return not why


def _can_print(candidate: TemplateCandidate, graph: LoopGraph, schedule: Schedule) -> bool:
    layouts = graph.layouts()
    try:
        print_template(replace(candidate.template, blocks=ANY_BLOCKS), layouts)
        for step in (schedule.steps[position] for position in candidate.positions):
            if isinstance(step, Kernel):
                print_kernel(step, layouts)
    except NotPrintable:
        return False
    return True


def _measured(
    graph: LoopGraph, schedule: Schedule, candidates: Sequence[TemplateCandidate], tuner: Tuner,
    sizes: Sizes,
) -> list[TemplateCandidate]:
    """The candidates that gain most, with their best blocks."""
    pending = {n: list(candidate_blocks(each.template)) for n, each in enumerate(candidates)}
    known: dict[int, Times] = {n: {} for n in pending}
    tried = {n: set(blocks) for n, blocks in pending.items()}
    best: dict[int, Blocks] = {}
    for _ in range(ROUNDS + 1):
        numbers = [n for n, blocks in pending.items() if blocks]
        questions = [_question(graph, schedule, candidates[n], pending[n], sizes) for n in numbers]
        answers = dict(zip(numbers, tuner.answers(questions), strict=True))
        pending = {}
        for n, times in answers.items():
            known[n].update(times)
            fastest = min(tried[n], key=lambda blocks: known[n].get(str(blocks), inf))  # noqa: B023
            if fastest != best.get(n) and _is_close(known[n], fastest):
                best[n] = fastest
                pending[n] = [
                    blocks for blocks in neighbours(fastest, candidates[n].template)
                    if blocks not in tried[n]
                ]
                tried[n].update(pending[n])
    gains: list[tuple[float, TemplateCandidate]] = []
    for n, blocks in best.items():
        library, took = known[n][LIBRARY], known[n][str(blocks)]
        if took < ADVANTAGE * library:
            template = replace(candidates[n].template, blocks=blocks)
            gains.append((library - took, replace(candidates[n], template=template)))
    ordered = [each for _, each in sorted(gains, key=lambda pair: -pair[0])]
    return choose_disjoint(ordered, lambda each: each.template)


def _is_close(times: Times, blocks: Blocks) -> bool:
    """Whether it is worth looking at neighbours of these blocks."""
    return times.get(str(blocks), inf) < CLOSE * times.get(LIBRARY, 0.0)


def _question(
    graph: LoopGraph, schedule: Schedule, candidate: TemplateCandidate, pending: Sequence[Blocks],
    sizes: Sizes,
) -> Question:
    template = candidate.template
    text = print_template(replace(template, blocks=ANY_BLOCKS), graph.layouts()).text
    dtypes = ", ".join(str(gemm.dtype) for gemm in template.gemms())
    key = make_question_key(graph.device, {
        "text": text, "candidates": "; ".join(map(str, pending)), "dtypes": dtypes,
        "template": TEMPLATE_VERSION, "library": _library_settings(),
        "sizes": str([sizes.hints[name] for name in sizes.symbols]),
    })  # fmt: skip

    def make_candidates() -> list[Candidate]:
        steps = [schedule.steps[position] for position in candidate.positions]
        make = functools.partial(_candidate, graph=graph, results=template.writes(), sizes=sizes)
        found = [make(LIBRARY, steps=_in_order(schedule, steps))]
        for blocks in pending:
            found.append(make(str(blocks), steps=[replace(template, blocks=blocks)]))
        return found

    first = template.gemms()[0]
    what = f"{'+'.join(template.nodes)} {first.batch}x{first.m}x{first.n}x{first.k}"
    what += f", {first.window}" if first.window is not None else ""
    return Question(key, what, make_candidates, TOLERANCE[first.dtype])


def _library_settings() -> str:
    """What the library's own choices depend on."""
    cudnn: Any = torch.backends.cudnn
    settings = (torch.backends.cuda.matmul.fp32_precision, cudnn.conv.fp32_precision)
    return f"{settings} {cudnn.enabled} {cudnn.benchmark} {cudnn.deterministic}"


def _in_order(schedule: Schedule, steps: Sequence[Step]) -> list[Step]:
    return [step for step in schedule.steps if any(step is each for each in steps)]


def _candidate(
    name: str, graph: LoopGraph, steps: Sequence[Step], results: Sequence[str], sizes: Sizes
) -> Candidate:
    part, schedule = part_of(graph, steps)
    read_outside = tuple(out for out in part.outputs if getattr(out, "buffer", None) in results)
    names = sorted((b for b in part.inputs if b is not None), key=lambda buffer: buffer.name)
    inputs = tuple(replace(buffer, position=n) for n, buffer in enumerate(names))
    part = replace(part, outputs=read_outside, inputs=inputs)  # the same inputs for each way
    layouts = part.layouts()
    kernels = {s.name: print_kernel(s, layouts) for s in steps if isinstance(s, Kernel)}
    templates = {t.name: print_template(t, layouts) for t in schedule.templates()}
    text = print_python_wrapper(part, schedule, kernels, sizes.symbols, templates)
    return Candidate(name, part, text, tuple(sizes.hints[name] for name in sizes.symbols))
