"""Gradients at the edges of formulas (NaN, infinities, zeros, knees), in short tensors: eager's vectorised kernels treat some otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import dynamo

NAN, INF = float("nan"), float("inf")
WHOLE = [NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 3.0, -3.0, 6.0, 20.5, 1e30, -1e30]
PART = [NAN, 0.0, 1.0, 0.5, 0.1, 0.9, 1e-3, 1e-12, 1.0 - 1e-6, 1.5, -0.5]
CHANCES = [0.0, -0.0, 1.0, 0.5, 1e-12, 1.0 - 1e-7]
FLOATS = [torch.float32, torch.float64]

ONE: dict[str, tuple[list[float], Callable[..., Any]]] = {
    "logit": (PART, torch.logit),
    "logit with eps": (PART, lambda x: torch.logit(x, eps=0.1)),
    "logit with eps 0": (PART, lambda x: torch.logit(x, eps=0.0)),
    "clamp": (WHOLE, lambda x: torch.clamp(x, -1.0, 1.0)),
    "hardtanh": (WHOLE, F.hardtanh),
    "hardswish": (WHOLE, F.hardswish),
    "elu": (WHOLE, lambda x: F.elu(x, 2.0)),
    "threshold": (WHOLE, lambda x: F.threshold(x, 1.0, 20.0)),
    "softplus": (WHOLE, F.softplus),
    "pow 0": (WHOLE, lambda x: x**0),
    "sqrt": (WHOLE, torch.sqrt),
    "dead branch": (WHOLE, lambda x: torch.where(x > 0, x.sqrt(), 0.0)),
}  # fmt: skip
TWO: dict[str, tuple[list[float], Callable[..., Any]]] = {
    "smooth l1": (WHOLE[:9], F.smooth_l1_loss),
    "smooth l1 of each": (
        WHOLE[:9],
        lambda x, y: F.smooth_l1_loss(x, y, beta=0.5, reduction="none"),
    ),
    "huber": (WHOLE[:9], F.huber_loss),
    "binary cross entropy": (CHANCES, F.binary_cross_entropy),
    "its sum": (
        CHANCES,
        lambda x, y: F.binary_cross_entropy(x, y, weight=x.detach() + 1, reduction="sum"),
    ),
    "its parts": (CHANCES, lambda x, y: F.binary_cross_entropy(x, y, reduction="none")),
    "xlogy": (WHOLE[:9], torch.xlogy),
    "maximum": (WHOLE[:9], torch.maximum),
}


def _gradients(function: Callable[..., Any], *values: torch.Tensor) -> list[torch.Tensor]:
    inputs = [value.clone().requires_grad_() for value in values]
    result = function(*inputs)
    weights = torch.tensor([1.0, -2.0], dtype=result.dtype)[: result.numel()].view(result.shape)
    return list(torch.autograd.grad(result, inputs, weights))


def _same(function: Callable[..., Any], pairs: list[tuple[torch.Tensor, ...]]) -> None:
    dynamo.reset()
    compiled = dynamo.compile(lambda *inputs: function(*inputs))
    for values in pairs:
        bound = 1e-12 if values[0].dtype is torch.float64 else 1e-6
        want = _gradients(function, *values)
        torch.testing.assert_close(_gradients(compiled, *values), want, rtol=bound, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", ONE)
def test_of_one_input(name: str, dtype: torch.dtype) -> None:
    values, function = ONE[name]
    points = torch.tensor(values, dtype=dtype)
    _same(function, [(points[at : at + 1],) for at in range(len(points))])


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", TWO)
def test_of_two_inputs(name: str, dtype: torch.dtype) -> None:
    values, function = TWO[name]
    points = torch.tensor(values, dtype=dtype)
    _same(function, [(x.repeat(2), torch.stack([x, y])) for x in points for y in points])


@pytest.mark.parametrize("name", ["max", "min", "median", "nanmedian"])
def test_a_share_that_is_no_number_stays_in_its_place(name: str) -> None:
    """Eager writes the share into the places that hold the value; a product gave nan elsewhere."""
    compiled = dynamo.compile(lambda x: getattr(x, name)())
    for share in (float("nan"), float("inf"), 2.0):
        x = torch.tensor([1.0, 5.0, 2.0, 5.0, 1.0, 2.0, 2.0])
        want, found = (x.clone().requires_grad_() for _ in range(2))
        getattr(want, name)().backward(torch.tensor(share))
        compiled(found).backward(torch.tensor(share))
        torch.testing.assert_close(found.grad, want.grad, rtol=0, atol=0, equal_nan=True)
