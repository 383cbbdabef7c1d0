"""The compiler's own questions about an object run none of its code: classes note what is looked up."""

from __future__ import annotations

import enum
import inspect
import unittest
from typing import Any

import pytest
import torch

import dynamo

SEEN: list[str] = []


class Answers(type):
    def __getattr__(cls, name: str) -> Any:
        SEEN.append(name)
        raise AttributeError(name)


class Plain(metaclass=Answers):
    v = 1

    def go(self, x: Any) -> Any:
        return x + self.v


class Notes:
    v = 1

    def __getattribute__(self, name: str) -> Any:
        SEEN.append(name)
        return object.__getattribute__(self, name)

    def go(self, x: Any) -> Any:
        return x + self.v


class Slotted(Notes):
    __slots__ = ("w",)


class Bare:
    __slots__ = ("w",)
    v = 1

    def __getattribute__(self, name: str) -> Any:
        SEEN.append(name)
        return object.__getattribute__(self, name)

    def go(self, x: Any) -> Any:
        return x + self.v


class Watches(type):
    def __getattribute__(cls, name: str) -> Any:
        SEEN.append(name)
        return super().__getattribute__(name)


class Watched(metaclass=Watches):
    v = 1

    def go(self, x: Any) -> Any:
        return x + self.v

    def __add__(self, other: Any) -> Any:
        return super().__getattribute__("v") + other

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *error: Any) -> None:
        self.v = 2


class Failure(Exception):
    v = 1

    def __getattribute__(self, name: str) -> Any:
        SEEN.append(name)
        return super().__getattribute__(name)

    def go(self, x: Any) -> Any:
        return x + self.v


def calls(value: Any, x: Any) -> Any:
    return value.go(x)


def breaks(value: Any, x: Any) -> Any:
    y = value.go(x)
    dynamo.graph_break()
    return y, value.go(y), type(value) is int


def makes(value: Any, x: Any) -> Any:
    return type(value)(), x + 1


def enters(value: Any, x: Any) -> Any:
    try:
        with value:
            return x
    except TypeError:
        return x + 1


def uses_the_class(value: Any, x: Any) -> Any:
    kind = type(value)
    return isinstance(value, Plain), kind.v, hasattr(value, "w"), kind is Plain, {kind: x}, [value]


def adds(value: Any, x: Any) -> Any:
    try:
        return value + 1, x + 1
    except TypeError:
        return x


@pytest.mark.parametrize("kind", (Plain, Notes, Slotted, Bare, Failure, Watched))
@pytest.mark.parametrize("f", (calls, breaks, makes, enters, uses_the_class, adds))
def test_nothing_else_is_looked_up(f: Any, kind: type) -> None:
    compiled = dynamo.compile(f, backend="eager")
    value, x = kind(), torch.ones(2)
    for _ in range(2):
        SEEN.clear()
        f(value, x)
        expected = SEEN[:]
        SEEN.clear()
        compiled(value, x)
        assert expected == SEEN


def test_why_a_call_is_compiled_again_is_found_without_lookups() -> None:
    def f(value: Any, x: Any) -> Any:
        return value.v + x

    compiled, x = dynamo.compile(f, backend="eager"), torch.ones(2)
    for v in (1, "no", 2, 3):
        value = Notes()
        value.v = v  # type: ignore[assignment]
        SEEN.clear()
        try:
            f(value, x)
        except TypeError:
            pass
        expected = SEEN[:]
        SEEN.clear()
        try:
            compiled(value, x)
        except TypeError:
            pass
        assert expected == SEEN


def test_what_a_break_drops_is_asked_for_nothing() -> None:
    class Case(unittest.TestCase):
        def run_it(self, x: torch.Tensor) -> torch.Tensor:
            class Asked:
                def __getattribute__(self, name: str) -> Any:
                    names.append(name)
                    return {}

            with self.assertRaises(AttributeError):
                inspect.getattr_static(Asked(), "missing")
            return x + 1

    names: list[str] = []
    x, case = torch.ones(2), Case("run_it")
    dynamo.reset()
    compiled = dynamo.compile(lambda x: case.run_it(x) * 2, backend="eager")
    for _ in range(2):
        assert torch.equal(compiled(x), x * 4)
    assert names == []


class Loses(Notes):
    """An object whose attributes Python deletes by a method of its own."""

    def __delattr__(self, name: str) -> None:
        super().__delattr__(name)


@pytest.mark.parametrize("kind", [Notes, Loses, Bare])
def test_an_attribute_that_is_deleted_behind_a_break(kind: type) -> None:
    def deletes(x: torch.Tensor) -> Any:
        made = kind()
        made.w = 2
        dynamo.graph_break()
        y = x * made.w
        del made.w
        return y

    SEEN.clear()
    deletes(torch.ones(2))
    wanted = list(SEEN)
    SEEN.clear()
    dynamo.compile(deletes, backend="eager")(torch.ones(2))
    assert wanted == SEEN


class WatchesMembers(enum.EnumMeta):
    def __getattribute__(cls, name: str) -> Any:
        SEEN.append(name)
        return super().__getattribute__(name)


class Kind(enum.Enum, metaclass=WatchesMembers):
    ONE, TWO = 1, 2


TABLE = {Kind.ONE: 3, torch.int8: 4, Kind.TWO: 5}


def test_a_member_of_a_watched_enumeration_is_a_key() -> None:
    def scale(x: Any, kind: Any) -> Any:
        return x * TABLE[kind]

    one, two = Kind.ONE, Kind.TWO
    compiled = dynamo.compile(scale, backend="eager", fullgraph=True)
    SEEN.clear()
    found = [compiled(torch.ones(1), kind).item() for kind in (one, two, torch.int8, one)]
    assert found == [3, 5, 4, 3] and SEEN == []
