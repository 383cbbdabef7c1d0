"""`has_torch_function` and what asks it: objects that override torch's functions are seen."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import overrides
from torch.nn import functional

import dynamo


class Overrides:
    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function.__name__


class Tagged(torch.Tensor):
    pass


class TurnedOff:
    __torch_function__ = torch._C._disabled_torch_function_impl


def asked(x: torch.Tensor, value: Any) -> Any:
    return [
        overrides.has_torch_function((x, value)), overrides.has_torch_function_unary(value),
        overrides.has_torch_function_variadic(value, x), overrides.has_torch_function([x]),
        overrides.is_tensor_like(value), x * 2,
    ]


VALUES = (Overrides(), Overrides, TurnedOff(), torch.ones(2).as_subclass(Tagged), None, 3, [1],
          torch.nn.Parameter(torch.ones(2)), torch.nn.ReLU())


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
@pytest.mark.every_combination
def test_who_overrides(value: Any) -> None:
    x = torch.ones(2)
    got, want = dynamo.compile(asked, backend="eager")(x, value), asked(x, value)
    assert got[:-1] == want[:-1] and torch.equal(got[-1], want[-1])


def test_functions_of_torch_ask() -> None:
    def f(x: torch.Tensor, value: Any) -> Any:
        return functional.relu(value), functional.dropout(value, 0.5), x + 1

    got = dynamo.compile(f, backend="eager")(torch.ones(2), Overrides())
    assert got[:2] == ("relu", "dropout")
