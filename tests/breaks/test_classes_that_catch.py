"""`except` goes by inheritance alone: no metaclass is asked."""

from __future__ import annotations

import abc
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynamo


class Refuses(type):
    def __subclasscheck__(cls, other: type) -> bool:
        raise ValueError("asked")

    def __instancecheck__(cls, value: Any) -> bool:
        raise ValueError("asked")


class Odd(Exception, metaclass=Refuses):
    pass


class Registers(Exception, metaclass=abc.ABCMeta):
    pass


Registers.register(KeyError)


def with_a_metaclass() -> Any:
    try:
        raise KeyError("a")
    except Odd:
        return 1
    except (Registers, ValueError):
        return 2
    except KeyError:
        return 3


def a_real_error() -> Any:
    try:
        int("a")
    except (Odd, Registers):
        return 1
    except ValueError:
        return 2


def its_own() -> Any:
    try:
        raise Registers("b")
    except (KeyError, Registers) as error:
        return str(error)


def behind_a_break() -> Any:
    with io.StringIO():
        try:
            raise KeyError("a")
        except Odd:
            return 1
        except LookupError as error:
            return repr(error)


def no_class() -> Any:
    try:
        raise KeyError("a")
    except (KeyError, 3):  # type: ignore[misc]  # noqa: B030
        return 1


def caught(function: Callable[[], Any]) -> Any:
    try:
        return function()
    except TypeError as error:
        return str(error)


FUNCTIONS = [with_a_metaclass, a_real_error, its_own, behind_a_break, no_class]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_as_in_python(function: Callable[[], Any]) -> None:
    def f(x: torch.Tensor) -> Any:
        return x + 1, function()

    compiled = dynamo.compile(f, backend="eager")
    for _ in range(2):
        assert caught(lambda: compiled(torch.ones(2))[1]) == caught(function)
