"""Rows of a tied table are added to the gradient of its GEMM, not to zeros."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import dynamo
from inductor.fx_passes import pipeline, table_gradients

Tensor = torch.Tensor
Seen = list[list[Any]]


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    """The targets of each graph after the pass."""
    found: Seen = []

    def watched(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
        module = table_gradients.add_rows_to_gemms(module)
        module.graph.lint()
        found.append([node.target for node in module.graph.nodes])
        return module

    monkeypatch.setattr(pipeline, "add_rows_to_gemms", watched)
    return found


class Tied(nn.Module):
    """A table that is read `reads` times and is the weight of the last layer."""

    def __init__(self, rows: int, padding: int | None, reads: int) -> None:
        super().__init__()
        self.table = nn.Embedding(rows, 16, padding_idx=padding)
        self.hidden = nn.Linear(16, 16)
        self.last = nn.Linear(16, rows, bias=False)
        self.last.weight = self.table.weight
        self.reads = reads

    def forward(self, *ids: Tensor) -> Tensor:
        x = sum(self.hidden(self.table(each)).tanh() for each in ids[: self.reads])
        return F.cross_entropy(self.last(x).flatten(0, 1), ids[0].flatten())


def check_gradients(model: nn.Module, *given: Tensor) -> None:
    """Gradients are as near to those in float64 as eager's."""
    mine, eager, exact = (copy.deepcopy(model) for _ in range(3))
    compiled = dynamo.compile(mine, backend="inductor")
    for module in (compiled, eager, exact.double()):
        module(*given).backward()
    for got, want, right in zip(mine.parameters(), eager.parameters(), exact.parameters(), strict=True):
        error = (got.grad.double() - right.grad).abs().max()
        allowed = (want.grad.double() - right.grad).abs().max()
        assert error <= 3 * allowed + 1e-7 * right.grad.abs().max()
        assert got.grad.stride() == want.grad.stride()


@pytest.mark.parametrize("reads", [1, 2, 3])
@pytest.mark.parametrize("padding", [None, 2])
def test_tied_tables(seen: Seen, padding: int | None, reads: int) -> None:
    ids = [torch.randint(0, 600, (2, 9)) for _ in range(reads)]
    ids[-1][0, :4] = 2
    check_gradients(Tied(600, padding, reads), *ids)
    backward = seen[-1]
    assert backward.count(torch.ops.aten.index_put.default) == reads
    zeros = (torch.ops.aten.new_zeros.default, torch.ops.aten.zeros.default)
    assert not any(target in zeros for target in backward)


def test_small_tables_stay(seen: Seen) -> None:
    """Where as much is added as there is, a loop over both is as good."""
    check_gradients(Tied(8, None, 1), torch.randint(0, 8, (4, 9)))
    assert torch.ops.aten.new_zeros.default in seen[-1]


def sum_is_read_twice(x: Tensor, y: Tensor, at: Tensor) -> tuple[Tensor, ...]:
    gemm = x @ y
    added = torch.zeros(300, 16).index_put((at,), y[:8], accumulate=True)
    return gemm + added, gemm * 2


def overwrites(x: Tensor, y: Tensor, at: Tensor) -> Tensor:
    return x @ y + torch.zeros(300, 16).index_put((at,), y[:8])


def not_zeros(x: Tensor, y: Tensor, at: Tensor) -> Tensor:
    return x @ y + torch.ones(300, 16).index_put((at,), y[:8], accumulate=True)


def another_factor(x: Tensor, y: Tensor, at: Tensor) -> Tensor:
    added = torch.zeros(300, 16).index_put((at,), y[:8], accumulate=True)
    return torch.add(x @ y, added, alpha=2)


def broadcast(x: Tensor, y: Tensor, at: Tensor) -> Tensor:
    return x @ y + torch.zeros(1, 16).index_put((at * 0,), y[:8], accumulate=True)


def two_tables(x: Tensor, y: Tensor, at: Tensor) -> Tensor:
    one = torch.zeros(300, 16).index_put((at,), y[:8], accumulate=True)
    other = torch.zeros(300, 16).index_put((at.flip(0),), y[1:9], accumulate=True)
    return one + other


def rows_from_the_gemm(x: Tensor, y: Tensor, at: Tensor) -> Tensor:
    gemm = x @ y
    return gemm + torch.zeros(300, 16).index_put((at,), gemm[:8], accumulate=True)


PROGRAMS: list[Callable[..., Any]] = [
    sum_is_read_twice, overwrites, not_zeros, another_factor, broadcast, two_tables,
    rows_from_the_gemm,
]  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_others_stay(seen: Seen, program: Callable[..., Any]) -> None:
    compiled = dynamo.compile(program, backend="inductor")
    with torch.no_grad():
        for _ in range(2):
            given = torch.randn(300, 12), torch.randn(12, 16), torch.randint(0, 300, (8,))
            torch.testing.assert_close(compiled(*given), program(*given), rtol=1e-4, atol=1e-5)
    (graph,) = seen
    assert torch.ops.aten.add.Tensor in graph
