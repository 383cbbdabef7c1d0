"""Arithmetic on constant numbers is done while compiling."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import dynamo
import inductor
from inductor.fx_passes.fold import fold_constants

aten = torch.ops.aten


def scaled(x: torch.Tensor) -> torch.Tensor:
    return x / torch.sqrt(torch.tensor(x.size(-1), dtype=torch.float32) * 3).to(x.dtype)


def counted(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    number = torch.tensor(1) * 2 + 1
    return x * number, number


def vectors(x: torch.Tensor) -> torch.Tensor:
    return x * torch.tensor([1.0, 2.0]).exp()


def raising(x: torch.Tensor) -> torch.Tensor:
    return x * (torch.tensor(5) // torch.tensor(0))


def drawn(x: torch.Tensor) -> torch.Tensor:
    return x * torch.bernoulli(torch.tensor(0.5))


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[list[Any]]:
    """The operators of each graph behind the pass."""
    seen: list[list[Any]] = []

    def spying(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
        folded = fold_constants(module)
        folded.graph.lint()
        seen.append([node.target for node in folded.graph.nodes if node.op == "call_function"])
        return folded

    monkeypatch.setattr(importlib.import_module("inductor.fx_passes.pipeline"), "fold_constants", spying)
    return seen


@pytest.mark.parametrize("program, left", [
    (scaled, [aten.div.Tensor]), (counted, [aten.mul.Tensor]), (vectors, [aten.exp.default, aten.mul.Tensor]),
])  # fmt: skip
def test_programs(graphs: list[list[Any]], program: Callable[..., Any], left: list[Any]) -> None:
    dynamo.reset()
    compiled = dynamo.compile(program, fullgraph=True, options={"graph_cache": False})
    for _ in range(2):
        x = torch.randn(4, 2)
        torch.testing.assert_close(compiled(x), program(x))
    assert graphs == [left]
    if program is counted:  # a result of its own at each call
        first = compiled(x)[1]
        first.add_(7)
        assert compiled(x)[1].item() == 3


def test_what_raises_or_draws_stays(graphs: list[list[Any]]) -> None:
    dynamo.reset()
    with pytest.raises(RuntimeError, match="ZeroDivision"):
        dynamo.compile(raising)(torch.ones(2))
    compiled = dynamo.compile(drawn)
    torch.manual_seed(0)
    found = [compiled(torch.ones(1)).item() for _ in range(20)]
    torch.manual_seed(0)
    assert found == [drawn(torch.ones(1)).item() for _ in range(20)] and len(set(found)) == 2


def graph_on_a_gpu(number: torch.Tensor, dtype: torch.dtype) -> torch.fx.GraphModule:
    """x * number.to(dtype, "cuda") for x on a GPU that need not be there."""
    mode = FakeTensorMode()
    graph = torch.fx.Graph()
    with mode:
        fakes = [torch.empty(4, device="cuda"), torch.empty((), dtype=number.dtype),
                 torch.empty((), dtype=dtype, device="cuda"), torch.empty(4, device="cuda")]
    x, constant = graph.placeholder("x"), graph.get_attr("_literal_0")
    moved = graph.call_function(
        aten._to_copy.default, (constant,), {"dtype": dtype, "device": torch.device("cuda")})
    product = graph.call_function(aten.mul.Tensor, (x, moved))
    for node, fake in zip((x, constant, moved, product), fakes, strict=True):
        node.meta["val"] = fake
    graph.output((product,))
    return torch.fx.GraphModule({"_literal_0": number}, graph)


@pytest.mark.parametrize("number, dtype, left", [
    (torch.tensor(15), torch.int64, 15), (torch.tensor(2.7), torch.int32, 2),
    (torch.tensor(0.1), torch.float16, torch.tensor(0.1).half().item()),
    (torch.tensor(float("inf")), torch.bfloat16, float("inf")),
    (torch.tensor(float("nan")), torch.int64, None),
])  # fmt: skip
def test_a_number_that_moves_to_a_gpu_is_made_there(
    number: torch.Tensor, dtype: torch.dtype, left: float | None
) -> None:
    module = fold_constants(graph_on_a_gpu(number, dtype))
    module.graph.lint()
    made = module.graph.find_nodes(op="call_function", target=aten.full.default)
    assert [node.args[1] for node in made] == ([] if left is None else [left])
    assert all(node.meta["val"].device.type == "cuda" for node in made)
    assert bool(module.graph.find_nodes(op="get_attr")) == (left is None)


def test_tensors_of_a_module_that_is_the_graph_may_change() -> None:
    class Scaled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = torch.tensor(2.0)
            self.register_buffer("other", torch.tensor([3.0]))
            self.many = torch.tensor([1.0, 2.0])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.sqrt(x * self.one * self.other) * self.many * torch.tensor(0.5)

    module = Scaled()
    compiled = inductor.compile_fx(torch.fx.symbolic_trace(module), [torch.ones(2)])
    for _ in range(3):
        found = compiled(torch.ones(2))
        torch.testing.assert_close(found[0] if isinstance(found, (tuple, list)) else found, module(torch.ones(2)))
        for held in (module.one, module.other, module.many):
            held.add_(1)
