"""Backward through one output of a compiled part leaves alone what it has nothing to do with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import dynamo
from dynamo.aot.api import compile_training
from inductor import metrics


def two_ways(x: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """A generator and a critic: the second's input is the first's output, detached."""
    made = (x @ a).tanh()
    return made, ((made.detach() @ b).sigmoid() + x.sum()).square().mean()


def weights() -> tuple[Tensor, Tensor]:
    return torch.randn(4, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)


def critic_first(f: Callable[..., Any], x: Tensor, a: Tensor, b: Tensor) -> list[Tensor]:
    made, loss = f(x, a, b)
    loss.backward()
    grads = [b.grad.clone()]
    with torch.no_grad():
        b.sub_(b.grad)  # saved for the critic, not for the generator
    (made @ b).square().sum().backward()
    return [made.detach(), loss.detach(), *grads, a.grad, b.grad]


def second_derivative(f: Callable[..., Any], x: Tensor, a: Tensor, b: Tensor) -> list[Tensor]:
    made, loss = f(x, a, b)
    slope, = torch.autograd.grad(made.sum(), a, create_graph=True)
    (slope.square().sum() + loss).backward()
    return [slope.detach(), a.grad, b.grad]


def together(f: Callable[..., Any], x: Tensor, a: Tensor, b: Tensor) -> list[Tensor]:
    made, loss = f(x, a, b)
    (made.sum() * loss).backward()
    return [a.grad, b.grad]


def same_as_eager(use: Callable[..., Any], program: Callable[..., Any], *given: Tensor, **options: Any) -> None:
    dynamo.reset()
    compiled = dynamo.compile(program, **options)
    for _ in range(2):
        found, expected = (
            use(f, *[t.detach().clone().requires_grad_(t.requires_grad) for t in given]) for f in (compiled, program))
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("use", [critic_first, second_derivative, together])
def test_the_ways_of_two_outputs_are_apart(use: Callable[..., Any], dynamic: bool) -> None:
    given = [torch.randn(3, 4), *weights()]
    metrics.reset()
    same_as_eager(use, two_ways, *[t.detach().double().requires_grad_(t.requires_grad) for t in given], dynamic=dynamic)
    assert metrics.snapshot()["graphs"] > 1


def test_outputs_that_share_their_way_have_one_backward() -> None:
    compiled: list[torch.fx.GraphModule] = []

    def note(module: torch.fx.GraphModule, fakes: list[Any]) -> Any:
        compiled.append(module)
        return module.forward

    def program(x: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
        return (x @ a).tanh(), (x @ a).sum()

    given = [torch.randn(3, 4), weights()[0]]
    call = compile_training(torch.fx.symbolic_trace(program), given, note, note)
    first, second = call(*given)
    (first.sum() + second).backward()
    assert len(compiled) == 2
    expected, = torch.autograd.grad(sum(t.sum() for t in program(*given)), given[1])
    torch.testing.assert_close(given[1].grad, expected)


def test_a_graph_that_only_reads_a_loss_does_not_follow_it() -> None:
    def step(x: Tensor, w: Tensor) -> list[Tensor]:
        losses = []
        for _ in range(3):
            loss = (x @ w).square().mean()
            dynamo.graph_break()
            loss.backward()
            losses.append(loss.detach())
        return losses

    def use(f: Callable[..., Any], x: Tensor, w: Tensor) -> list[Tensor]:
        return [*f(x, w), w.grad]

    same_as_eager(use, step, torch.randn(3, 4, dtype=torch.double), weights()[0].detach().double().requires_grad_())


def test_a_running_sum_that_was_differentiated_is_not_followed_again() -> None:
    def add(total: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        loss = (x @ w).square().mean()
        return total + loss * loss, loss

    def use(f: Callable[..., Any], x: Tensor, w: Tensor) -> list[Tensor]:
        total = torch.zeros((), dtype=torch.double)
        for _ in range(3):
            total, loss = f(total, x, w)
            loss.backward()
        return [total.detach(), w.grad]

    same_as_eager(use, add, torch.randn(3, 4, dtype=torch.double), weights()[0].detach().double().requires_grad_())
