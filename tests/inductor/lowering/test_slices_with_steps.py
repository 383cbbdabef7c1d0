"""`slice_scatter` with a step, as the backward of `out[..., 0::2] = x` has it: no call of ATen."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import dynamo
from inductor import metrics

aten = torch.ops.aten
PLACES = [(None, None, 2), (1, None, 2), (0, 7, 3), (2, -1, 3), (-5, None, 2), (5, 3, 2), (0, 100, 4), (3, 4, 5)]


@pytest.mark.parametrize("axis", [0, -1])
@pytest.mark.parametrize("place", PLACES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_as_eager(dtype: Any, place: Any, axis: int) -> None:
    x = torch.randn(9, 11).mul(9).to(dtype)
    source = torch.randn(aten.slice(x, axis, *place).shape).mul(9).to(dtype)

    def program(x: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        return aten.slice_scatter(x + 1, source * 2, axis, *place) * 3

    metrics.reset()
    found = dynamo.compile(program, fullgraph=True)(x, source)
    assert not metrics.fallbacks()
    torch.testing.assert_close(found, program(x, source))


def test_gradients_of_interleaved_writes() -> None:
    """The rotation of a video transformer."""
    def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        one, other = x.unflatten(-1, (-1, 2)).unbind(-1)
        out = torch.empty_like(x)
        out[..., 0::2] = one * cos - other * sin
        out[..., 1::2] = one * sin + other * cos
        return out

    angle = torch.rand(5, 4)
    grads = []
    torch.manual_seed(0)
    x, weight = torch.randn(2, 5, 8), torch.randn(2, 5, 8)
    for function in rotate, dynamo.compile(rotate, fullgraph=True):
        leaf = x.clone().requires_grad_()
        metrics.reset()
        (function(leaf, angle.cos(), angle.sin()) * weight).sum().backward()
        grads.append(leaf.grad)
    assert not metrics.fallbacks()
    torch.testing.assert_close(grads[1], grads[0])
