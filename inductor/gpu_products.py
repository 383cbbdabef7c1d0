"""Which matrix products on a GPU are computed by our template, with what follows them.

In: a loop graph and its schedule, where all products are ATen's. Out: the same schedule where some
products, and kernels that read them, are `TemplateKernel`s. By default a template is taken where it
is likely to be faster (`codegen/triton/template_configs.py`); with a tuner each candidate runs
beside the library's product and the kernels behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from dynamo.base import logs
from inductor.codegen.python_wrapper import print_python_wrapper
from inductor.codegen.triton.launch import NotPrintable
from inductor.codegen.triton.print_kernel import print_kernel
from inductor.codegen.triton.template import TEMPLATE_VERSION, print_template
from inductor.codegen.triton.template_configs import candidate_blocks, likely_blocks
from inductor.ir.graph import LoopGraph
from inductor.scheduler.products import Candidate, choose_disjoint, find_candidates, with_templates
from inductor.scheduler.schedule import Blocks, Kernel, Schedule, Step, TemplateKernel
from inductor.scheduler.verify import verify_steps
from inductor.tuning import Question, Times, Tuner, Way, make_question_key, part_of

LIBRARY = "library"
ADVANTAGE = 0.97  # of the library's time: what is measured differs from run to run
ANY_BLOCKS = Blocks(64, 64, 32, 4, 3)


def choose_templates(graph: LoopGraph, schedule: Schedule, tuner: Tuner | None) -> Schedule:
    """The schedule with templates where they are faster."""
    candidates = [
        each for each in find_candidates(graph, schedule) if _can_print(each, graph, schedule)
    ]
    if not candidates:
        return schedule
    if tuner is None:
        chosen = choose_disjoint(candidates, lambda each: likely_blocks(each.template))
    else:
        chosen = _measured(graph, schedule, candidates, tuner)
    for each in chosen:
        nodes = ", ".join(each.template.nodes)
        logs.log("autotuning").emit(f"a template computes {nodes}: {each.template.blocks}")
    if not chosen:
        return schedule
    found = with_templates(schedule, chosen)
    verify_steps(graph, found.steps)
    return found


def _can_print(candidate: Candidate, graph: LoopGraph, schedule: Schedule) -> bool:
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
    graph: LoopGraph, schedule: Schedule, candidates: Sequence[Candidate], tuner: Tuner
) -> list[Candidate]:
    """The candidates that gain most, with their best blocks."""
    questions = [_question(graph, schedule, each) for each in candidates]
    gains: list[tuple[float, Candidate]] = []
    for each, times in zip(candidates, tuner.answers(questions), strict=True):
        best = _best(each.template, times)
        if best is not None:
            blocks, gain = best
            gains.append((gain, replace(each, template=replace(each.template, blocks=blocks))))
    ordered = [each for _, each in sorted(gains, key=lambda pair: -pair[0])]
    return choose_disjoint(ordered, lambda each: each.template)


def _best(template: TemplateKernel, times: Times) -> tuple[Blocks, float] | None:
    """The fastest blocks and the microseconds that they save; None where the library is as fast."""
    library = times.get(LIBRARY)
    own = {str(blocks): blocks for blocks in candidate_blocks(template)}
    ran = [(took, name) for name, took in times.items() if name in own]
    if library is None or not ran:
        return None
    took, name = min(ran)
    return (own[name], library - took) if took < ADVANTAGE * library else None


def _question(graph: LoopGraph, schedule: Schedule, candidate: Candidate) -> Question:
    template = candidate.template
    text = print_template(replace(template, blocks=ANY_BLOCKS), graph.layouts()).text
    ways = [str(blocks) for blocks in candidate_blocks(template)]
    dtypes = ", ".join(str(product.dtype) for product in template.products())
    key = make_question_key(graph.device, {
        "text": text, "ways": "; ".join(ways), "dtypes": dtypes, "template": TEMPLATE_VERSION,
        "tf32": str(torch.backends.cuda.matmul.allow_tf32),
    })  # fmt: skip

    def make_ways() -> list[Way]:
        steps = [schedule.steps[position] for position in candidate.positions]
        found = [_way(LIBRARY, graph, _in_order(schedule, steps), template.writes())]
        for blocks in candidate_blocks(template):
            step = replace(template, blocks=blocks)
            found.append(_way(str(blocks), graph, [step], template.writes()))
        return found

    first = template.products()[0]
    what = f"{'+'.join(template.nodes)} {first.batch}x{first.m}x{first.n}x{first.k}"
    return Question(key, what, make_ways)


def _in_order(schedule: Schedule, steps: Sequence[Step]) -> list[Step]:
    return [step for step in schedule.steps if any(step is each for each in steps)]


def _way(name: str, graph: LoopGraph, steps: Sequence[Step], results: Sequence[str]) -> Way:
    part, schedule = part_of(graph, steps)
    kept = tuple(out for out in part.outputs if getattr(out, "buffer", None) in results)
    names = sorted((b for b in part.inputs if b is not None), key=lambda buffer: buffer.name)
    inputs = tuple(replace(buffer, position=n) for n, buffer in enumerate(names))
    part = replace(part, outputs=kept, inputs=inputs)  # the same inputs for each way
    layouts = part.layouts()
    kernels = {s.name: print_kernel(s, layouts) for s in steps if isinstance(s, Kernel)}
    templates = {t.name: print_template(t, layouts) for t in schedule.templates()}
    return Way(name, part, print_python_wrapper(part, schedule, kernels, (), templates))
