"""`torch.tensor([a, b, 1.5])` of tensors of one element: in one graph, and as eager reads them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynamo

ITEMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "float32": lambda x: x[0] * 2, "row": lambda x: x[1:2], "float64": lambda x: x[1].double(), "int64": lambda x: (x[0] * 9).long(),
    "bool": lambda x: x[0] > 0.5, "half": lambda x: x[2].half(), "bfloat16": lambda x: x[2].bfloat16(), "large": lambda x: x[0].long() + 2**60 + 1,
    "1.5": lambda x: 1.5, "2": lambda x: 2, "True": lambda x: True,
}  # fmt: skip


def outcome(function: Callable[..., Any], *args: Any) -> Any:
    try:
        made = function(*args)
    except Exception as error:
        return type(error), str(error)
    return made.dtype, made.tolist(), made.shape, made.device, made.stride(), made.requires_grad


@pytest.mark.parametrize("first", ITEMS)
def test_with_each_other_item(first: str) -> None:
    for second in ITEMS:
        def function(x: torch.Tensor, second: str = second) -> torch.Tensor:
            return torch.tensor([ITEMS[first](x), ITEMS[second](x), ITEMS["float32"](x)], device="cpu")

        dynamo.reset()
        x, compiled = torch.rand(3), dynamo.compile(function, backend="eager", fullgraph=True)
        assert outcome(compiled, x) == outcome(function, x), second


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64, float])
def test_in_a_dtype_that_is_given(dtype: Any) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor((x[0], x[1].double(), x[2].long() + 2**53 + 1, 3), dtype=dtype)

    x, compiled = torch.rand(3), dynamo.compile(function, fullgraph=True)
    assert outcome(compiled, x) == outcome(function, x)


@pytest.mark.parametrize("function", [
    lambda x: torch.tensor([x[0], 1.5], dtype=torch.int64), lambda x: torch.tensor([x[0], x]), lambda x: torch.tensor([x[0], 1j]),
    lambda x: torch.tensor([x[0].long(), 1], dtype=torch.uint8), lambda x: torch.tensor([[x[0]], [1]]),
    lambda x: torch.tensor([x.clone().requires_grad_()[0], 1.5]), lambda x: torch.tensor([x[0], 1], requires_grad=True),
])
def test_left_to_eager(function: Callable[..., Any]) -> None:
    x = torch.rand(3) * 400
    assert outcome(dynamo.compile(function, backend="eager"), x) == outcome(function, x)


def test_the_default_device_is_that_of_the_call() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.tensor([x[0], x[1], 2.0])

    x, compiled = torch.rand(3), dynamo.compile(function, backend="eager", fullgraph=True)
    assert outcome(compiled, x) == outcome(function, x)
    with torch.device("meta"):
        assert compiled(x).device == function(x).device == torch.device("meta")


def test_the_memory_is_its_own() -> None:
    def function(x: torch.Tensor) -> Any:
        y = x * 1
        made = torch.tensor([y[0], y[1]])
        y.add_(1)
        return made, y

    x = torch.rand(3)
    for one, other in zip(dynamo.compile(function, fullgraph=True)(x), function(x), strict=True):
        assert torch.equal(one, other)
