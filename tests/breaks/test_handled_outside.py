"""A function that is compiled while its caller handles an exception."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynamo


def told(x: torch.Tensor) -> Any:
    return x + 1, repr(sys.exc_info()[1])


def told_alone(x: torch.Tensor) -> Any:
    return x + 1, repr(sys.exception())


def raised_again(x: torch.Tensor) -> Any:
    y = x + 1
    try:
        raise
    except (ValueError, RuntimeError) as error:
        return y, repr(error)


def formatted(x: torch.Tensor) -> Any:
    return x + 1, traceback.format_exc().splitlines()[-1]


@pytest.mark.parametrize("function", [told, told_alone, raised_again, formatted])
def test_it_is_seen(function: Callable[[torch.Tensor], Any]) -> None:
    compiled = dynamo.compile(function, backend="eager")
    for number in range(3):
        try:
            raise ValueError(number)
        except ValueError:
            assert compiled(torch.ones(2))[1] == function(torch.ones(2))[1]
    assert compiled(torch.ones(2))[1] == function(torch.ones(2))[1]


@pytest.mark.parametrize("function", [told, told_alone, formatted])
def test_what_was_compiled_where_nothing_is_handled(function: Callable[[torch.Tensor], Any]) -> None:
    compiled = dynamo.compile(function, backend="eager")
    assert compiled(torch.ones(2))[1] == function(torch.ones(2))[1]
    try:
        raise ValueError("later")
    except ValueError:
        assert compiled(torch.ones(2))[1] == function(torch.ones(2))[1]
    assert compiled(torch.ones(2))[1] == function(torch.ones(2))[1]
