"""Which GEMMs and kernels a template may compute together."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import dynamo
from dynamo.aot.api import compile_inference
from inductor.fx_passes.pipeline import decompositions
from inductor.ir.graph import ExternKernel
from inductor.lowering.run import lower_graph
from inductor.scheduler.gemms import (
    TemplateCandidate,
    choose_disjoint,
    find_candidates,
    with_templates,
)
from inductor.scheduler.run import schedule_graph
from inductor.scheduler.schedule import Kernel, Schedule
from inductor.scheduler.verify import verify_steps

aten = torch.ops.aten


def candidates_of(function, *inputs) -> tuple[list[TemplateCandidate], Schedule, object]:
    found = []

    def compile_aten(module, fakes):
        graph = lower_graph(module).graph
        schedule = schedule_graph(graph, 8)
        found.append((find_candidates(graph, schedule), schedule, graph))
        return module.forward

    def backend(gm, examples):
        return compile_inference(
            gm, examples, compile_aten, decompositions=decompositions(), epilogue_in_graph=True
        )

    with torch.no_grad():
        dynamo.compile(function, backend=backend)(*inputs)
    return found[0]


def shape(candidate: TemplateCandidate) -> tuple[list[int], list[bool], list[str]]:
    parts = candidate.template.parts
    kept = [name for part in parts for name in part.stored]
    return [len(part.gemms) for part in parts], [part.epilogue is not None for part in parts], kept


X, W, V = torch.randn(6, 8), torch.randn(8, 4), torch.randn(8, 4)


def fused(function, *inputs) -> list[TemplateCandidate]:
    return [c for c in candidates_of(function, *inputs)[0] if c.template.epilogues()]


def test_one_reader() -> None:
    found, schedule, graph = candidates_of(lambda x, w: (x @ w).relu(), X, W)
    assert [shape(each) for each in found] == [([1], [True], []), ([1], [False], ["buf0"])]
    chosen = choose_disjoint(found, lambda each: each.template)
    assert len(chosen) == 1
    replaced = with_templates(schedule, chosen)
    verify_steps(graph, replaced.steps)
    assert [type(step).__name__ for step in replaced.steps] == ["TemplateKernel"]


def test_two_gemms_with_one_reader() -> None:
    both, last, *_ = fused(lambda x, w, v: F.silu(x @ w) * (x @ v), X, W, V)
    assert shape(both) == ([2], [True], []) and shape(last) == ([1], [True], [])
    assert len(both.positions) == 3 and len(last.positions) == 2


def test_gemms_of_different_sizes_are_not_one_part() -> None:
    y = torch.randn(6, 5)
    found = fused(lambda x, w, y, v: (x @ w) + (y @ v), X, W, y, torch.randn(5, 4))
    assert [shape(each) for each in found] == [([1], [True], [])]


def test_what_is_an_output_is_kept() -> None:
    def f(x, w):
        y = x @ w
        return y, y.relu()

    (one,) = fused(f, X, W)
    assert one.template.parts[0].stored == (one.template.gemms()[0].name,)


@pytest.mark.parametrize("function", [
    lambda x, w: (x @ w).softmax(-1),  # rows are reduced
    lambda x, w: (x @ w).t() + w.sum(),  # other places
    lambda x, w: (x @ w).cumsum(0),
    lambda x, w: torch.cat([x @ w, x @ w * 2], 1).sin(),
    lambda x, w: (lambda y: y + y.flip(0))(x @ w),
], ids=["rows", "places", "running", "joined", "turned"])
def test_no_epilogue(function) -> None:
    assert not fused(function, X, W)


def test_operands_that_are_overwritten_before_the_reader() -> None:
    found, schedule, graph = candidates_of(lambda x, w: (x @ w).relu(), X, W)
    gemm, kernel = schedule.steps
    view = gemm.args[0]
    for mutates, count in ((("arg0",), 1), ((), 2)):
        write = ExternKernel("buf9", None, aten.mul_.Scalar, (view, 2), (), mutates)
        steps = (gemm, write, kernel)
        assert len(find_candidates(graph, Schedule(steps))) == count


def test_side_by_side_only_where_operands_are_there() -> None:
    def f(x, w, v):
        return x @ w, x @ v, x @ (v * 2)

    found = [c for c in candidates_of(f, X, W, V)[0] if len(c.template.parts) > 1]
    assert found and all(len(each.positions) == len(each.template.parts) for each in found)
    schedule = candidates_of(f, X, W, V)[1]
    for each in found:
        names = {n for step in schedule.steps[: each.at] for n in (
            step.writes() if isinstance(step, Kernel) else (step.name,))}
        inputs = {"arg0", "arg1", "arg2"}
        assert set(each.template.reads()) <= names | inputs


def test_overlap_is_an_error() -> None:
    found, schedule, _ = candidates_of(lambda x, w: (x @ w).relu(), X, W)
    with pytest.raises(ValueError, match="replaces"):
        with_templates(schedule, found)
