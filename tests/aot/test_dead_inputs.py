"""Gradients of gradients where an input of the first call is gone by then."""

from __future__ import annotations

import pytest
import torch

import dynamo

WEIGHT = torch.linspace(-1.0, 1.0, 12).view(3, 4)


def step(time: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x @ WEIGHT) * torch.cos(time * 3) + time


def slope_of_slope(call: object, elements: int) -> torch.Tensor:
    assert callable(call)
    x = torch.linspace(0.0, 1.0, 6).view(2, 3).requires_grad_()
    out = call(torch.full((elements, 1, 1), 0.3), x)  # nothing else holds the time
    (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    return torch.autograd.grad(slope.square().sum(), x)[0]


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_little_inputs_are_kept(backend: str) -> None:
    dynamo.reset()
    found = slope_of_slope(dynamo.compile(step, backend=backend, fullgraph=True), 1)
    torch.testing.assert_close(found, slope_of_slope(step, 1))


def test_large_inputs_are_not_and_it_is_said() -> None:
    dynamo.reset()
    with pytest.raises(RuntimeError, match="can't be differentiated again"):
        slope_of_slope(dynamo.compile(step, backend="aot_eager"), 5000)
