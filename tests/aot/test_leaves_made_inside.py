"""Leaves that a program makes itself: their gradients come to them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import dynamo
from dynamo.testing import assert_compiled
from tests.aot.compare import differentiated


def zeros(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    made = torch.zeros(4, requires_grad=True)
    return made, (x * (made + 1)).sin()


def like(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    made = torch.ones_like(x, requires_grad=True)
    return made * 2, made, x.cos()


def unused(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.full((4,), 3.0, requires_grad=True), x * 2


def hidden(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return ((x.detach() + torch.ones(4, requires_grad=True)).exp(),)


def without_grad(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    with torch.no_grad():
        made = torch.zeros(4, requires_grad=True)
    return made, made * x


def attack(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Backward within: a perturbation learns."""
    step = torch.zeros_like(x, requires_grad=True)
    (x.detach() + step).square().sum().backward()
    assert step.grad is not None
    return step, x + step.grad.sign()


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("learns", [False, True])
@pytest.mark.parametrize("program", [zeros, like, unused, hidden, without_grad, attack])
def test_equals_eager(
    program: Callable[..., tuple[torch.Tensor, ...]], learns: bool, dynamic: bool, backend: str
) -> None:
    dynamo.reset()
    found = []
    for call in (program, dynamo.compile(program, backend=backend, dynamic=dynamic)):
        results, gradients = differentiated(call, torch.arange(4.0).requires_grad_(learns))
        facts = [(value.requires_grad, value.is_leaf) for value in results]
        found.append((facts, results, gradients))
    assert found[1][0] == found[0][0]
    torch.testing.assert_close(found[1][1:], found[0][1:])
    assert_compiled()
