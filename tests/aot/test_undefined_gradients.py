"""A gradient that eager leaves undefined is None, not zeros: optimizers see the difference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import dynamo


class Twice(torch.autograd.Function):
    """Its backward gets zeros for what is undefined."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        return grad * 2


class Nothing(Twice):
    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> None:  # type: ignore[override]
        return None


def hooked(x: Tensor, w: Tensor) -> Tensor:
    y = x * 2
    y.register_hook(lambda grad: None if grad is None else grad * 3)
    return y.norm(p=0) * w


PROGRAMS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "norm": lambda x, w: x.norm(p=0) * w,
    "norm of a computed value": lambda x, w: (x.exp() * 3).norm(p=0, dim=1) * w,
    "beside a gradient": lambda x, w: x.norm(p=0) * w + x,
    "where": lambda x, w: torch.where(w > 0, x.norm(p=0), w),
    "into what is written": lambda x, w: (w * 1).add_(x.norm(p=0)),
    "a function without a gradient": lambda x, w: Nothing.apply(x.exp()).sin() * w,
    "a function that gets zeros": lambda x, w: Twice.apply(x).norm(p=0) * w,
    "a hook": hooked,
    "foreach": lambda x, w: torch._foreach_norm([x * 2, w], 0)[0] * w,
    "a choice": lambda x, w: torch.where(w.sum() > 0, w, x.sign()) * x.ceil().norm(p=0),
}


@pytest.mark.parametrize("computed", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_is_none_as_in_eager(name: str, computed: bool) -> None:
    found = []
    for call in (PROGRAMS[name], dynamo.compile(PROGRAMS[name])):
        torch.manual_seed(0)
        leaves = [torch.randn(3, 3, requires_grad=True) for _ in range(2)]
        given = [leaf * 2 for leaf in leaves] if computed else leaves
        found.append(torch.autograd.grad(call(*given).sum(), given, allow_unused=True))
    assert [grad is None for grad in found[1]] == [grad is None for grad in found[0]]
    torch.testing.assert_close(found[1], found[0])


class OneMore(Twice):
    """Not linear: of zeros it makes ones."""

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        return grad * 2 + 1


class AsGiven(Twice):
    """It gets None for what is undefined."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.set_materialize_grads(False)
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> Tensor | None:  # type: ignore[override]
        return None if grad is None else grad * 2


def apart(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    return OneMore.apply(x.sin()) * 3, OneMore.apply(w)


BEHIND: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "no function": lambda x, w: x * w,
    "a function": lambda x, w: OneMore.apply(x.sin()),
    "operations between": lambda x, w: OneMore.apply(x.sin()).exp() * w,
    "beside": lambda x, w: x + Twice.apply(x * w),
    "none is asked for": lambda x, w: AsGiven.apply(x.sin()) * w,
    "after one another": lambda x, w: AsGiven.apply(Twice.apply(x)) + Twice.apply(AsGiven.apply(w)),
    "results apart": apart,
}


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("name", BEHIND)
def test_no_gradient_comes_to_the_graph(name: str, again: bool) -> None:
    """A function behind the graph gives none: those inside get zeros, as from autograd."""
    found = []
    for call in (BEHIND[name], dynamo.compile(BEHIND[name], fullgraph=True)):
        x, w = [torch.linspace(-1, 1, 4, requires_grad=True) for _ in range(2)]
        results = call(x, w)
        result = results[0] if isinstance(results, tuple) else results
        found.append(torch.autograd.grad(
            Nothing.apply(result).sum(), (x, w), allow_unused=True, create_graph=again))
    assert [grad is None for grad in found[1]] == [grad is None for grad in found[0]]
    torch.testing.assert_close(found[1], found[0])
