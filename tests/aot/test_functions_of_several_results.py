"""An autograd function with several results of which some are differentiated gets zeros for the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import dynamo
from dynamo.testing import assert_compiled


class Each(torch.autograd.Function):
    """One result for each input; the gradients are those that come."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x.clone(), y.clone()

    @staticmethod
    def backward(ctx: Any, first: Tensor, second: Tensor) -> Any:  # type: ignore[override]
        return first, second


class Shifted(Each):
    """Its backward is not linear: it shows that it has run."""

    @staticmethod
    def backward(ctx: Any, first: Tensor, second: Tensor) -> Any:  # type: ignore[override]
        return first * 2 + 1, second.t().reshape(-1).view(3, 4) * 3 + first.sum()


class Saving(Each):
    @staticmethod
    def forward(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        return x * y, x + y

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, first: Tensor, second: Tensor) -> Any:  # type: ignore[override]
        x, y = ctx.saved_tensors
        return first * y + second, first * x + second


class Asking(Each):
    """It wants to know what is missing."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        return x * 2, y * 2

    @staticmethod
    def backward(ctx: Any, first: Tensor | None, second: Tensor | None) -> Any:  # type: ignore[override]
        return None if first is None else first * 2, second if second is None else second + 5


class AskingNot(Asking):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.set_materialize_grads(True)
        return x * 2, y * 2


def as_it_is(x: Tensor, y: Tensor, apply: Any) -> tuple[Tensor, ...]:
    return apply(x, y)  # type: ignore[no-any-return]


def between(x: Tensor, y: Tensor, apply: Any) -> tuple[Tensor, ...]:
    first, second = apply(x.exp(), y * x)
    return first.sin().t(), second * 2


def of_another(x: Tensor, y: Tensor, apply: Any) -> tuple[Tensor, ...]:
    first, second = apply(*apply(x * 3, y))
    return first.sum(), second.t() + 1


def beside(x: Tensor, y: Tensor, apply: Any) -> tuple[Tensor, ...]:
    """Nothing reads the second result."""
    return apply(x, y)[0] * 2, x.cos() * y


def first_of_all(results: tuple[Tensor, ...]) -> list[Tensor]:
    return [results[0]]


def second_of_all(results: tuple[Tensor, ...]) -> list[Tensor]:
    return [results[1]]


def all_of_them(results: tuple[Tensor, ...]) -> list[Tensor]:
    return list(results)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("chosen", [first_of_all, second_of_all, all_of_them])
@pytest.mark.parametrize("program", [as_it_is, between, of_another, beside])
@pytest.mark.parametrize("cls", [Each, Shifted, Saving, Asking, AskingNot])
def test_gradients(
    cls: Any, program: Callable[..., Any], chosen: Callable[..., Any], dynamic: bool, backend: str
) -> None:
    def f(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return program(x, y, cls.apply)  # type: ignore[no-any-return]

    dynamo.reset()
    found = []
    for call in (f, dynamo.compile(f, backend=backend, dynamic=dynamic)):
        torch.manual_seed(0)
        leaves = [torch.randn(4, 3, dtype=torch.double).t().requires_grad_() for _ in range(2)]
        values = chosen(call(*leaves))
        grads = [torch.randn_like(value) for value in values]
        found.append(torch.autograd.grad(values, leaves, grads, allow_unused=True))
    assert [grad is None for grad in found[1]] == [grad is None for grad in found[0]]
    torch.testing.assert_close(found[1], found[0])
    assert_compiled()


@pytest.mark.parametrize("chosen", [first_of_all, second_of_all])
@pytest.mark.parametrize("cls", [Each, Saving])
def test_second_derivatives(cls: Any, chosen: Callable[..., Any]) -> None:
    def f(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return between(x, y, cls.apply)

    found = []
    for call in (f, dynamo.compile(f)):
        x, y = (torch.full((3, 4), start, dtype=torch.double).requires_grad_() for start in (0.3, 0.7))
        value = chosen(call(x, y))[0].square().sum()
        first = torch.autograd.grad(value, (x, y), create_graph=True)
        total: Any = sum(grad.square().sum() for grad in first)
        found.append((*first, *torch.autograd.grad(total, (x, y))))
    torch.testing.assert_close(found[1], found[0])


def test_gradients_of_one_graph_share_no_memory() -> None:
    def f(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return Each.apply(x, y)  # type: ignore[no-any-return]

    x, y = (torch.ones(3).requires_grad_() for _ in range(2))
    first, second = dynamo.compile(f)(x, y)
    given = torch.ones(3)
    grads = torch.autograd.grad((first, second), (x, y), (given, given))
    assert len({tensor.data_ptr() for tensor in (given, *grads)}) == 3
