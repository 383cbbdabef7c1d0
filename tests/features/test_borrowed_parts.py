"""Classes with parts that usually belong to other classes: `__dict__` of another class, `__next__`
of no iterator, class methods of what can't be called."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch

import dynamo


class Base:
    def __init__(self) -> None:
        self.a = 1


Copied: Any = type("Copied", (object,), dict(vars(Base)))
Deep: Any = type("Deep", (Copied,), {})


class Held:
    nothing = classmethod(None)  # type: ignore[arg-type]
    number = classmethod(3)  # type: ignore[arg-type]


def attributes(cls: Any) -> Any:
    made = cls()
    made.b = [2]
    made.a += 1
    try:
        return made.a, made.b, made.__dict__
    except TypeError as error:
        return made.a, made.b, str(error)


def iterated() -> Any:
    m = mock.MagicMock()
    m.items.__iter__.return_value = [1, 2]
    iter(m.made())
    found = [item for item in m.items]
    return found, repr(m.mock_calls)


def opened() -> Any:
    opens = mock.mock_open(read_data="text")
    with opens("name") as file:
        text = file.read()
    return text, repr(opens.mock_calls)


class Counting:
    """An iterator whose `__iter__` is counted, of a class that is not looked into."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.lock = sys._getframe()  # what can't be modelled

    def __iter__(self) -> Counting:
        self.log.append("iter")
        return self

    def __next__(self) -> int:
        self.log.append("next")
        if len(self.log) > 4:
            raise StopIteration
        return len(self.log)


def counted() -> Any:
    counting = Counting()
    return list(counting), counting.log


def uncallable() -> Any:
    found: list[Any] = []
    for name in ("nothing", "number"):
        bound = getattr(Held, name)
        dynamo.graph_break()
        try:
            found.append((callable(bound), bound.__self__ is Held, bound()))
        except TypeError as error:
            found.append((type(bound), str(error)))
    return found


CASES: dict[str, Callable[[], Any]] = {
    "copied": lambda: attributes(Copied), "below it": lambda: attributes(Deep),
    "iterated": iterated, "opened": opened, "counted": counted, "uncallable": uncallable,
}


@pytest.mark.parametrize("name", CASES)
def test_borrowed_part(name: str) -> None:
    def f(x: torch.Tensor) -> Any:
        y = x + 1
        found = CASES[name]()
        return (y * 2).tolist(), found

    x = torch.ones(2)
    assert dynamo.compile(f, backend="eager")(x) == f(x)


def test_object_with_a_copied_namespace_from_outside() -> None:
    def f(x: torch.Tensor, held: Any) -> Any:
        held.a += 1
        held.b = [held.a]
        return x * held.a

    compiled, one, two = dynamo.compile(f, backend="eager"), Copied(), Copied()
    for value in (1, 5):
        one.a = two.a = value
        assert torch.equal(compiled(torch.ones(2), one), f(torch.ones(2), two))
        assert (one.a, one.b) == (two.a, two.b)


INSIDE = """
def f(x):
    y = x + 1
    before = builtins.{0}
    builtins.{0} = lambda *given: given[-1] if "{0}" == "__build_class__" else given[0]
    try:
        {1}
        {2}
    finally:
        builtins.{0} = before
    return (y * 2).tolist(), found
"""
OUTSIDE = """
def f(x):
    y = x + 1
    {2}
    return (y * 2).tolist(), found if isinstance(found, str) else found.__name__
"""
ASKED = {"__import__": "import torch as found", "__build_class__": "class found: pass"}


@pytest.mark.parametrize("apart", ["pass", "dynamo.graph_break()"])
@pytest.mark.parametrize("name", ASKED)
def test_function_that_an_instruction_asks_is_replaced(name: str, apart: str) -> None:
    scope: dict[str, Any] = {"builtins": builtins, "dynamo": dynamo}
    exec(INSIDE.format(name, apart, ASKED[name]), scope)
    x = torch.ones(2)
    assert dynamo.compile(scope["f"], backend="eager")(x) == scope["f"](x)


@pytest.mark.parametrize("name", ASKED)
def test_such_a_function_is_replaced_between_calls(
    name: str, monkeypatch: pytest.MonkeyPatch,
) -> None:
    scope: dict[str, Any] = {}
    exec(OUTSIDE.format(name, "", ASKED[name]), scope)
    compiled, x, own = dynamo.compile(scope["f"], backend="eager"), torch.ones(2), vars(builtins)[name]

    def replaced(*given: Any, **named: Any) -> Any:
        return "replaced" if "found" in given or given[0] == "torch" else own(*given, **named)

    assert compiled(x) == scope["f"](x)
    monkeypatch.setattr(builtins, name, replaced)
    assert compiled(x) == scope["f"](x) == ([4.0, 4.0], "replaced")
    monkeypatch.undo()
    assert compiled(x) == scope["f"](x)
