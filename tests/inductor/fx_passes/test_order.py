"""Gradients of large weights from few rows are computed last, on a GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import dynamo
from dynamo import aot
from dynamo.aot.boxed import run_as_it_is
from inductor.fx_passes import order

aten = torch.ops.aten


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order, "_device", lambda nodes: "cuda")


def gradients(rows: int) -> tuple[list[Any], list[Any]]:
    """The sizes of the GEMMs of backward in their order, before and after; the values are checked."""
    before: list[Any] = []
    after: list[Any] = []

    def sizes(module: torch.fx.GraphModule) -> list[Any]:
        return [tuple(n.meta["val"].shape) for n in module.graph.nodes if n.target is aten.mm.default]

    def backward(module: torch.fx.GraphModule, fakes: list[Any]) -> Any:
        before.extend(sizes(module))
        module = order.large_results_last(module)
        module.graph.lint()
        module.recompile()
        after.extend(sizes(module))
        return run_as_it_is(module)

    def compile_graph(gm: torch.fx.GraphModule, examples: list[Any]) -> Any:
        return aot.compile_training(gm, examples, lambda module, fakes: run_as_it_is(module), backward)

    def program(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (x.sin() @ a.t()).relu() @ b.t()

    dynamo.reset()
    given = [torch.randn(size, requires_grad=True) for size in ((rows, 32), (64, 32), (48, 64))]
    twins = [x.detach().clone().requires_grad_() for x in given]
    dynamo.compile(program, backend=compile_graph)(*given).square().sum().backward()
    program(*twins).square().sum().backward()
    for one, other in zip(given, twins, strict=True):
        torch.testing.assert_close(one.grad, other.grad)
    return before, after


@pytest.mark.usefixtures("on_gpu")
def test_large_ones_from_few_rows_come_last() -> None:
    before, after = gradients(2)
    weights = {(48, 64), (64, 48), (64, 32), (32, 64)}
    assert sorted(before) == sorted(after) and before != after
    assert set(after[-2:]) <= weights and after[-1] in {(48, 64), (64, 48)}


@pytest.mark.usefixtures("on_gpu")
def test_those_from_many_rows_stay() -> None:
    before, after = gradients(500)
    assert before == after


def test_a_cpu_keeps_its_order() -> None:
    before, after = gradients(2)
    assert before == after


@pytest.mark.usefixtures("on_gpu")
def test_what_writes_keeps_all_places() -> None:
    graph = torch.fx.Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    gemm = graph.call_function(aten.mm.default, (x, y))
    graph.call_function(aten.copy_.default, (x, y))
    graph.output((gemm,))
    module = torch.fx.GraphModule({}, graph)
    order.large_results_last(module)
    assert [node.name for node in module.graph.nodes] == ["x", "y", "mm_default", "copy__default", "output"]
