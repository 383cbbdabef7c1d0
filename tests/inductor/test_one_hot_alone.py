"""`one_hot` on a CPU raises by the values of its input: it runs alone, what is around it compiled."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import dynamo
from inductor import metrics

Tensor = torch.Tensor


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(16, 4)
        self.experts = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        probability = self.router(x).softmax(-1)
        share = probability * F.one_hot(probability.argmax(-1), 4)
        return sum(share[..., n, None] * expert(x) for n, expert in enumerate(self.experts))  # type: ignore


@pytest.fixture(autouse=True)
def fresh() -> None:
    dynamo.reset()


def test_a_model_is_compiled_around_it() -> None:
    model = Experts()
    other, before = copy.deepcopy(model), metrics.snapshot()["kernels"]
    compiled = dynamo.compile(model, fullgraph=True)
    for rows in (3, 5, 7):
        x = torch.randn(2, rows, 16)
        for module, call in ((model, compiled), (other, other)):
            module.zero_grad()
            call(x).square().sum().backward()
        pairs = zip(model.parameters(), other.parameters(), strict=True)
        for one, expected in pairs:
            torch.testing.assert_close(one.grad, expected.grad, rtol=1e-4, atol=1e-4)
    assert metrics.snapshot()["kernels"] - before > 2
    assert not dynamo.counters["not_compiled"] and not dynamo.counters["graph_break"]


@pytest.mark.parametrize("bad, words", [(3, "must be smaller than num_classes"), (-1, "must be non-negative")])
def test_errors_are_eagers(bad: int, words: str) -> None:
    def program(x: Tensor, at: Tensor) -> Tensor:
        return (x * 2 + 1).relu() + F.one_hot(at, 3)

    def caught(x: Tensor, at: Tensor) -> tuple[Tensor, str]:
        try:
            return program(x, at), ""
        except RuntimeError as error:
            return x.exp(), str(error)

    x, good, at = torch.randn(3, 3), torch.tensor([0, 2, 1]), torch.tensor([0, bad, 1])
    compiled, catching = dynamo.compile(program, fullgraph=True), dynamo.compile(caught)
    torch.testing.assert_close(compiled(x, good), program(x, good))
    with pytest.raises(RuntimeError, match=words):
        compiled(x, at)
    for given in (good, at, good):
        found, expected = catching(x, given), caught(x, given)
        torch.testing.assert_close(found[0], expected[0])
        assert found[1] == expected[1]
    assert not dynamo.counters["not_compiled"]
