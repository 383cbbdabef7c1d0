"""Special attributes of classes and metaclasses that are replaced between calls by what is no
function: errors and answers are eager's."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynamo


class Meta(abc.ABCMeta):
    pass


def make() -> tuple[Any, Any, Any]:
    """A metaclass, an abstract class, and a class below it."""

    class Kind(Meta):
        pass

    class Shape(metaclass=Kind):
        size = 2

        def scale(self, x: Any) -> Any:
            return x * self.size

    class Square(Shape):
        pass

    return Kind, Shape, Square


READS: dict[str, Callable[..., Any]] = {
    "attribute": lambda x, shape, square: x * square.size,
    "of the class": lambda x, shape, square: x * shape.size,
    "method": lambda x, shape, square: square.scale(x),
    "made": lambda x, shape, square: shape().scale(x),
    "asked for": lambda x, shape, square: x + hasattr(type(square), "__mul__"),
    "belongs": lambda x, shape, square: x + isinstance(square, shape),
    "belongs not": lambda x, shape, square: x + isinstance(3, shape),
    "below": lambda x, shape, square: x + issubclass(type(square), shape),
    "true": lambda x, shape, square: x + (1 if square else 2),
    "alike": lambda x, shape, square: x + (square == square) + (square != 1),
}
NAMES = ["__getattribute__", "__getattr__", "__call__", "__instancecheck__", "__subclasscheck__",
         "__new__", "__init__", "__class__", "__eq__", "__hash__", "__bool__", "__len__", "size"]
# What an abstract class calls for a class that it has not been asked for before.
REMEMBERED = ("__subclasscheck__", "__eq__", "__hash__")
VALUES: dict[str, Any] = {
    "a property": property(lambda self: 9), "None": None, "a number": 5, "a class": int,
    "a class method": classmethod(lambda *args: 7),
    "a static method": staticmethod(lambda *args: 7),
    "a function": lambda *args, **kwargs: 3,
}


def outcome(call: Callable[..., Any], *args: Any) -> Any:
    try:
        return call(*args).tolist()
    except Exception as error:
        return type(error).__name__, str(error)


def told_twice(call: Callable[..., Any], place: int, name: str, value: str) -> Any:
    """What a call gives before and after, for classes of its own: abstract ones remember."""
    x, classes = torch.ones(2), make()
    square = classes[2]()
    before = outcome(call, x, classes[1], square)
    try:
        setattr(classes[place], name, VALUES[value])
    except TypeError:
        return before, None
    return before, outcome(call, x, classes[1], square)


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("name", NAMES)
def test_what_is_replaced_is_seen(name: str, place: int) -> None:
    differs = []
    for read, function in READS.items():
        if name in REMEMBERED and read in ("belongs", "belongs not", "below"):
            continue
        for value in VALUES:
            dynamo.reset()
            found = told_twice(dynamo.compile(function, backend="eager"), place, name, value)
            wanted = told_twice(function, place, name, value)
            if found != wanted:
                differs.append((read, value, found, wanted))
    assert not differs
