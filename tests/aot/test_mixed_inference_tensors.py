"""Programs of whose results some are inference tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynamo
from dynamo.testing import assert_compiled
from tests.aot.compare import differentiated


def beside(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    with torch.inference_mode():
        inner = x.exp()
    return inner, x * 2, inner[1:], inner


def of_each_other(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x.sin()
    with torch.inference_mode():
        most = y.max(0)
    return most.values, y, most.indices, most.values.t()


def written(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    with torch.inference_mode():
        inner = x.exp()
    with torch.no_grad():
        x.add_(inner)
    return (inner,)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("learns", [False, True])
@pytest.mark.parametrize("program", [beside, of_each_other, written])
def test_equals_eager(
    program: Callable[..., tuple[torch.Tensor, ...]], learns: bool, dynamic: bool, backend: str
) -> None:
    dynamo.reset()
    found = []
    for call in (program, dynamo.compile(program, backend=backend, dynamic=dynamic)):
        x = torch.linspace(-1, 1, 12).view(4, 3).requires_grad_(learns)
        results, gradients = differentiated(call, x)
        facts = [(value.is_inference(), value.requires_grad, value.stride()) for value in results]
        with torch.inference_mode():
            results[0].mul_(2)
        found.append((facts, [*results, x, gradients]))
    assert found[1][0] == found[0][0]
    torch.testing.assert_close(found[1][1], found[0][1])
    assert_compiled()


def saved(x: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        inner = x.exp()
    return x * inner


def saved_view(x: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        inner = torch.ones(4, 3)
    return (x[1:] * inner[1:]).detach()


def saved_places(x: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        places = torch.tensor([2, 0])
    return x[places]


class Factor(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(factor)
        return x * factor

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad * ctx.saved_tensors[0], None


def saved_by_function(x: torch.Tensor) -> torch.Tensor:
    return Factor.apply(x, made())  # type: ignore[no-any-return, no-untyped-call]


@torch.inference_mode()
def made() -> torch.Tensor:
    return torch.ones(4, 3)


def given(x: torch.Tensor) -> torch.Tensor:
    return x * GIVEN


GIVEN = made()


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    "program", [saved, saved_view, saved_places, saved_by_function, given])
def test_none_is_saved_for_backward(
    program: Callable[..., torch.Tensor], dynamic: bool, backend: str
) -> None:
    dynamo.reset()
    for call in (program, dynamo.compile(program, backend=backend, dynamic=dynamic)):
        with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward"):
            call(torch.ones(4, 3, requires_grad=True))


def copied(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (x * made().clone() + made(),)


def unsaved_in_no_grad(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    with torch.no_grad():
        y = x * made()
    return (x * y,)


@pytest.mark.parametrize("program", [copied, unsaved_in_no_grad])
def test_what_needs_none_is_compiled(program: Callable[..., tuple[torch.Tensor, ...]]) -> None:
    dynamo.reset()
    found = [differentiated(call, torch.ones(4, 3, requires_grad=True))
             for call in (program, dynamo.compile(program))]  # fmt: skip
    torch.testing.assert_close(found[1], found[0])
    assert_compiled()


def test_autograd_refuses_them_as_in_eager() -> None:
    for call in (beside, dynamo.compile(beside)):
        inner, other, *_ = call(torch.ones(3, requires_grad=True))
        with pytest.raises(RuntimeError, match="Inference tensors cannot be saved"):
            inner * other
