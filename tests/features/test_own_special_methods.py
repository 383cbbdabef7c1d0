"""What classes of the program have in place of what their built-in part does: from the start, or from the
second call on; as functions, or as anything else that can stand in a class."""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

import dynamo
from tests.parametrize import long_where

OTHERS: dict[str, Any] = {
    "a function": lambda self, *args: "of a function",
    "static": staticmethod(lambda *args: "static"),
    "a partial": functools.partial(lambda *args: "of a partial"),
    "a property": property(lambda self: lambda *args: "of a property"),
    "a size": lambda self, *args: 0,
    "nothing": None,
}


def outcome(function: Callable[..., Any], *args: Any) -> Any:
    try:
        return function(*args)
    except Exception as error:
        return type(error), str(error)


def differences(read: Callable[[Any], Any], make: Callable[[], type], new: Callable[[type], Any], name: str) -> list[str]:
    """For which kinds of `name` compiled and eager differ: a class that has it, and one that gets it."""
    wrong = []
    for kind, value in OTHERS.items():
        for late in (False, True):
            found = []
            for compiled in (False, True):
                cls = make()
                program = dynamo.compile(read, backend="eager") if compiled else read
                dynamo.reset()
                if late:
                    outcome(program, new(cls))
                setattr(cls, name, value)
                try:
                    made = new(cls)
                except Exception:
                    break
                found.append(outcome(program, made))
            if found and found[0] != found[1]:
                wrong.append(f"{kind}, {'later' if late else 'from the start'}: {found}")
    return wrong


# -- named tuples ----------------------------------------------------------------------------------


def pair() -> type:
    class Pair(NamedTuple):
        x: int
        y: int

    return Pair


def rest_of(p: Any) -> Any:
    match p:
        case [first, *rest]:
            return first, rest
    return None


def both_of(p: Any) -> Any:
    match p:
        case [first, second]:
            return first, second
    return None


def unpacked(p: Any) -> Any:
    first, second = p
    return first, second


NAMED: dict[str, Callable[[Any], Any]] = {
    "index": lambda p: p[0], "slice": lambda p: p[:1], "length": len, "list": list, "display": lambda p: [*p], "truth": bool,
    "sum": lambda p: sum(p), "in": lambda p: 2 in p, "plus": lambda p: p + (1,), "equal": lambda p: p == (1, 2),
    "key": lambda p: {(1, 2): 1}.get(p), "made": lambda p: type(p)(3, 4)[0], "field": lambda p: p.x,
    "rest": rest_of, "both": both_of, "unpacked": unpacked,
}  # fmt: skip


@pytest.mark.parametrize("name", long_where(
    ["__getitem__", "__len__", "__iter__", "__bool__", "__eq__", "__contains__", "__add__"], ["__len__", "__add__"]))
def test_named_tuples(name: str) -> None:
    for asked, read in NAMED.items():
        assert not differences(read, pair, lambda cls: cls(1, 2), name), asked


# -- frozen dataclasses as keys --------------------------------------------------------------------


def frozen() -> type:
    @dataclasses.dataclass(frozen=True)
    class Frozen:
        f: int
        g: int = dataclasses.field(default=1, compare=False)
        h: dataclasses.InitVar[int] = 3

    return Frozen


@pytest.mark.parametrize("names", [lambda self: 1, 5, None], ids=["a function", "a number", "nothing"])
def test_fields_that_are_no_tuple(names: Any) -> None:
    def read(p: Any) -> Any:
        return p.x, p[1], p == (1, 2)

    cls: Any = pair()
    cls._fields = names
    with dynamo.config.patch(suppress_errors=False):
        assert dynamo.compile(read, backend="eager")(tuple.__new__(cls, (1, 2))) == (1, 2, True)


@pytest.mark.parametrize("name", ["__eq__", "__hash__"])
def test_frozen_dataclasses_as_keys(name: str) -> None:
    for read in (lambda a: {a: 1}.get(type(a)(1)), lambda a: type(a)(1, 2) in {a}):
        assert not differences(read, frozen, lambda cls: cls(1), name)
    compiled = dynamo.compile(lambda a: {a: 1}.get(type(a)(1, 5)), backend="eager", fullgraph=True)
    assert compiled(frozen()(1)) == 1


def test_methods_that_the_body_of_a_frozen_dataclass_has() -> None:
    @dataclasses.dataclass(frozen=True)
    class Unequal:
        f: int

        def __eq__(self, other: object) -> bool:
            return False

    @dataclasses.dataclass(frozen=True)
    class Hashed:
        f: int
        g: int = dataclasses.field(default=1, compare=False, hash=True)

    compiled = dynamo.compile(lambda a, b: {a: 1}.get(b), backend="eager")
    assert compiled(Unequal(1), Unequal(1)) is None
    assert compiled(Hashed(1, 2), Hashed(1, 3)) is None


# -- exceptions ------------------------------------------------------------------------------------


