"""Errors of calls keep what they hold; what calls refuse, and whom they ask."""

from __future__ import annotations

import enum
import json
import operator
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynamo

PAIR = (1, 2)
BOTH = frozenset(PAIR)


class Seven(int):
    def __index__(self) -> int:
        return 8


def of_re() -> Any:
    try:
        re.compile("(")
    except re.error as error:
        return error.msg, error.pattern, error.pos, str(error)
    return None


def of_json() -> Any:
    try:
        json.loads("[1,")
    except json.JSONDecodeError as error:
        return error.msg, error.doc, error.pos
    return None


def traceback_of_another_type() -> Any:
    try:
        ValueError().__traceback__ = 5  # type: ignore[assignment]
    except TypeError as error:
        return str(error)
    return None


def suppressed_by_another_type() -> Any:
    try:
        ValueError().__suppress_context__ = "x"  # type: ignore[assignment]
    except TypeError as error:
        return str(error)
    return None


def too_many_arguments() -> Any:
    found = []
    for args in (([(1, 2)], None), ((), ())):
        try:
            found.append(dict(*args))  # type: ignore[call-overload]
        except TypeError as error:
            found.append(str(error))
    return found


def index_of_a_subclass_of_int() -> Any:
    return operator.index(Seven(7)), [1, 2, 3][Seven(0)]


def two_names_of_one_auto() -> Any:
    class Place(enum.Enum):
        first = primero = enum.auto()
        second = enum.auto()

    return [member.value for member in Place], Place.first is Place.primero


def the_same_again() -> Any:
    return PAIR[:] is PAIR, PAIR[::-1] == (2, 1), PAIR[:1] is PAIR, frozenset(BOTH) is BOTH


class Odd(Exception):
    def __new__(cls, *args: Any) -> Any:
        return cls


def raised() -> Any:
    try:
        raise Odd
    except TypeError as error:
        return str(error)


def thrown() -> Any:
    waiting = (number for number in (1, 2))
    try:
        return waiting.throw(Odd)
    except TypeError as error:
        return str(error), list(waiting)


@pytest.mark.parametrize("part", [
    of_re, of_json, traceback_of_another_type, suppressed_by_another_type, too_many_arguments,
    index_of_a_subclass_of_int, two_names_of_one_auto, the_same_again, raised,
    thrown,
])  # fmt: skip
def test_like_python(part: Callable[[], Any]) -> None:
    def f(x: torch.Tensor) -> Any:
        return x + 1, part()

    value, found = dynamo.compile(f, backend="eager")(torch.ones(2))
    assert found == part() and found is not None
    assert torch.equal(value, torch.full((2,), 2.0))
