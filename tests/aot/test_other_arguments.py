"""Later calls with arguments of another making: one tensor twice, views, inference tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import dynamo

BACKENDS = ["eager", "inductor"]


def outcome(call: Callable[..., torch.Tensor], *given: torch.Tensor) -> list[Any]:
    result = call(*given)
    return [result.tolist(), result.requires_grad, *(tensor.tolist() for tensor in given)]


@pytest.mark.parametrize("learns", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
def test_one_tensor_twice_that_is_written_past_autograd(backend: str, learns: bool) -> None:
    def program(x, y):
        x.data.mul_(2)
        return y + 1

    compiled = dynamo.compile(program, backend=backend)
    outcome(compiled, *(torch.ones(2, requires_grad=learns) for _ in range(2)))
    for second in (lambda x: x, lambda x: x.view(2), lambda x: x.data):
        made = [torch.ones(2, requires_grad=learns) for _ in range(2)]
        eager, ours = (outcome(call, x, second(x)) for call, x in zip((program, compiled), made))
        assert eager == ours
        assert eager[0] == [3.0, 3.0]


@pytest.mark.parametrize("backend", BACKENDS)
def test_whether_an_argument_is_a_view(backend: str) -> None:
    def program(x):
        return x + 1 if x._is_view() else x * 2

    compiled = dynamo.compile(program, backend=backend)
    base = torch.randn(4, 2)
    for x in (base[:2], torch.randn(2, 2), base[2:], base.t()[:, :2], torch.randn(2, 2)):
        assert torch.equal(compiled(x), program(x))


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_inference_tensor_beside_a_parameter(backend: str) -> None:
    def program(x, y):
        return x + y

    compiled = dynamo.compile(program, backend=backend)
    weight = nn.Parameter(torch.randn(2, 2))
    with torch.inference_mode():
        x = torch.randn(2, 2)
    for given in (torch.randn(2, 2), x, torch.randn(2, 2)):
        result = compiled(given, weight)
        assert torch.equal(result, given + weight)
        weight.grad = None
        result.sum().backward()
        assert torch.equal(weight.grad, torch.ones(2, 2))


@pytest.mark.parametrize("learns", [False, True])
def test_a_written_argument_with_history_counts_one_write(learns: bool) -> None:
    def program(x, y):
        x[0].mul_(y[0])
        return y * 2

    compiled = dynamo.compile(program, backend="inductor")
    for call in (program, compiled, compiled):
        x = torch.randn(2, 2, requires_grad=True) * 1
        call(x, torch.randn(2, 2, requires_grad=learns))
        assert x._version == 1