def error() -> type:
    class Wrong(ValueError):
        pass

    return Wrong


def kind_of(value: Any) -> Any:
    return type(value).__name__ if callable(value) else value


RAISED: dict[str, Callable[[Any], Any]] = {
    "text": lambda e: str(e("q")), "formatted": lambda e: f"{e('q')}", "shown": lambda e: repr(e("q")).partition(" object at")[0],
    "truth": lambda e: 1 if e("q") else 2, "arguments": lambda e: kind_of(e("q").args), "cause": lambda e: kind_of(e("q").__cause__), "missing": lambda e: e("q").missing,
}  # fmt: skip


@pytest.mark.parametrize("name", ["__str__", "__repr__", "__bool__", "__len__", "__getattribute__", "__getattr__", "args", "__cause__"])
def test_exceptions(name: str) -> None:
    for asked, read in RAISED.items():
        assert not differences(read, error, lambda cls: cls, name), asked


# -- instances, values, metaclasses ----------------------------------------------------------------


def plain() -> type:
    class Plain:
        def __init__(self) -> None:
            self.a = 1

    return Plain


def deleted(value: Any) -> Any:
    value.new = 1
    del value.new
    return sorted(object.__getattribute__(value, "__dict__"))


@pytest.mark.parametrize("name", ["__getattribute__", "__getattr__", "__setattr__", "__delattr__"])
def test_attributes(name: str) -> None:
    for read in (lambda v: v.a, lambda v: getattr(v, "missing", 3), deleted, lambda v: type(v)().a):
        assert not differences(read, plain, lambda cls: cls(), name)


def test_descriptors() -> None:
    def new(cls: type) -> Any:
        return type("Owner", (), {"d": cls()})()

    for name in ("__get__", "__getattribute__"):
        assert not differences(lambda v: isinstance(v.d, str), plain, new, name)


def number() -> type:
    return type("Number", (int,), {})


def word() -> type:
    return type("Word", (str,), {})


@pytest.mark.parametrize("make", [number, word])
@pytest.mark.parametrize("name", ["__str__", "__repr__", "__format__", "__int__", "__bytes__", "__eq__", "__add__", "__bool__"])
def test_values(make: Callable[[], type], name: str) -> None:
    reads = (str, repr, lambda v: f"{v}", int, bool, lambda v: v == 4, lambda v: v + v, lambda v: f"{v!r:>9}")
    for read in reads:
        assert not differences(lambda v, read=read: read(v), make, lambda cls: cls("4"), name)


def test_calls_of_classes() -> None:
    def make() -> type:
        return type("Meta", (type,), {})

    assert not differences(lambda c: isinstance(c(), str), make, lambda meta: meta("Made", (), {}), "__call__")


def test_instances_that_say_when_they_die() -> None:
    log: list[int] = []
    for base in (object, ValueError):
        cls = type("Noted", (base,), {})

        def read(cls: Any) -> int:
            log.clear()
            cls()
            return len(log)

        compiled = dynamo.compile(read, backend="eager")
        assert compiled(cls) == 0
        cls.__del__ = lambda self: log.append(1)  # type: ignore[attr-defined]
        assert compiled(cls) == 1


ASKED_OF_NONE: dict[str, list[Callable[[Any], Any]]] = {
    "__index__": [lambda v: [1, 2][v], lambda v: (1, 2)[v], operator.index, range, lambda v: [1][v:]],
    "__complex__": [complex], "__float__": [math.sqrt], "__bytes__": [bytes], "__neg__": [operator.neg],
    "__bool__": [bool, lambda v: 1 if v else 2], "__len__": [len, bool, operator.length_hint],
    "__enter__": [lambda v: entered(v)], "__exit__": [lambda v: entered(v)],
    "__iadd__": [lambda v: operator.iadd(v, 1)], "__format__": [format], "__missing__": [lambda v: v[0]],
    "__getattr__": [lambda v: v.other, lambda v: hasattr(v, "other")], "__trunc__": [math.trunc],
    "__get__": [lambda v: type("K", (), {"a": v})().a],
    "__set__": [lambda v: setattr(type("K", (), {"a": v})(), "a", 1)],
}


def entered(value: Any) -> Any:
    with value as given:
        return given


@pytest.mark.parametrize("name", ASKED_OF_NONE)
@pytest.mark.parametrize("base", [object, dict, int, tuple, type])
def test_special_methods_that_are_none_are_called(name: str, base: type) -> None:
    others = {"__enter__": lambda self: 1, "__exit__": lambda self, *error: None}
    cls = type("Without", (base,), {**others, name: None})
    for asks in ASKED_OF_NONE[name]:
        def answer(value: Any, asks: Any = asks) -> Any:
            try:
                return repr(asks(value))
            except Exception as error:
                return type(error).__name__, str(error)

        value = cls("Made", (), {}) if base is type else cls()
        assert dynamo.compile(answer, backend="eager")(value) == answer(value)
