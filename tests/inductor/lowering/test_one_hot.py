"""Sums over where at most one element is not zero need no loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import dynamo
from dynamo.aot.api import compile_inference
from inductor.fx_passes.pipeline import decompositions
from inductor.ir.graph import ComputedBuffer
from inductor.ir.interpret import interpret_graph
from inductor.lowering.run import lower_graph

Tensor = torch.Tensor


def reductions(program: Callable[..., Any], values: list[Tensor]) -> int:
    """How many sums are left in a program that gives eager's results."""
    graphs: list[Any] = []

    def compile_aten(module: Any, fakes: list[Any]) -> Any:
        graphs.append(lower_graph(module).graph)
        return lambda *args: tuple(interpret_graph(graphs[-1], args))

    call = dynamo.compile(program, backend=lambda gm, examples: compile_inference(
        gm, examples, compile_aten, decompositions=decompositions()))
    torch.testing.assert_close(call(*values), program(*values))
    (graph,) = graphs
    return sum(isinstance(n, ComputedBuffer) and n.kind == "reduction" for n in graph.nodes)


def one_hot(x: Tensor, at: Tensor) -> Tensor:
    return torch.where(torch.arange(7)[None] == at[:, None], -x[:, :1].exp(), 0.0)


def test_a_hit_is_the_sum() -> None:
    x, at = torch.randn(5, 7), torch.tensor([0, 6, 9, -1, 3])  # two lie outside
    assert reductions(lambda x, at: one_hot(x, at).sum(1), [x, at]) == 0
    assert reductions(lambda x, at: (-one_hot(x, at)).sum(1, keepdim=True), [x, at]) == 0
    whole = [x, at.clamp(0, 6)]
    assert reductions(lambda x, at: one_hot(x, at) - one_hot(x, at).sum(1, keepdim=True), whole) == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_is_the_same_for_all_is_added_once(dtype: Any) -> None:
    """As in the gradient of a loss with smoothed labels."""
    x, at = torch.randn(5, 7, dtype=dtype), torch.tensor([0, 6, 9, -1, 3])
    x[1, 1], x[3, 1] = float("inf"), float("nan")
    programs: list[Any] = [
        lambda x, at: (one_hot(x, at) + 1).sum(1),
        lambda x, at: (x[:, 1:2].sin() + one_hot(x, at)).sum(1, keepdim=True),
        lambda x, at: (x[:, 1:2].expand(5, 7) - one_hot(x, at)).sum(1).isnan(),
        lambda x, at: (one_hot(x, at).t() + x[:, 1]).sum(0) * 2,
    ]
    assert [reductions(program, [x.nan_to_num(3, 3), at]) for program in programs] == [0, 0, 1, 0]
    reductions(lambda x, at: (one_hot(x, at) + x[:, 1:2]).sum(1).isfinite(), [x, at])


@pytest.mark.parametrize("program", [
    lambda x, at: (one_hot(x, at) * x).sum(1),
    lambda x, at: (one_hot(x, at) + x).sum(1),
    lambda x, at: (one_hot(x, at) + x[:, :1]).neg().exp().sum(1),
    lambda x, at: (one_hot(x, at).int() + at[:, None].int()).sum(1),
    lambda x, at: torch.where(torch.arange(7)[None] <= at[:, None], x[:, :1], 0.0).sum(1),
    lambda x, at: torch.where(torch.arange(7)[None] == at[:, None], x, 0.0).sum(1),
    lambda x, at: torch.where(torch.arange(7)[None] == at[:, None], x[:, :1], 1.0).sum(1),
    lambda x, at: torch.where(torch.arange(0, 14, 2)[None] == at[:, None], x[:, :1], 0.0).sum(1),
    lambda x, at: one_hot(x, at).sum(0),
], ids=range(9))  # fmt: skip
def test_others_are_summed(program: Any) -> None:
    assert reductions(program, [torch.randn(5, 7), torch.tensor([0, 6, 2, 3, 3])]) == 1


def test_what_was_written_since_is_not_read_again() -> None:
    def program(x: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
        x = x * 1
        hot = one_hot(x, at)
        kept = hot + 1
        x[:, 0] = 3.0
        return hot.sum(1) + x[:, 0], kept + hot

    reductions(program, [torch.randn(5, 7), torch.tensor([0, 6, 2, 3, 3])])


@pytest.mark.parametrize("how", ["mean", "sum"])
def test_gradients_of_cross_entropy(how: str) -> None:
    x, goals = torch.randn(9, 11, requires_grad=True), torch.randint(0, 11, (9,))
    goals[2] = -100
    compiled = dynamo.compile(lambda x: F.cross_entropy(x * 2, goals, reduction=how))
    (found,) = torch.autograd.grad(compiled(x), x)
    (want,) = torch.autograd.grad(F.cross_entropy(x * 2, goals, reduction=how), x)
    torch.testing.assert_close(found, want)
