"""Second derivatives through autograd Functions whose backward differentiates: as in eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import dynamo


class Copies(torch.autograd.Function):
    """Backward differentiates the same program at copies of its inputs."""

    @staticmethod
    def forward(ctx: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(a, b)
        return (a * b).sin()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        with torch.enable_grad():
            a, b = [value.clone().requires_grad_() for value in ctx.saved_tensors]
            y = (a * b).sin()
            return torch.autograd.grad(
                y, (a, b), grad, create_graph=torch.is_grad_enabled(), allow_unused=True)


class OnlyFirst(Copies):
    """The second input gets no gradient, but that of the first depends on it."""

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        a, b = ctx.saved_tensors
        with torch.enable_grad():
            given = a.view_as(a)
            y = (given * b).sin()
            return torch.autograd.grad(y, given, grad, create_graph=True)[0], None


class OnlyFirstUnsaved(Copies):
    """As before; the second input is no saved tensor of the compiled program."""

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        a, b = ctx.saved_tensors
        return grad * a * b.detach(), None


class Detached(Copies):
    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        with torch.enable_grad():
            a, b = [value.detach().requires_grad_() for value in ctx.saved_tensors]
            y = (a * b).sin()
            first, second = torch.autograd.grad(y, (a, b), grad, create_graph=True)
            return first, second


def derivatives(function: Any, leaves: bool) -> list[Any]:
    a = torch.tensor([0.3, 0.7], dtype=torch.double, requires_grad=True)
    b = torch.tensor([1.1, 0.2], dtype=torch.double, requires_grad=True)
    given = (a, b) if leaves else (a * 2, b * 3)
    y = function(*given)
    first = torch.autograd.grad(y.sum(), (a, b), create_graph=True, allow_unused=True)
    total = y.new_zeros(()) + sum(grad.square().sum() for grad in first if grad is not None)
    second = torch.autograd.grad(total, (a, b), allow_unused=True)
    return [y.detach(), *first, *second]


@pytest.mark.parametrize("backend", ("eager", "aot_eager", "inductor"))
@pytest.mark.parametrize("leaves", (True, False))
@pytest.mark.parametrize("cls", (Copies, OnlyFirst, OnlyFirstUnsaved, Detached))
def test_second_derivatives(cls: Any, leaves: bool, backend: str) -> None:
    def function(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return cls.apply(a, b) * a  # type: ignore[no-any-return]

    wanted = derivatives(function, leaves)
    found = derivatives(dynamo.compile(function, backend=backend), leaves)
    for one, other in zip(found, wanted, strict=True):
        assert (one is None) == (other is None)
        torch.testing.assert_close(one, other)
