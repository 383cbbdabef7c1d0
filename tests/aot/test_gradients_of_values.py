"""`torch.autograd.grad` between two values of one graph, in the program that computes them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import dynamo


def slope(y: torch.Tensor, *x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.autograd.grad(y.sum(), x, retain_graph=True)


def of_a_product(v: torch.Tensor) -> object:
    w = v * 2
    y = w.sin() * 2
    return torch.autograd.grad(y.sum(), w)[0] + 1


def by_name(v: torch.Tensor) -> object:
    w = v.amin(1)
    return torch.autograd.grad(outputs=[w.exp().sum()], inputs=[w])


def in_a_call(v: torch.Tensor) -> object:
    w = torch.min(v, 1)[0]
    u = w.cos()
    return slope((w.sin() * u) * 2, w, u, v)


def unused(v: torch.Tensor) -> object:
    w = v * 2
    return torch.autograd.grad((w * 3).sum(), (w, w.sin()), allow_unused=True)


@pytest.mark.parametrize("program", [of_a_product, by_name, in_a_call, unused])
def test_equals_eager(program: Callable[[torch.Tensor], object]) -> None:
    x = torch.randn(3, 3, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(dynamo.compile(program)(x), program(x))
