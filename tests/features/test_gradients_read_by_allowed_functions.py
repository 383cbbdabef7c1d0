"""Functions that are allowed in graphs may read the gradient of a tensor: it is another one in each step."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import dynamo


@dynamo.allow_in_graph
def with_gradient(p: torch.Tensor) -> torch.Tensor:
    return p * 2 if p.grad is None else p * 3 + p.grad


@dynamo.allow_in_graph
def inside_of_a_handler(p: torch.Tensor) -> torch.Tensor:
    try:
        return p * 3 + p.grad
    except TypeError:
        return p * 2


@pytest.mark.every_combination
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("f", [with_gradient, inside_of_a_handler])
def test_it_is_the_gradient_of_now(f: Any, requires_grad: bool, dynamic: bool) -> None:
    dynamo.reset()
    compiled = dynamo.compile(lambda p: f(p) + 1, dynamic=dynamic)
    p = torch.randn(4, requires_grad=requires_grad)
    for grad in (None, torch.ones(4), torch.full((4,), 5.0), None):
        p.grad = grad
        assert torch.equal(compiled(p), f(p) + 1)
