"""`cumprod` in training: eager's gradients, with and without zeros, in steps that do not grow with the length."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx

import dynamo
from dynamo.aot.joint import capture_joint
from dynamo.aot.worlds import capture_in_world
from dynamo.testing import assert_compiled

Program = Callable[[Tensor], Tensor]
PROGRAMS: dict[str, Program] = {
    "a function": lambda x: torch.cumprod(x, 1),
    "a method": lambda x: x.sin().cumprod(dim=-1).exp(),
    "the first axis": lambda x: x.cumprod(0) * x,
    "of one element": lambda x: x[:, :1].cumprod(1) + torch.cumprod(x[0, 0], 0),
    "in double": lambda x: x.cumprod(1, dtype=torch.float64).sum(),
    "transmittance": lambda x: torch.cumprod(torch.cat([torch.ones_like(x[:, :1]), 1 - x[:, :-1]], 1), 1),
}


def gradient(program: Program, x: Tensor) -> tuple[Tensor, Tensor]:
    x = x.clone().requires_grad_()
    result = program(x)
    weights = torch.linspace(0.5, 2, result.numel(), dtype=result.dtype).view_as(result)
    (result * weights).sum().backward()
    assert x.grad is not None
    return result.detach(), x.grad


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("zeros", [0.0, 0.1, 0.4])
def test_gradients(name: str, zeros: float) -> None:
    program = PROGRAMS[name]
    x = torch.randn(6, 9)
    x[torch.rand(6, 9) < zeros] = 0
    if zeros:
        x[0, 0] = x[1, -1] = 0
        x[2, 3], x[3, 2] = float("nan"), float("inf")
    found = gradient(dynamo.compile(program), x)
    assert_compiled()
    for one, other in zip(found, gradient(program, x), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("zeros", [0.0, 0.3])
def test_gradients_of_gradients(zeros: float) -> None:
    def program(x: Tensor) -> Tensor:
        return x.cumprod(1).square()

    def second(program: Any, x: Tensor) -> tuple[Tensor, ...]:
        x = x.clone().requires_grad_()
        (grad,) = torch.autograd.grad(program(x).sum(), x, create_graph=True)
        return grad, *torch.autograd.grad(grad.square().sum(), x)

    x = torch.randn(4, 5)
    x[torch.rand(4, 5) < zeros] = 0
    for one, other in zip(second(dynamo.compile(program), x), second(program, x), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_the_steps_do_not_grow_with_the_length() -> None:
    def steps(length: int) -> int:
        gm, given = fx.symbolic_trace(lambda x: x.cumprod(1)), [torch.randn(3, length, requires_grad=True)]
        joint, _ = capture_in_world(lambda world: capture_joint(gm, given, world), gm, given, False)
        assert joint is not None
        return len(joint.module.graph.nodes)

    assert steps(4) == steps(40)
