"""Second derivatives of graphs that can't run twice, where eager needs nothing of them, and of those under autocast."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import dynamo
from dynamo.testing import assert_compiled

PROGRAMS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "floor": lambda x, y: (x + y).floor() + torch.rand(3),
    "sign": lambda x, y: torch.nn.functional.dropout(x.sign() * 2) + y.round(),
    "sum": lambda x, y: x + y.sum() + torch.rand(3),
    "choice": lambda x, y: torch.where(x > y, x, torch.rand(3)) + y,
}


def penalty(f: Callable[..., Tensor], x: Tensor, y: Tensor) -> list[Any]:
    value = f(x, y).sum()
    first = torch.autograd.grad(value, (x, y), create_graph=True)
    (value + sum(grad.square().sum() for grad in first)).backward()
    return [*first, x.grad, y.grad]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_without_a_history(name: str, dynamic: bool) -> None:
    found = []
    for call in (PROGRAMS[name], dynamo.compile(PROGRAMS[name], backend="aot_eager", dynamic=dynamic)):
        torch.manual_seed(0)
        leaves = [torch.randn(3).requires_grad_() for _ in range(2)]
        found.append(penalty(call, *leaves))
    for want, got in zip(*found, strict=True):
        torch.testing.assert_close(got, want)
        assert got.requires_grad == want.requires_grad


def test_others_are_refused() -> None:
    def f(x: Tensor, y: Tensor) -> Tensor:
        return x * y * torch.rand(3)

    with pytest.raises(RuntimeError, match="can't be differentiated again"):
        penalty(dynamo.compile(f), *[torch.randn(3).requires_grad_() for _ in range(2)])


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("outside", [False, True])
def test_under_autocast(outside: bool, backend: str) -> None:
    """outside: the gradients are wanted outside of it."""

    def f(x: Tensor, w: Tensor) -> Tensor:
        return ((x @ w).sigmoid() @ w).float()

    def use(call: Callable[..., Tensor]) -> list[Any]:
        torch.manual_seed(0)
        x, w = (torch.randn(4, 4).requires_grad_() for _ in range(2))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            value = call(x, w).sum()
            if not outside:
                first = torch.autograd.grad(value, (x, w), create_graph=True)
        if outside:
            first = torch.autograd.grad(value, (x, w), create_graph=True)
        sum(grad.square().sum() for grad in first).backward()  # type: ignore[union-attr]
        return [value, *first, x.grad, w.grad]

    dynamo.reset()
    torch.testing.assert_close(use(dynamo.compile(f, backend=backend)), use(f), atol=0.02, rtol=0.02)
    assert_compiled(but="second derivative")


def test_called_under_an_autocast_that_the_program_had_not() -> None:
    def f(x: Tensor, w: Tensor) -> Tensor:
        return (x @ w).sigmoid() * w

    x, w = (torch.randn(4, 4).requires_grad_() for _ in range(2))
    value = dynamo.compile(f)(x, w).sum()
    wanted = torch.autograd.grad(f(x, w).sum(), w)[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        first, = torch.autograd.grad(value, x, create_graph=True)
    assert first.dtype == torch.float32 and wanted.dtype == torch.float32
    torch.testing.assert_close(first, torch.autograd.grad(f(x, w).sum(), x)[0], atol=0.05, rtol=0.05)
