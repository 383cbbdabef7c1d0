"""Outputs that are inputs of the graph with a backward of the program's own in between."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import dynamo
from dynamo.base.counters import counters


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


class Other(torch.autograd.Function):
    """Gives the first one no gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        return x.view(-1, 1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor]:
        return None, grad[:, 0] * 3


def result_and_input(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    z = x + 1
    return z, Twice.apply(z, y * 2)


def both_assigned(x: Tensor, y: Tensor) -> Tensor:
    return Assign.apply(Assign.apply(x, y), y * 2)


def part_of_another(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    z = Twice.apply(x, y)
    return z[:2], z


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
    "of one without a gradient": lambda x, y: Twice.apply(x.detach(), y * 2),
    "no gradient for it": lambda x, y: Other.apply(x, y * 2),
    "beside others": lambda x, y: (Twice.apply(x, y), x * y, y.sin()),
    "two ways": lambda x, y: (Twice.apply(x, y), Other.apply(x, y)),
    "one of another": lambda x, y: Twice.apply(Twice.apply(x, y), y),
    "the same twice": lambda x, y: (Twice.apply(x, y),) * 2,
    "part of another": part_of_another,
    "assigned twice": both_assigned,
    "unused": lambda x, y: (Twice.apply(x, y * 2), x * 1)[1],
}


def outcome(program: Any, x: Tensor, y: Tensor, grad: bool = True) -> list[Any]:
    leaf, y = x.clone().requires_grad_(grad), y.clone().requires_grad_()
    given = leaf * 1
    results = program(given, y)
    results = results if isinstance(results, tuple) else (results,)
    shared = [each.untyped_storage().data_ptr() == given.untyped_storage().data_ptr()
              for each in results]
    bases = [each._base is given for each in results if each.untyped_storage().data_ptr() == given.untyped_storage().data_ptr()]
    same = [each is other for each in results for other in results]
    seen = [each.detach().clone() for each in results]
    sum(each.square().sum() for each in results).backward()
    given.detach().add_(1)  # which all see that share its memory
    return [*seen, *(each.detach() for each in results), leaf.grad, y.grad, *map(torch.tensor, (*shared, *bases, *same))]


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_gradients(program: Any, backend: str) -> None:
    dynamo.reset()
    x, y = torch.randn(3), torch.randn(3)
    compiled = dynamo.compile(program, backend=backend)
    counters["not_compiled"].clear()
    for _ in range(2):
        torch.testing.assert_close(outcome(compiled, x, y), outcome(program, x, y))
    assert not counters["not_compiled"]


@pytest.mark.parametrize("name", ["returned", "assigned", "used", "of a view", "beside others", "one of another"])
def test_an_input_without_a_gradient(name: str) -> None:
    """Only what the function has computed with has one: solvers assign to a buffer so."""
    dynamo.reset()
    x, y = torch.randn(3), torch.randn(3)
    compiled = dynamo.compile(PROGRAMS[name])
    counters["not_compiled"].clear()
    torch.testing.assert_close(outcome(compiled, x, y, False), outcome(PROGRAMS[name], x, y, False))
    assert not counters["not_compiled"]


def test_symbolic_sizes() -> None:
    dynamo.reset()
    compiled = dynamo.compile(lambda x, y: (Twice.apply(x, y[:3] * 2), y.sin()), dynamic=True)
    counters["not_compiled"].clear()
    for size in (3, 5, 8):
        x, y = torch.randn(size), torch.randn(3)
        program = PROGRAMS["returned"]
        torch.testing.assert_close(
            outcome(lambda x, y: compiled(x, y)[0], x, y), outcome(program, x, y))
    assert not counters["not_compiled"]


def test_writes_into_the_result_are_refused_as_in_eager() -> None:
    dynamo.reset()
    program = PROGRAMS["returned"]
    for run in (program, dynamo.compile(program)):
        x, y = torch.randn(3, requires_grad=True) * 1, torch.randn(3, requires_grad=True)
        with pytest.raises(RuntimeError, match="custom Function"):
            run(x, y).mul_(2)


def test_a_written_input_is_as_it_was() -> None:
    """Its counter moves after the view is made, of which autograd would not know the history."""

    def program(x: Tensor, y: Tensor) -> Tensor:
        x.add_(1)
        return Twice.apply(x, y * 2)

    dynamo.reset()
    x, y = torch.randn(3), torch.randn(3)
    torch.testing.assert_close(
        outcome(dynamo.compile(program), x, y, False), outcome(program, x, y, False))


def test_second_derivatives() -> None:
    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
            ctx.save_for_backward(y)
            return x

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
            y, = ctx.saved_tensors
            return grad * 2, grad * y ** 3

    dynamo.reset()
    program, found = lambda x, y: Cube.apply(x, y * 2), []
    for run in (program, dynamo.compile(program)):
        x, y = torch.tensor([1.0, 2.0, 3.0]).requires_grad_(), torch.tensor([2.0, 1.0, -1.0]).requires_grad_()
        slope, = torch.autograd.grad(run(x * 1, y).square().sum(), y, create_graph=True)
        found.append((slope, *torch.autograd.grad(slope.sum(), (x, y))))
    torch.testing.assert_close(found[1], found[0])
