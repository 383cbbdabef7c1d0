"""Classes of the program whose methods are C's: each may be replaced between two calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import dynamo

from .test_read_then_changed import caught, told


class Borrowing(list[Any]):
    """A list whose methods are C's, by its own names and by theirs."""


BORROWED: dict[str, Any] = {
    "push": list.append, "size": list.__len__, "made": dict.__dict__["fromkeys"],
    **{name: getattr(list, name) for name in (
        "__len__", "__iter__", "__eq__", "__add__", "__getitem__", "__lt__", "append")},
}
LENT: dict[str, tuple[Callable[[Any], Any], str, Any]] = {
    "method": (lambda value: (value.push([5]), len(value)), "push", list.extend),
    "method, unused": (lambda value: value.push, "push", list.__len__),
    "name of a method": (lambda value: value.push.__name__, "push", list.extend),
    "method of another class": (lambda value: callable(value.push), "push", str.upper),
    "method of the class": (lambda value: type(value).size(value), "size", list.copy),
    "class method": (lambda value: value.made([1]), "made", len),
    "length": (len, "__len__", lambda self: 0),
    "truth": (bool, "__len__", lambda self: 0),
    "items": (lambda value: [*value], "__iter__", lambda self: iter([8])),
    "equal": (lambda value: value == [1], "__eq__", list.__ne__),
    "sum": (lambda value: type(value + [1]).__name__, "__add__", list.__iadd__),
    "item": (lambda value: value[1], "__getitem__", list.index),
    "order": (lambda value: value < [2], "__lt__", list.__gt__),
    "own name": (lambda value: (value.append([5]), len(value)), "append", list.extend),
}


@pytest.mark.parametrize("case", LENT)
def test_methods_of_c_in_a_class_that_changes(case: str) -> None:
    function, name, value = LENT[case]
    asks = caught(function)
    found, expected = (type("Borrower", (Borrowing,), dict(BORROWED))([1, 2]) for _ in range(2))
    compiled = dynamo.compile(asks, backend="eager")
    assert told(compiled(found)) == told(asks(expected))
    for each in (found, expected):
        setattr(type(each), name, value)
    assert told(compiled(found)) == told(asks(expected))


HELD: dict[str, tuple[Callable[[Any], Any], Any, Any]] = {
    "class, called": (lambda value: value.held((1,)), list, tuple),
    "class, read": (lambda value: value.held.__name__, dict, list),
    "class, read through the class": (lambda value: type(value).held.__name__, dict, list),
    "built-in function": (lambda value: value.held([1, 2]), max, min),
    "built-in function, read": (lambda value: value.held.__name__, len, max),
}


@pytest.mark.parametrize("case", HELD)
def test_what_a_class_holds_is_replaced(case: str) -> None:
    function, first, second = HELD[case]
    holder = type("Holder", (), {"held": first})
    asks = caught(function)
    compiled = dynamo.compile(asks, backend="eager")
    assert told(compiled(holder())) == told(asks(holder()))
    holder.held = second  # type: ignore[attr-defined]
    assert told(compiled(holder())) == told(asks(holder()))
