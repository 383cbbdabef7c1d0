"""A result and what is detached from it leave one graph, in whatever order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynamo
from dynamo.testing import assert_compiled

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


def of_an_input(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    cut = x[1:].detach()
    return cut.view(-1), cut, cut[1:].t(), x * 2


def of_a_result(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x.sin()
    cut = y.detach()
    return cut[1:], y, cut, cut[1:].detach(), y[0]


def of_both(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    first = x.detach()
    second = first.t().detach()
    return second[1:], first, second, first[2:]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("program", [of_an_input, of_a_result, of_both])
def test_views_of_what_is_detached(
    program: Callable[..., tuple[torch.Tensor, ...]], grad: bool, backend: str, dynamic: bool
) -> None:
    dynamo.reset()
    compiled = dynamo.compile(program, backend=backend, dynamic=dynamic)
    for start in (3.0, 4.0):
        x = (torch.arange(20.0).view(5, 4)[1:] + start).requires_grad_(grad)
        want, got = program(x), compiled(x)
        torch.testing.assert_close(got, want)
        for one, other in zip(got, want, strict=True):
            assert (one.requires_grad, one._is_view(), one.stride()) == (
                other.requires_grad, other._is_view(), other.stride())
        bases = [[t._base is other for other in (x, *want)] for t in want]
        assert [[t._base is other for other in (x, *got)] for t in got] == bases
        want[0].data.fill_(7)
        got[0].data.fill_(7)
        torch.testing.assert_close(got, want)
    assert_compiled()
