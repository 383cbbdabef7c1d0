"""A program that changes between two calls: classes, functions and what decides `isinstance`.

Each case makes its own objects: (function, arguments, the change). Behind the change the compiled
function gives what the plain one gives.
"""

from __future__ import annotations

import abc
import collections.abc
import enum
import importlib
import types
from collections import namedtuple
from collections.abc import Callable
from types import SimpleNamespace as Namespace
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


# -- classes get what they had not -----------------------------------------------------------------


@case
def descriptor_gets_a_setter() -> Case:
    Read: Any = type("Read", (), {"__get__": lambda self, instance, cls: 9})
    value: Any = type("Holding", (), {"d": Read()})()
    value.__dict__["d"] = 4
    return lambda x, v: x * v.d, (torch.rand(2), value), lambda: setattr(
        Read, "__set__", lambda self, instance, value: None)


@case
def class_attribute_becomes_a_descriptor() -> Case:
    Plain: Any = type("Plain", (), {})
    value: Any = type("Holding", (), {"d": Plain()})()
    return lambda x, v: x + (type(v.d) is Plain), (torch.rand(2), value), lambda: setattr(
        Plain, "__get__", lambda self, instance, cls: 9)


def gets(read: Callable[..., Any], name: str, method: Any, of_class: bool = False) -> Case:
    """A class, or its metaclass, gets a method; `read` is given the class and an instance."""
    Meta: Any = type("Meta", (type,), {})
    Plain: Any = Meta("Plain", (), {"__repr__": lambda self: "abc", "a": 1})
    return read, (torch.rand(2), Plain, Plain()), lambda: setattr(
        Meta if of_class else Plain, name, method)


def store(x: Any, cls: Any, value: Any) -> Any:
    value.b = 1
    return x * value.b


GAINS: dict[str, tuple[Callable[..., Any], str, Any, bool]] = {
    "__new__": (lambda x, cls, v: x * cls().a, "__new__", lambda cls: Namespace(a=5), False),
    "__init__": (lambda x, cls, v: x * cls().a, "__init__", lambda self: setattr(self, "a", 6), False),
    "__call__ of a metaclass": (
        lambda x, cls, v: x * cls().a, "__call__", lambda cls: Namespace(a=5), True),
    "__str__": (lambda x, cls, v: x + len(str(v)), "__str__", lambda self: "q", False),
    "__format__": (lambda x, cls, v: x + len(f"{v}"), "__format__", lambda self, how: "q", False),
    "__setattr__": (
        store, "__setattr__", lambda self, n, v: object.__setattr__(self, n, v + 7), False),
    "__call__": (lambda x, cls, v: x + callable(v), "__call__", lambda self: 1, False),
    "__bool__": (lambda x, cls, v: x + (5 if v else 6), "__bool__", lambda self: False, False),
    "__len__": (lambda x, cls, v: x + (5 if v else 6), "__len__", lambda self: 0, False),
    "__eq__": (lambda x, cls, v: x + (v == 3), "__eq__", lambda self, other: True, False),
}


@pytest.mark.parametrize("name", GAINS)
def test_a_class_gets_a_method(name: str) -> None:
    check(gets(*GAINS[name]))


@case
def named_tuple_gets_a_constructor() -> Case:
    Point: Any = namedtuple("Point", "a b")
    return lambda x: x * Point(1, 2).b, (torch.rand(2),), lambda: setattr(
        Point, "__new__", lambda cls, a, b: tuple.__new__(cls, (a, 77)))


@case
def defaults_of_a_named_tuple() -> Case:
    Point: Any = namedtuple("Point", "a b", defaults=[5])
    return lambda x: x * Point(1).b, (torch.rand(2),), lambda: setattr(
        Point.__new__, "__defaults__", (8,))


class Scaled(namedtuple("Both", "a b")):
    def __new__(cls, a: Any, b: Any) -> Any:
        return super().__new__(cls, a * 10, b)


def test_a_named_tuple_with_a_constructor() -> None:
    def read(x: torch.Tensor) -> Any:
        return x * Scaled(1, 2).a + Scaled(1, 2)._replace(b=7).b + Scaled._make((1, 2)).a

    x = torch.rand(2)
    assert torch.equal(dynamo.compile(read, backend="eager", fullgraph=True)(x), read(x))


@case
def attribute_of_an_enum_member() -> Case:
    kind: Any = enum.Enum("kind", "A B")
    return lambda x: x + getattr(kind.A, "mark", 0), (torch.rand(2),), lambda: setattr(
        kind.A, "mark", 5)


@case
def annotations_of_a_class() -> Case:
    class Plain:
        a: int = 3

    return lambda x: x + len(Plain.__annotations__), (torch.rand(2),), lambda: (
        Plain.__annotations__.update(b=int))


@case
def module_gets_getattr() -> Case:
    module: Any = types.ModuleType("changed_module")
    return lambda x, m: x + getattr(m, "absent", 5), (torch.rand(2), module), lambda: setattr(
        module, "__getattr__", lambda name: 77)


@case
def module_class_gets_getattr() -> Case:
    Net: Any = type("Net", (torch.nn.Module,), {})
    return lambda x, m: x + getattr(m, "absent", 5), (torch.rand(2), Net()), lambda: setattr(
        Net, "__getattr__", lambda self, name: 77)


# -- objects that are keys -------------------------------------------------------------------------


def of_two(read: Callable[..., Any]) -> Case:
    """Two objects in a list, of which one takes the other's place; a dict that has the first."""
    two = [A(), A()]
    return read, (torch.rand(2), two, {two[0]: 5}), lambda: two.__setitem__(1, two[0])


@case
def objects_in_a_set() -> Case:
    return of_two(lambda x, two, table: x + len({two[0], two[1]}))


@case
def objects_as_keys() -> Case:
    return of_two(lambda x, two, table: x * {two[0]: 1, two[1]: 2}[two[0]])


@case
def object_that_is_no_key() -> Case:
    return of_two(lambda x, two, table: x * table.get(two[1], 7))


@case
def parameters_become_one() -> Case:
    two = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    return lambda x: x + len(list(two.parameters())), (torch.rand(2),), lambda: setattr(
        two[1], "weight", two[0].weight)


# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_a_change_is_seen(name: str) -> None:
    check(CASES[name]())


def check(made: Case) -> None:
    function, args, change = made
    backend = CompileCounter()
    compiled = dynamo.compile(function, backend=backend)
    for step in (None, change):
        if step is not None:
            step()
        for _ in range(2):
            expected, got = outcome(function, args), outcome(compiled, args)
            assert same(got, expected), (got, expected)
    assert backend.frame_count, "nothing was compiled"


FOUND = [1]


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_a_list_that_an_import_of_the_compiler_fills(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rules for shapes import modules at their first use, and these register things."""
    (tmp_path / "imported_by_a_rule.py").write_text(f"import {__name__} as m\nm.FOUND.append(2)\n")
    monkeypatch.syspath_prepend(tmp_path)
    operator = torch.library.custom_op("of_changed_programs::twice", mutates_args=())(twice)

    @operator.register_fake
    def _(x: torch.Tensor) -> torch.Tensor:
        importlib.import_module("imported_by_a_rule")
        return torch.empty_like(x)

    backend = CompileCounter()
    compiled = dynamo.compile(lambda x: operator(x) + len(FOUND), backend=backend)
    compiled_first = dynamo.compile(lambda x: len(FOUND) + operator(x), backend=backend)
    for function in (compiled_first, compiled):
        assert torch.equal(function(torch.ones(2)), torch.tensor([4.0, 4.0]))
    assert backend.frame_count == 2


def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2
