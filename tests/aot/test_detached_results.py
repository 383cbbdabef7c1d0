"""A result and what is detached from it leave one graph, in whatever order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynamo

W = torch.randn(4, 3, requires_grad=True)
LOGGED: dict[str, torch.Tensor] = {}


def behind(x: torch.Tensor) -> Any:
    loss = (x @ W).square().mean()
    return loss, loss.detach()


def before(x: torch.Tensor) -> Any:
    loss = (x @ W).square().mean()
    return loss.detach(), loss


def logged(x: torch.Tensor) -> Any:
    loss = (x @ W).square().mean()
    LOGGED["loss"] = loss.detach()
    return loss, LOGGED["loss"]


def of_a_matrix(x: torch.Tensor) -> Any:
    y = x @ W
    return y.detach(), y, y.detach()[1:], y[:2].sum()


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("f", [behind, before, logged, of_a_matrix])
def test_one_memory(f: Callable[[torch.Tensor], Any], backend: str) -> None:
    dynamo.counters.clear()
    compiled = dynamo.compile(f, backend=backend, fullgraph=True)
    x = torch.randn(5, 4)
    for _ in range(2):
        ours, eagers = compiled(x), f(x)
        torch.testing.assert_close(ours, eagers)
        assert [y.requires_grad for y in ours] == [y.requires_grad for y in eagers]
        assert ours[0].data_ptr() == ours[1].data_ptr()
        gradients = [
            torch.autograd.grad([y.sum() for y in some if y.requires_grad], [W])
            for some in (ours, eagers)
        ]
        torch.testing.assert_close(*gradients)
        with torch.no_grad():
            next(y for y in ours if not y.requires_grad).fill_(7.0)
        assert (next(y for y in ours if y.requires_grad) == 7.0).all()
    assert not dynamo.counters["not_compiled"]
