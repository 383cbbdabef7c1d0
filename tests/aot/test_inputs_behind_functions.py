"""Outputs that are inputs of the graph with a backward of the program's own in between."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import dynamo


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        return grad * 2, grad.sum() * torch.ones(3)


class Assign(torch.autograd.Function):
    """Writes past autograd, as solvers of differential equations do with their stages."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        x.data[0] = y.sum()
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        return grad, grad[0].expand(3)


def result_and_input(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    z = x + 1
    return z, Twice.apply(z, y * 2)


def two_views(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    z = x + 1
    return z[1:], Twice.apply(z, y * 2)


PROGRAMS = {
    "returned": lambda x, y: Twice.apply(x, y * 2),
    "assigned": lambda x, y: Assign.apply(x, y * 2),
    "view": lambda x, y: Twice.apply(x, y * 2)[1:],
    "of a view": lambda x, y: Twice.apply(x[1:], y * 2),
    "result and input": result_and_input,
    "two views": two_views,
    "used": lambda x, y: Twice.apply(x, y * 2) + 1,
    "unused": lambda x, y: (Twice.apply(x, y * 2), x * 1)[1],
}


def outcome(program: Any, x: Tensor, y: Tensor) -> list[Any]:
    leaf, y = x.clone().requires_grad_(), y.clone().requires_grad_()
    given = leaf * 1
    results = program(given, y)
    results = results if isinstance(results, tuple) else (results,)
    sum(each.square().sum() for each in results).backward()
    shared = [each.untyped_storage().data_ptr() == given.untyped_storage().data_ptr()
              for each in results]
    return [*(each.detach() for each in results), leaf.grad, y.grad, *map(torch.tensor, shared)]


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_gradients(program: Any) -> None:
    x, y = torch.randn(3), torch.randn(3)
    torch.testing.assert_close(outcome(dynamo.compile(program), x, y), outcome(program, x, y))
