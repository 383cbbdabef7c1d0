"""`torch.autograd.grad` behind a graph break: with respect to what an earlier graph has computed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.autograd import grad

import dynamo


def asked(a: torch.Tensor) -> Any:
    p = a.clone().requires_grad_()
    loss = (p.sin() * a).sum()
    dynamo.graph_break()
    return torch.autograd.grad(loss, p, create_graph=True)


def several(a: torch.Tensor) -> Any:
    values = [value.clone().requires_grad_() for value in (a, a * 2)]
    loss = (values[0] * values[1].sin()).sum()
    dynamo.graph_break()
    return torch.autograd.grad(loss, values, create_graph=True)


def asked_in_a_callee(a: torch.Tensor) -> Any:
    p, loss = parts(a)
    return torch.autograd.grad(loss, p, create_graph=True)


@dynamo.disable(recursive=False)
def parts(a: torch.Tensor) -> Any:
    return asked_parts(a)


def asked_parts(a: torch.Tensor) -> Any:
    p = a.clone().requires_grad_()
    return p, (p.sin() * a).sum()


def unused_allowed(a: torch.Tensor) -> Any:
    p = a.view_as(a)
    loss = (p.sin() * a).sum()
    dynamo.graph_break()
    return torch.autograd.grad(loss, p, create_graph=True, allow_unused=True)


def by_name(a: torch.Tensor) -> Any:
    p = a * 1
    loss, q = (p.sin() * a).sum(), p * 2
    dynamo.graph_break()
    return grad(loss + q.sum(), [p, q], create_graph=True, allow_unused=True)


def written(a: torch.Tensor) -> Any:
    p = a * 1
    p.mul_(2)
    loss = (p.sin() * a).sum()
    dynamo.graph_break()
    return torch.autograd.grad(loss, {"p": p}["p"], create_graph=True)


class Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(a)
        return a.sin() * a

    @staticmethod
    def backward(ctx: Any, given: torch.Tensor) -> Any:
        with torch.enable_grad():
            p = [value.clone().requires_grad_() for value in ctx.saved_tensors]
            loss = p[0].sin() * p[0]
        dynamo.graph_break()
        return torch.autograd.grad(loss, p, given, create_graph=torch.is_grad_enabled())


def first_and_second(a: torch.Tensor) -> Any:
    y = Own.apply(a)
    first = torch.autograd.grad(y.sum(), a, create_graph=True)
    return (*first, *torch.autograd.grad(first[0].square().sum(), a, create_graph=True))


FUNCTIONS = [
    asked, several, asked_in_a_callee, unused_allowed, by_name, written, first_and_second,
]


@pytest.mark.parametrize("backend", ("eager", "aot_eager", "inductor"))
@pytest.mark.parametrize("function", FUNCTIONS)
def test_as_in_eager(function: Any, backend: str) -> None:
    a = torch.tensor([0.3, 0.7], dtype=torch.double, requires_grad=True)
    compiled = dynamo.compile(function, backend=backend)
    for _ in range(2):
        wanted, found = function(a), compiled(a)
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, other)
            if other is not None and other.requires_grad:
                again = [torch.autograd.grad(value.sum(), a, retain_graph=True)[0]
                         for value in (one, other)]  # fmt: skip
                torch.testing.assert_close(*again)
