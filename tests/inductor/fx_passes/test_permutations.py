"""Gradients of rows that a sort picks: reads by the inverse permutation, and eager's values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import dynamo
from dynamo.aot.api import compile_training
from inductor.fx_passes.permutations import read_by_inverses

TOKENS, CHOICES, WIDTH = 12, 3, 5
COUNT = TOKENS * CHOICES


def experts(h: Tensor, w: Tensor, ids: Tensor) -> Tensor:
    perm = torch.sort(ids.reshape(-1))[1]
    rows = (h[perm // CHOICES] * 2).tanh() * w.reshape(-1)[perm].unsqueeze(-1)
    inverse = torch.empty_like(perm)
    inverse[perm] = torch.arange(COUNT, device=ids.device)
    return rows[inverse].view(TOKENS, CHOICES, WIDTH).sum(1)


def back_by_a_second_sort(h: Tensor, w: Tensor, ids: Tensor) -> Tensor:
    perm = ids.reshape(-1).argsort()
    return h.repeat(CHOICES, 1)[perm].cos() * w.reshape(-1)[perm.int().clone()].unsqueeze(-1)


def some_rows(h: Tensor, w: Tensor, ids: Tensor) -> Tensor:
    perm = torch.sort(ids.reshape(-1))[1]
    return h[perm[:7] % TOKENS].sin() + w[perm[0] // CHOICES].sum()


def other_division(h: Tensor, w: Tensor, ids: Tensor) -> Tensor:
    perm = torch.sort(ids.reshape(-1))[1]
    return h[perm // (CHOICES + 1)].sin() * w.sum()


def several_axes(h: Tensor, w: Tensor, ids: Tensor) -> Tensor:
    order = torch.sort(ids, 1)[1]
    return w.gather(1, order) * h[ids % TOKENS].sum(-1)


def counted_in_integers(h: Tensor, w: Tensor, ids: Tensor) -> Tensor:
    perm = torch.sort(ids.reshape(-1))[1]
    counts = torch.zeros(TOKENS, dtype=torch.int32).index_put((perm // CHOICES,), ids.reshape(-1).int(), accumulate=True)
    return h.sin() * counts[:, None].to(torch.float32) + counts.element_size() + w.sum()


PROGRAMS: list[tuple[Callable[..., Any], int]] = [  # additions to memory that are left
    (experts, 0), (back_by_a_second_sort, 0), (some_rows, 2), (other_division, 1), (several_axes, 1), (counted_in_integers, 1),
]


@pytest.mark.parametrize(("program", "left"), PROGRAMS, ids=lambda value: getattr(value, "__name__", None))
def test_additions_are_reads(program: Callable[..., Any], left: int) -> None:
    found: list[int] = []

    def rewritten(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
        module = read_by_inverses(module)
        calls = module.graph.find_nodes(op="call_function", target=torch.ops.aten.index_put.default)
        found.append(sum(node.args[3:] == (True,) for node in calls))
        return module

    def backend(gm: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        run = lambda module, fakes: module  # noqa: E731
        return compile_training(gm, inputs, run, run, rewrite=rewritten)

    for way in (backend, "inductor"):
        dynamo.reset()
        compiled = dynamo.compile(program, backend=way)
        for _ in range(2):
            h, w = torch.randn(TOKENS, WIDTH, requires_grad=True), torch.rand(TOKENS, CHOICES, requires_grad=True)
            ids = torch.randint(0, 4, (TOKENS, CHOICES))
            expected, got = program(h, w, ids), compiled(h, w, ids)
            tangent = torch.randn_like(expected)
            torch.testing.assert_close(got, expected)
            torch.testing.assert_close(
                torch.autograd.grad(got, [h, w], tangent), torch.autograd.grad(expected, [h, w], tangent))
    assert found == [left]
