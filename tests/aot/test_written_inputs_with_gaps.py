"""Inputs that have gaps (slices) and are written: they keep their strides in a functional graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynamo

ROWS, VALUES = torch.tensor([1]), torch.arange(6.0).view(2, 1, 3)


def multiplied(x: torch.Tensor) -> Any:
    return x.mul_(2).view(2, 2, 2, -1), x.stride()


def at_a_mask(x: torch.Tensor) -> Any:
    x[x > 0] = 1.0
    return x.sum(-1), x.flatten() + 1


def at_rows(x: torch.Tensor) -> Any:
    x[:, ROWS] = VALUES
    x.index_add_(1, ROWS, VALUES)
    return x.transpose(0, 1).reshape(4, -1)


def scattered(x: torch.Tensor) -> Any:
    x.scatter_(1, torch.zeros(2, 1, 3, dtype=torch.int64), 2.0).sin_()
    y = x[:, 1:3]
    y.add_(x[:, :2])
    return y.stride(), y.reshape(-1), x


def read_later(x: torch.Tensor) -> Any:
    before = x * 2
    x.masked_fill_(x > 0, 2).clamp_(min=-1)
    return before, x + before


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("f", [multiplied, at_a_mask, at_rows, scattered, read_later])
def test_written_slices(f: Callable[[torch.Tensor], Any], backend: str) -> None:
    compiled = dynamo.compile(f, backend=backend, fullgraph=True)
    for part in (slice(0, 3), slice(1, 7, 2), slice(5, 8)):
        ours = torch.randn(2, 4, 8)
        eagers = ours.clone()
        results = [call(memory[..., part]) for call, memory in ((compiled, ours), (f, eagers))]
        torch.testing.assert_close(*results)
        torch.testing.assert_close(ours, eagers)


def test_values_at_a_mask_of_a_slice() -> None:
    """Between the parts of one graph the slice is an input of the next part."""
    def f(x: torch.Tensor) -> Any:
        y = x.clone()[:, :3]
        mask = y > 0
        y[mask] = x[:, 1:4][mask]
        return y.sum(-1), y

    x = torch.randn(4, 6)
    torch.testing.assert_close(dynamo.compile(f, fullgraph=True)(x), f(x))


def test_gradients_through_a_written_slice_without_history() -> None:
    def f(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        x.mul_(3)
        return (x * weight).sin().sum()

    ours = torch.randn(4, 6)
    eagers, weight = ours.clone(), torch.randn(3, requires_grad=True)
    grads = []
    for call, memory in ((dynamo.compile(f, fullgraph=True), ours), (f, eagers)):
        grads += torch.autograd.grad(call(memory[:, ::2], weight), weight)
    torch.testing.assert_close(*grads)
    torch.testing.assert_close(ours, eagers)
