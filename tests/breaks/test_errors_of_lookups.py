"""What an AttributeError tells of the lookup that has failed; tracebacks that the program takes away."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynamo


class Raises:
    @property
    def p(self) -> Any:
        raise AttributeError("inner")


class Both(Raises):
    def __getattr__(self, name: str) -> Any:
        raise AttributeError("other")


class Reads:
    def __getattribute__(self, name: str) -> Any:
        raise AttributeError("all")


class Named:
    def __getattr__(self, name: str) -> Any:
        raise AttributeError("named", name="mine", obj=3)


class Nested:
    @property
    def p(self) -> Any:
        return self.missing  # type: ignore[attr-defined]


def read(value: Any) -> Any:
    return value.p


LOOKUPS: dict[str, Callable[[Any], Any]] = {
    "attribute": lambda value: value.p,
    "getattr": lambda value: getattr(value, "p"),  # noqa: B009
    "function": read,
    "object": lambda value: object.__getattribute__(value, "zz"),
}


def fresh(function: Any) -> Any:
    """The function with code that has not run: an interpreter that has seen a property several
    times reads it without telling its errors what was looked for."""
    return types.FunctionType(function.__code__.replace(), function.__globals__)


def told(error: AttributeError) -> Any:
    return str(error), error.name, type(error.obj)


@pytest.mark.parametrize("kind", (Raises, Both, Reads, Named, Nested))
@pytest.mark.parametrize("lookup", LOOKUPS)
def test_name_and_object_of_an_attribute_error(kind: type, lookup: str) -> None:
    action, value = fresh(LOOKUPS[lookup]), kind()

    def caught(x: torch.Tensor) -> Any:
        x = x + 1
        try:
            action(value)
        except AttributeError as error:
            return x.tolist(), told(error)

    def escaping(x: torch.Tensor) -> Any:
        return x + 1, action(value)

    def passed_on(x: torch.Tensor) -> Any:
        x = x + 1
        try:
            return action(value)
        except AttributeError:
            x = x + 1
            raise

    def outcome(f: Any) -> Any:
        nonlocal action
        action = fresh(LOOKUPS[lookup])
        try:
            return f(torch.ones(2))
        except AttributeError as error:
            return told(error)

    for f in (caught, escaping, passed_on):
        dynamo.reset()
        assert outcome(dynamo.compile(f, backend="eager")) == outcome(f)


def taken_away(x: torch.Tensor) -> Any:
    try:
        raise ValueError(1)
    except ValueError as error:
        same = error.with_traceback(None) is error
        return x + 1, error.__traceback__ is None, same


def taken_away_before_a_break(x: torch.Tensor) -> Any:
    try:
        raise ValueError(1)
    except ValueError as error:
        error.with_traceback(None)
        dynamo.graph_break()
        x = x + 1
        dynamo.graph_break()
        return x, error.__traceback__ is None


def raised_again(x: torch.Tensor) -> Any:
    try:
        try:
            raise ValueError(1)
        except ValueError as error:
            raise error.with_traceback(None)  # noqa: B904
    except ValueError as error:
        return x + 1, error.__traceback__ is None


def kept(x: torch.Tensor) -> Any:
    try:
        raise ValueError(1)
    except ValueError as error:
        dynamo.graph_break()
        return x + 1, error.__traceback__ is None


@pytest.mark.parametrize("f", (taken_away, taken_away_before_a_break, raised_again, kept))
def test_a_handled_error_has_the_traceback_that_the_program_left_it(f: Any) -> None:
    x = torch.ones(2)
    assert dynamo.compile(f, backend="eager")(x)[1:] == f(x)[1:]
