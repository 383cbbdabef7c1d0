"""Backward through one of several results leaves alone what eager leaves alone, where that shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import dynamo
from dynamo.testing import assert_compiled

Program = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, ...]]


class Same(torch.autograd.Function):
    """Its backward gives zeros where it gets nothing."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        return grad


def products(x: Tensor, y: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    return x * w, y * w


def numbers(x: Tensor, y: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    shared = w.sin()
    return (x * shared).sum(), (y * shared).sum(), (y + x).sum()


def one_behind_another(x: Tensor, y: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    first = (x * w).exp()
    return first, first * y


def two_groups(x: Tensor, y: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    return x.sin(), x.cos() * y, w.exp()


PROGRAMS = [products, numbers, one_behind_another, two_groups]


def hooks(f: Program, leaves: list[Tensor]) -> list[Any]:
    seen: list[int] = []
    for at, leaf in enumerate(leaves):
        leaf.register_hook(lambda grad, at=at: seen.append(at) or grad * 2)
    f(*leaves)[0].sum().backward()
    return [leaf.grad for leaf in leaves] + sorted(seen)


def hooks_of_both(f: Program, leaves: list[Tensor]) -> list[Any]:
    for leaf in leaves:
        leaf.register_hook(lambda grad: grad * 2)
    sum(value.sum() for value in f(*leaves)).backward()  # type: ignore[union-attr]
    return [leaf.grad for leaf in leaves]


def hooks_behind_accumulation(f: Program, leaves: list[Tensor]) -> list[Any]:
    seen: list[int] = []
    for at, leaf in enumerate(leaves):
        leaf.register_post_accumulate_grad_hook(lambda _, at=at: seen.append(at))  # type: ignore[misc]
    f(*leaves)[1].sum().backward()
    return [leaf.grad for leaf in leaves] + sorted(seen)


def functions(f: Program, leaves: list[Tensor]) -> list[Any]:
    f(*map(Same.apply, leaves))[0].sum().backward()
    return [leaf.grad for leaf in leaves]


def functions_further_up(f: Program, leaves: list[Tensor]) -> list[Any]:
    f(*[Same.apply(leaf) * 2 for leaf in leaves])[1].sum().backward()
    return [leaf.grad for leaf in leaves]


def hooks_of_values(f: Program, leaves: list[Tensor]) -> list[Any]:
    values = [leaf * 2 for leaf in leaves]
    for value in values:
        value.register_hook(lambda grad: grad * 3)
    f(*values)[0].sum().backward()
    return [leaf.grad for leaf in leaves]


def second_derivatives(f: Program, leaves: list[Tensor]) -> list[Any]:
    for leaf in leaves:
        leaf.register_hook(lambda grad: grad * 2)
    first = torch.autograd.grad(f(*leaves)[1].sum(), leaves, create_graph=True, allow_unused=True)
    total: Any = sum(grad.square().sum() for grad in first if grad is not None)
    second = torch.autograd.grad(total, leaves, allow_unused=True) if total.requires_grad else ()
    return [*first, *second]


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("use", [
    hooks, hooks_of_both, hooks_behind_accumulation, functions, functions_further_up,
    hooks_of_values, second_derivatives,
])  # fmt: skip
def test_equals_eager(
    use: Callable[..., list[Any]], program: Program, dynamic: bool, backend: str
) -> None:
    dynamo.reset()
    found = []
    for call in (program, dynamo.compile(program, backend=backend, dynamic=dynamic)):
        torch.manual_seed(0)
        leaves = [torch.randn(3, dtype=torch.double).requires_grad_() for _ in range(3)]
        found.append(use(call, leaves))
    for want, got in zip(*found, strict=True):
        assert (want is None) == (got is None)
        torch.testing.assert_close(got, want)
    assert_compiled(but="second derivative")


def test_a_hook_that_the_program_puts_on_a_value() -> None:
    def f(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        value = x * 2
        value.register_hook(lambda grad: grad * 3)
        return value.sin(), value.cos() * y, y * 3

    found = []
    for call in (f, dynamo.compile(f)):
        x, y = (torch.full((3,), start).requires_grad_() for start in (0.5, 0.7))
        found.append(torch.autograd.grad(call(x, y)[2].sum(), (x, y), allow_unused=True))
    assert found[0][0] is None and found[1][0] is None
    torch.testing.assert_close(found[1][1], found[0][1])
