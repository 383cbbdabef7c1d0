"""Backward of a compiled graph for many gradients at once: they are batched, and have no memory."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import dynamo


def function(x: Tensor) -> Tensor:
    return ((x @ x.T).tanh() * x.sum(1, keepdim=True)).t()


def batched(result: Tensor, x: Tensor, given: Tensor) -> Tensor:
    return torch.autograd.grad(result, x, given, is_grads_batched=True)[0]


def mapped(result: Tensor, x: Tensor, given: Tensor) -> Tensor:
    def one(each: Tensor) -> Tensor:
        return torch.autograd.grad(result, x, each, retain_graph=True)[0]

    return torch.vmap(one)(given)


GIVEN = {
    "dense": lambda: torch.randn(4, 3, 3),
    "transposed": lambda: torch.randn(4, 3, 3).transpose(1, 2),
    "batch inside": lambda: torch.randn(3, 3, 4).permute(2, 0, 1),
    "expanded": lambda: torch.ones(4, 1, 1).expand(4, 3, 3),
}


@pytest.mark.filterwarnings("error")  # a defect is a warning
@pytest.mark.parametrize("way", [batched, mapped])
@pytest.mark.parametrize("given", GIVEN.values(), ids=GIVEN)
@pytest.mark.parametrize("after", [False, True])
def test_like_eager(way, given, after) -> None:
    """after: an ordinary backward has run before, with kernels."""
    compiled = dynamo.compile(function)
    x, grads = torch.randn(3, 5, requires_grad=True), given()
    if after:
        compiled(x).square().sum().backward()
        x.grad = None
    torch.testing.assert_close(way(compiled(x), x, grads), way(function(x), x, grads))
    compiled(x).square().sum().backward()
    found, x.grad = x.grad, None
    function(x).square().sum().backward()
    torch.testing.assert_close(found, x.grad)
    reasons = dynamo.counters["not_compiled"]
    assert all(reason.startswith("backward runs as ATen: ") for reason in reasons) and reasons


def test_jacobian() -> None:
    x = torch.randn(3, 5)
    jacobian = torch.autograd.functional.jacobian
    found = jacobian(dynamo.compile(function), x, vectorize=True)
    torch.testing.assert_close(found, jacobian(function, x))


def drawn(x: Tensor) -> Tensor:
    return (x * torch.rand(5)).tanh()


def penalty(program, x: Tensor) -> Tensor:
    result = program(x)
    rows = torch.eye(result.numel()).view(-1, *result.shape)
    found = torch.autograd.grad(result, x, rows, create_graph=True, is_grads_batched=True)[0]
    return torch.autograd.grad(found.square().sum() + result.sum(), x)[0]


def test_second_derivatives() -> None:
    x = torch.randn(3, 5, requires_grad=True)
    torch.testing.assert_close(penalty(dynamo.compile(function), x), penalty(function, x))


def test_no_second_derivatives() -> None:
    """A program that can't run twice says so: its gradients would be constants without a word."""
    with pytest.raises(RuntimeError, match="can't be differentiated again"):
        penalty(dynamo.compile(drawn), torch.randn(3, 5, requires_grad=True))
