"""Operators of C code beside the reflected methods of the program's classes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import dynamo


class Reflected:
    """Its reflected methods are asked before, after or not at all, by the kind of the other."""

    def __radd__(self, other: object) -> str:
        return "radd"

    def __rmul__(self, other: object) -> str:
        return "rmul"

    def __rmod__(self, other: object) -> str:
        return "rmod"

    def __iter__(self) -> Iterator[int]:
        return iter([7])

    def __index__(self) -> int:
        return 2

    def __repr__(self) -> str:
        return "Reflected()"


class SubList(list):  # type: ignore[type-arg]
    pass


class SubText(str):
    pass


def added_in_place(a: Any, b: Any) -> Any:
    a = a.copy()
    a += b
    return a


def repeated(a: Any, b: Any) -> Any:
    return b * a


def formatted(a: Any, b: Any) -> Any:
    return a % b


def outcome(function: Any, left: Any, right: Any) -> Any:
    try:
        found = function(left, right)
    except TypeError as error:
        return str(error)
    return type(found), repr(found)


@pytest.mark.parametrize(("function", "left"), [
    (added_in_place, [1]), (added_in_place, SubList([1])), (added_in_place, deque([1])),
    (repeated, [1]), (repeated, SubList([1])), (repeated, (1,)), (repeated, "a"),
    (repeated, SubText("a")),
    (formatted, "a"), (formatted, "%s"), (formatted, SubText("a")), (formatted, b"a"),
    (formatted, bytearray(b"a")), (formatted, 5),
], ids=lambda given: getattr(given, "__name__", repr(given)))
def test_which_reflected_method_counts(function: Any, left: Any) -> None:
    compiled = dynamo.compile(function, backend="eager")
    assert outcome(compiled, left, Reflected()) == outcome(function, left, Reflected())


def test_an_array_is_added_to_a_list() -> None:
    compiled = dynamo.compile(added_in_place, backend="eager")
    right = np.array([2.0])
    assert outcome(compiled, [1.0], right) == outcome(added_in_place, [1.0], right)
