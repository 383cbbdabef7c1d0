"""A program that changes between two calls: classes, functions and what decides `isinstance`.

Each case makes its own objects: (function, arguments, the change). Behind the change the compiled
function gives what the plain one gives.
"""

from __future__ import annotations

import abc
import collections.abc
from collections import namedtuple
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch

import dynamo
from dynamo.testing import CompileCounter

Case = tuple[Callable[..., Any], tuple[Any, ...], Callable[[], Any]]
CASES: dict[str, Callable[[], Case]] = {}


def case(make: Callable[[], Case]) -> Callable[[], Case]:
    CASES[make.__name__] = make
    return make


def outcome(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    try:
        return function(*args)
    except Exception as error:
        return type(error), str(error)


def same(a: Any, b: Any) -> bool:
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else bool(a == b)


# -- named tuples ----------------------------------------------------------------------------------


def of_point(read: Callable[..., Any], **change: Any) -> Case:
    Point = namedtuple("Point", "a b")
    return read, (torch.rand(2), Point(1, 2)), lambda: [
        setattr(Point, name, value(Point) if isinstance(value, Late) else value)
        for name, value in change.items()
    ]


class Late(NamedTuple):
    """What a change stores that is made of the class."""

    make: Callable[[Any], Any]

    def __call__(self, cls: Any) -> Any:
        return self.make(cls)


def a_times(x: Any, p: Any) -> Any:
    return x * p.a


@case
def field_becomes_a_property() -> Case:
    return of_point(a_times, a=property(lambda self: 9))


@case
def field_becomes_a_constant() -> Case:
    return of_point(a_times, a=11)


@case
def field_becomes_another() -> Case:
    return of_point(a_times, a=Late(lambda cls: cls.b))


@case
def field_is_deleted() -> Case:
    Point = namedtuple("Point", "a b")
    return a_times, (torch.rand(2), Point(1, 2)), lambda: delattr(Point, "a")


@case
def named_tuple_gets_getattribute() -> Case:
    return of_point(a_times, __getattribute__=lambda self, name: 3)


@case
def named_tuple_gets_a_method() -> Case:
    return of_point(lambda x, p: x * p._replace(a=5)[0], _replace=lambda self, **kw: (3,))


class Computed(namedtuple("Both", "a b")):
    @property
    def a(self) -> int:
        return 100 * self[0]


class Reading(namedtuple("Both", "a b")):
    def __getattribute__(self, name: str) -> Any:
        return 7 if name == "a" else super().__getattribute__(name)


class Sized(namedtuple("Both", "a b")):
    def __getitem__(self, index: Any) -> Any:
        return 50

    def __len__(self) -> int:
        return 9

    def __iter__(self) -> Any:
        return iter([5, 6, 7])

    def __eq__(self, other: object) -> bool:
        return True

    def __add__(self, other: Any) -> Any:
        return [1] * 8


@pytest.mark.parametrize("kind", [Computed, Reading, Sized])
def test_a_named_tuple_with_methods_of_its_own(kind: type) -> None:
    def read(x: torch.Tensor, p: Any) -> Any:
        return x * p.a + p.b + p[0] + len(p) + sum(p) + (p == 3) + len(p + (1,)) + (2 in p)

    x = torch.rand(2)
    assert torch.equal(dynamo.compile(read, backend="eager")(x, kind(1, 2)), read(x, kind(1, 2)))


# -- isinstance ------------------------------------------------------------------------------------


class A:
    pass


class B:
    pass


def plus_is(kind: Any) -> Callable[..., Any]:
    return lambda x, value: x + isinstance(value, kind)


@case
def class_that_an_object_tells() -> Case:
    Telling = type("Telling", (), {"__class__": property(lambda self: self.told)})
    value: Any = Telling()
    value.told = A
    return plus_is(A), (torch.rand(2), value), lambda: setattr(value, "told", B)


@case
def class_that_is_read() -> Case:
    Telling = type("Telling", (), {"__class__": property(lambda self: self.told)})
    value: Any = Telling()
    value.told = A
    return lambda x, v: x + (v.__class__ is A), (torch.rand(2), value), lambda: setattr(
        value, "told", B)


@case
def getattribute_tells_a_class() -> Case:
    Plain: Any = type("Plain", (), {})
    return plus_is(A), (torch.rand(2), Plain()), lambda: setattr(
        Plain, "__getattribute__", lambda self, name: A)


@case
def instance_check_is_added() -> Case:
    Meta: Any = type("Meta", (type,), {})
    return plus_is(Meta("Kind", (), {})), (torch.rand(2), 5), lambda: setattr(
        Meta, "__instancecheck__", lambda cls, value: True)


@case
def instance_check_is_replaced() -> Case:
    Meta: Any = type("Meta", (type,), {"__instancecheck__": lambda cls, value: True})
    return plus_is(Meta("Kind", (), {})), (torch.rand(2), 5), lambda: setattr(
        Meta, "__instancecheck__", lambda cls, value: False)


@case
def instance_check_reads_a_fact() -> Case:
    Meta = type("Meta", (type,), {"__instancecheck__": lambda cls, value: cls.answer})
    kind: Any = Meta("Kind", (), {"answer": False})
    return plus_is(kind), (torch.rand(2), 5), lambda: setattr(kind, "answer", True)


@case
def subclass_check_is_added() -> Case:
    Meta: Any = type("Meta", (type,), {})
    kind = Meta("Kind", (), {})
    return lambda x: x + issubclass(int, kind), (torch.rand(2),), lambda: setattr(
        Meta, "__subclasscheck__", lambda cls, sub: True)


@case
def subclass_check_reads_a_fact() -> Case:
    Meta = type("Meta", (type,), {"__subclasscheck__": lambda cls, sub: cls.answer})
    kind: Any = Meta("Kind", (), {"answer": False})
    return lambda x: x + issubclass(int, (kind, str)), (torch.rand(2),), lambda: setattr(
        kind, "answer", True)


@case
def class_is_registered() -> Case:
    class Abstract(abc.ABC):  # noqa: B024
        pass

    class Plain:
        pass

    return plus_is((Abstract, B)), (torch.rand(2), Plain()), lambda: Abstract.register(Plain)


@case
def class_is_registered_as_a_mapping() -> Case:
    class Plain:
        pass

    return lambda x: x + issubclass(Plain, collections.abc.Mapping), (torch.rand(2),), lambda: (
        collections.abc.Mapping.register(Plain))


# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_a_change_is_seen(name: str) -> None:
    function, args, change = CASES[name]()
    backend = CompileCounter()
    compiled = dynamo.compile(function, backend=backend)
    for step in (None, change):
        if step is not None:
            step()
        for _ in range(2):
            expected, got = outcome(function, args), outcome(compiled, args)
            assert same(got, expected), (got, expected)
    assert backend.frame_count, "nothing was compiled"
