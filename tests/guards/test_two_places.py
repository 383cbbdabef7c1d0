"""Two places that hold one object in some calls and two in others: what was compiled for one case does
not stand for the other, wherever the objects are and however they are compared."""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynamo


class Mode(enum.Enum):
    A = 1
    B = 2


class Plain:
    def __init__(self, v: int = 0) -> None:
        self.v = v

    def method(self) -> int:
        return self.v


class Holder: ...


def one(x: Any) -> Any:
    return x


def two(x: Any) -> Any:
    return x


VALUES: dict[str, Callable[[], tuple[Any, Any]]] = {
    "members": lambda: (Mode.A, Mode.B),
    "classes": lambda: (Plain, Mode),
    "functions": lambda: (one, two),
    "built-ins": lambda: (len, max),
    "methods of C": lambda: (str.upper, str.lower),
    "slot wrappers": lambda: (int.__add__, int.__sub__),
    "methods of tensors": lambda: (torch.Tensor.sin, torch.Tensor.cos),
    "modules": lambda: (functools, enum),
    "instances": lambda: (Plain(1), Plain(1)),
    "bound methods": lambda: (Plain(1).method, Plain(1).method),
    "partials": lambda: (functools.partial(one), functools.partial(one)),
    "tensors": lambda: (torch.ones(2), torch.ones(2)),
    "lists": lambda: ([1], [1]),
}
USES: dict[str, Callable[[Any, Any], Any]] = {
    "is": lambda a, b: a is b,
    "in": lambda a, b: any(each is a for each in (b,)),
    "dicts": lambda a, b: {id(a): 1}.get(id(b)),
    "key": lambda a, b: {a: 1}.get(b),
    "in a set": lambda a, b: a in {b},
    "instance dicts": lambda a, b: hasattr(a, "__dict__") and a.__dict__ is b.__dict__,
}
CALLS = [(0, 0), (0, 1), (1, 1), (1, 0)]


def places(a: Any, b: Any, where: str) -> tuple[Any, Any]:
    if where == "class":
        Holder.b = b  # type: ignore[attr-defined]
        return [a], Holder
    first, second = Plain(), Plain()
    first.b, second.b = a, b  # type: ignore[attr-defined]
    return [first.b], second  # type: ignore[attr-defined]


def outcome(function: Callable[..., Any], *args: Any) -> Any:
    try:
        result, y = function(*args)
        return result, y.tolist()
    except (TypeError, AttributeError) as error:  # of what has no hash or no __dict__
        return type(error)


@pytest.mark.parametrize("start", range(4))
@pytest.mark.parametrize("where", ("class", "instance"))
@pytest.mark.parametrize("use", USES)
def test_as_in_eager(use: str, where: str, start: int) -> None:
    def function(x: torch.Tensor, items: Any, holder: Any) -> Any:
        return USES[use](items[0], holder.b), x + 1

    for name, make in VALUES.items():
        dynamo.reset()
        compiled = dynamo.compile(function, backend="eager")
        for i, j in (*CALLS[start:], *CALLS[:start]):
            values = make()
            items, holder = places(values[i], values[j], where)
            expected = outcome(function, torch.ones(2), items, holder)
            assert outcome(compiled, torch.ones(2), items, holder) == expected, (name, i, j)
