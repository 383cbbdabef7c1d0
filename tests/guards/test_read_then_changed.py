"""What a compiled function has asked a value or its class may be answered otherwise at the next call:
by a value of another type, or by a class that has got or lost an attribute."""

from __future__ import annotations

import abc
import collections
import enum
import functools
import inspect
import operator
import sys
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest
import torch

import dynamo


@pytest.fixture(autouse=True)
def errors_of_the_compiler() -> Iterator[None]:
    with dynamo.config.patch(suppress_errors=False):
        yield


def caught(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, whose errors are results."""

    def catches(*args: Any) -> Any:
        try:
            return function(*args)
        except Exception as error:
            return error

    return catches


def told(found: Any) -> Any:
    """What two results have in common."""
    if isinstance(found, Exception):
        return type(found), str(found)
    return type(found), found if isinstance(found, tuple | str | int | dict | list) else None


# -- values of other types -------------------------------------------------------------------------

ASKED: dict[str, Callable[[Any], Any]] = {
    "in a dict": lambda value: value in {1: 2},
    "in a set": lambda value: value in {1, 2},
    "under a key": lambda value: {1: 2}.get(value),
    "its class": lambda value: value.__class__.__name__,
    "its dict": lambda value: len(vars(value)),
    "tuple": tuple,
    "called": lambda value: value(),
    "an attribute": lambda value: value.missing,
    "a class to check": lambda value: isinstance(1, value),
    "a base to check": lambda value: issubclass(int, value),
    "a getter": lambda value: hasattr(value, "__get__"),
    "contents": lambda value: value.cell_contents,
}
VALUES: dict[str, Callable[[], Any]] = {
    "int": lambda: 1, "list": lambda: [1], "dict": dict, "set": set, "tuple": lambda: (1, 2),
    "deque": collections.deque, "ordered": collections.OrderedDict, "iterator": lambda: iter([1]),
    "union": lambda: int | None, "class": lambda: int, "function": lambda: told, "tensor": lambda: torch.ones(2),
    "module": lambda: torch.nn.ReLU(), "cell": lambda: types.CellType(1), "package": lambda: torch,
    "generator": lambda: (x for x in [1]), "object": object, "counter": collections.Counter,
    "texts": lambda: numpy.array("a"), "array": lambda: numpy.ones(2),
}


ASKED |= {
    "a class below a number": lambda value: issubclass(value, 1),  # type: ignore[arg-type]
    "a list in it": lambda value: [1] in value,
    "a list as its key": lambda value: value[[1]],
    "stored under a list": lambda value: operator.setitem(value, [1], 1),
    "deleted by a list": lambda value: operator.delitem(value, [1]),
    "enumerated, unused": lambda value: type(enumerate(value)),
    "zipped, unused": lambda value: type(zip([1], value)),
    "mapped, unused": lambda value: type(map(str, value)),
    "filtered, unused": lambda value: type(filter(None, value)),
    "given an attribute": lambda value: setattr(value, "given", 1),
    "beside a tensor": lambda value: bool((torch.ones(()) == value).any()),
}


@pytest.mark.parametrize("asked", ASKED)
def test_values_of_other_types(asked: str) -> None:
    function = caught(ASKED[asked])
    for first in VALUES.values():
        dynamo.reset()
        compiled = dynamo.compile(function, backend="eager")
        compiled(first())
        with dynamo.set_stance("eager_on_recompile"):
            for name, make in VALUES.items():
                assert told(compiled(make())) == told(function(make())), name


# -- classes that change ---------------------------------------------------------------------------


def make_classes() -> Any:
    """New classes and an instance."""

    class Meta(type):
        pass

    class Base:
        value = "value"

        def method(self) -> str:
            return "method"

        @property
        def computed(self) -> str:
            return "computed"

        @staticmethod
        def static() -> str:
            return "static"

        def __repr__(self) -> str:
            return "shown"

    class Derived(Base, metaclass=Meta):
        pass

    return types.SimpleNamespace(
        Meta=Meta, Base=Base, Derived=Derived, instance=Derived(), twin=Derived())


def unpack(value: Any) -> Any:
    return (lambda *args: args)(*value)


def keywords(value: Any) -> Any:
    return (lambda **given: given)(**value)


def entered(value: Any) -> Any:
    with value:
        return "entered"


Change = Callable[[Any], None]


def gives(where: str, name: str, value: Any) -> Change:
    return lambda made: setattr(getattr(made, where), name, value)


def loses(where: str, name: str) -> Change:
    return lambda made: delattr(getattr(made, where), name)


CHANGES: dict[str, tuple[Callable[[Any], Any], Change]] = {
    "passed on": (lambda made: made.instance.value, loses("Base", "value")),
    "passed on by the class": (lambda made: made.Derived.value, loses("Base", "value")),
    "method not called": (lambda made: callable(made.instance.method), loses("Base", "method")),
    "property hidden": (lambda made: made.instance.computed, gives("Derived", "computed", 7)),
    "method made static": (
        lambda made: made.instance.static(),
        gives("Base", "static", classmethod(lambda cls: cls.__name__))),
    "keys": (lambda made: dict(made.instance), gives("Base", "__getattr__", lambda s, n: n)),
    "keys, unpacked": (
        lambda made: {**made.instance}, gives("Base", "__getattr__", lambda s, n: n)),
    "keys, given": (
        lambda made: keywords(made.instance), gives("Base", "__getattr__", lambda s, n: n)),
    "items, given": (
        lambda made: unpack(made.instance), gives("Derived", "__iter__", lambda s: iter([3]))),
    "items, by index": (
        lambda made: unpack(made.instance), gives("Base", "__getitem__", lambda s, i: [4, 5][i])),
    "dict": (
        lambda made: vars(made.instance), gives("Derived", "__getattribute__", lambda s, n: n)),
    "dict, as attribute": (
        lambda made: made.instance.__dict__, gives("Base", "__getattribute__", lambda s, n: n)),
    "not equal": (lambda made: made.instance != 1, gives("Base", "__eq__", lambda s, x: True)),
    "reversed": (
        lambda made: list(reversed(made.instance)),
        gives("Derived", "__reversed__", lambda s: iter([8]))),
    "reversed, by index": (
        lambda made: list(reversed(made.instance)),
        gives("Derived", "__getitem__", lambda s, i: [4, 5][i])),
    "with": (lambda made: entered(made.instance), gives("Derived", "__enter__", lambda s: 1)),
    "name of the class": (
        lambda made: made.Derived.__name__, gives("Meta", "__getattribute__", lambda c, n: n)),
    "missing in the class": (
        lambda made: made.Derived.missing, gives("Meta", "__getattr__", lambda c, n: n)),
    "truth of the class": (
        lambda made: bool(made.Derived), gives("Meta", "__bool__", lambda c: False)),
    "truth by length": (lambda made: bool(made.Derived), gives("Meta", "__len__", lambda c: 0)),
    "class equals": (lambda made: made.Derived == 1, gives("Meta", "__eq__", lambda c, x: True)),
    "union": (lambda made: str(made.Derived | int), gives("Meta", "__or__", lambda c, x: "or")),
    "text of the class": (
        lambda made: str(made.Derived)[:5], gives("Meta", "__repr__", lambda c: "meta!")),
    "item of the class": (
        lambda made: made.Derived[int],
        gives("Base", "__class_getitem__", classmethod(lambda c, x: "item"))),
    "index": (lambda made: [5, 6][made.instance], gives("Base", "__index__", lambda s: 1)),
    "repeated": (lambda made: [5] * made.instance, gives("Base", "__index__", lambda s: 2)),
    "read-only": (
        lambda made: setattr(made.instance, "computed", 1),
        gives("Base", "computed", property(lambda s: 1, lambda s, x: None))),
    "kept": (
        lambda made: delattr(made.instance, "computed"),
        gives("Base", "computed", property(lambda s: 1, None, lambda s: None))),
}


@pytest.mark.parametrize("case", CHANGES)
def test_classes_that_change(case: str) -> None:
    asks, change = caught(CHANGES[case][0]), CHANGES[case][1]
    expected, found = make_classes(), make_classes()
    compiled = dynamo.compile(asks, backend="eager")
    assert told(compiled(found)) == told(asks(expected))
    change(found)
    change(expected)
    assert told(compiled(found)) == told(asks(expected))


class Number(int):
    pass


def test_a_subclass_of_int_gets_an_operator() -> None:
    def adds(number: Number) -> Any:
        return number + 1, number == 2, -number

    compiled = dynamo.compile(adds, backend="eager")
    assert compiled(Number(2)) == (3, True, -2)
    Number.__add__ = lambda self, other: "added"  # type: ignore[assignment,method-assign]
    Number.__neg__ = lambda self: "negated"  # type: ignore[assignment,method-assign]
    try:
        assert compiled(Number(2)) == ("added", True, "negated")
    finally:
        del Number.__add__, Number.__neg__


# -- answers that were wrong at once ---------------------------------------------------------------


class Pair(tuple):
    pass


Named = collections.namedtuple("Named", "first second")


class Odd(int):
    __eq__ = str.__eq__  # type: ignore[assignment]
    __hash__ = int.__hash__
    __lt__ = str.__lt__  # type: ignore[assignment]


class Shown(torch.Tensor):
    pass


class RaisingMeta(type):
    def __hash__(cls) -> int:
        raise ValueError("hash")


class Raising(metaclass=RaisingMeta):
    value = 1


class SameOnly(list[Any]):
    """A list that equals itself alone."""

    __eq__ = object.__eq__  # type: ignore[assignment]
    __ne__ = object.__ne__  # type: ignore[assignment]
    __hash__ = object.__hash__  # type: ignore[assignment]


class SameDict(dict[Any, Any]):
    __eq__ = object.__eq__  # type: ignore[assignment]


class Lower:
    def __lt__(self, other: object) -> str:
        return "lower"


class Colour(enum.Enum):
    RED = 1


class Properties:
    bare = property(None)
    first = property(lambda self: 1)
    second = first


Properties.late = property(lambda self: 1)  # type: ignore[attr-defined]


SCALAR = numpy.float32(1)


def sets(name: str) -> Callable[[Any], Any]:
    return lambda value: setattr(value, name, 1)


@functools.lru_cache
def cached() -> None:
    """Does nothing."""


class Abstract(abc.ABC):  # noqa: B024
    pass


AT_ONCE: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "slice of a subclass": (lambda value: value[:], Pair((1,))),
    "operator of a subclass": (lambda value: -value, Pair((1,))),
    "comparison from elsewhere": (lambda value: value == 1, Odd(1)),
    "itself, from elsewhere": (lambda value: value == value, Odd(1)),
    "order from elsewhere": (lambda value: value < 1, Odd(1)),
    "index of an odd number": (lambda value: [5, 6][value], Odd(1)),
    "tensor subclass with itself": (
        lambda value: tuple((value == value).tolist()), torch.ones(2).as_subclass(Shown)),
    "class of a cached function": (lambda value: value.__class__.__name__, cached),
    "slot of a value": (lambda value: type(value).__name__, [].__iter__),
    "method of a value": (lambda value: type(value).__name__, [].append),
    "set without the attribute": (lambda value: value.missing, {1}),
    "version": (lambda value: value == 1, __import__("sys").version_info),
    "in super": (lambda value: 1 in super(dict, value), {}),
    "in a class": (lambda value: 1 in value, Abstract),
    "reversed set": (lambda value: list(reversed(value)), weakref.WeakSet()),
    "proxy": (lambda value: next(iter(value), 0), weakref.proxy(Pair)),
    "length of a lock": (lambda value: len(value), __import__("threading").Lock()),
    "length of a namespace": (lambda value: len(value), types.SimpleNamespace()),
    "index of a size": (lambda value: value["a"], torch.Size([1])),
    "number for a list": (lambda value: "%d" % value, [1]),  # noqa: UP031
    "format of a deque": (lambda value: f"{value:>3}", collections.deque()),
    "id compared": (lambda value: id(value) > 0, 1),
    "id negated": (lambda value: -id(value) < 0, 1),
    "id as a bound": (lambda value: [1, 2][id(value):], 1),
    "ids in order": (lambda value: sorted([id(value), 1])[0], []),
    "iterator of a union": (lambda value: iter(value), int | None),
    "class that can't be hashed": (lambda value: value().value, Raising),
    "instance of such a class": (lambda value: (value.value, str(value)[:1]), Raising()),
    "scalar beside a tuple": (lambda value: (value == SCALAR).tolist(), (1, 2)),
    "scalar beside a tensor": (lambda value: (value == SCALAR).tolist(), torch.ones(2)),
    "scalar beside a list": (lambda value: (value + SCALAR).tolist(), [1]),
    "scalar beside a named tuple": (lambda value: (SCALAR == value).tolist(), Named(1, 2)),
    "scalar beside a subclass of int": (lambda value: (SCALAR + value).dtype.name, Number(1)),
    "list beside a subclass of int": (lambda value: [1] + value, Number(1)),
    "order of a subclass of tuple": (lambda value: 1 < value, Pair((1,))),
    "named tuple beside a list": (lambda value: value + [1], Named(1, 2)),
    "size beside a list": (lambda value: value + [1], torch.Size([1])),
    "class at a tensor": (lambda value: int[value], torch.ones(2)),
    "no getter": (lambda value: value.bare, Properties()),
    "no setter": (sets("first"), Properties()),
    "no setter, named later": (sets("second"), Properties()),
    "no setter, without a name": (sets("late"), Properties()),
    "keys of a proxy": (lambda value: dict.keys(value), types.MappingProxyType({})),
    "item of a proxy": (lambda value: dict.get(value, 1), types.MappingProxyType({1: 2})),
    "method of a list, on a deque": (lambda value: list.append(value, 1), collections.deque()),
    "length of a list, on a tuple": (lambda value: list.__len__(value), (1, 2)),
    "length of a list, on a dict": (lambda value: list.__len__(value), {1: 2}),
    "call of what is no class": (lambda value: type.__call__(value), 1),
    "list that compares as object": (lambda value: value == type(value)(value), SameOnly([1])),
    "unequal lists of this kind": (lambda value: value != type(value)(value), SameOnly([1])),
    "such a list beside a list": (lambda value: (value == [1], [1] == value), SameOnly([1])),
    "found by identity": (lambda value: [type(value)(value), value].index(value), SameOnly([1])),
    "dict that compares as object": (lambda value: value == type(value)(value), SameDict()),
    "order in a tuple": (lambda value: (value, 1) < (2, 1), Lower()),
    "order in a list": (lambda value: [1, value] < [1, 1], Lower()),
    "order in a deque": (
        lambda value: collections.deque([value]) < collections.deque([1]), Lower()),
    "order of scalars in a tuple": (lambda value: str(type((value,) < (2,))), SCALAR),
    "method of None": (lambda value: value.__init__, None),
    "built-in method of None": (lambda value: value.__reduce_ex__, None),
    "name of an enumeration": (lambda value: value.name, Colour),
    "key without a hash": (lambda value: {value: 1}, torch.finfo(torch.float32)),
    "tensor and what can't be made": (
        lambda value: torch.ones(1) + value, __import__("sys").version_info),
    "repeated too often": (lambda value: [1] * value, 2**70),
    "method of what can't be called": (lambda value: types.MethodType(value, 1), 2),
    "method of a built-in method": (lambda value: types.MethodType(value, 1), str.join),
    "reduced": (lambda value: functools.reduce(operator.add, value), 1),
    "class behind a proxy": (lambda value: isinstance(value, type), weakref.proxy(Pair)),
    "tensor beside a subclass": (
        lambda value: tuple((torch.ones(2) == value).tolist()), torch.ones(2).as_subclass(Shown)),
    "asked for what is no name": (lambda value: hasattr(value, 1), {}),  # type: ignore[arg-type]
    "asked of a function": (lambda value: hasattr(value, (1,)), told),  # type: ignore[arg-type]
    "set by what is no name": (
        lambda value: setattr(value, 1, 1), Properties()),  # type: ignore[call-overload]
    "deleted by what is no name": (
        lambda value: delattr(value, b"a"), Properties()),  # type: ignore[arg-type]
    "set plainly": (
        lambda value: object.__setattr__(value, 1, 1), Properties()),  # type: ignore[arg-type]
    "set plainly in a class": (lambda value: object.__setattr__(value, "a", 1), Properties),
    "read plainly": (
        lambda value: object.__getattribute__(value, 1), Properties()),  # type: ignore[arg-type]
    "deleted plainly": (
        lambda value: object.__delattr__(value, 1), Properties()),  # type: ignore[arg-type]
    "joined": (lambda value: ",".join(value), Properties()),
    "range of a deque": (lambda value: range(value), collections.deque()),
    "object of a list's class": (lambda value: object.__new__(value), SameOnly),
    "list of a dict's class": (lambda value: list.__new__(value), SameDict),  # type: ignore[type-var]
    "error of no error's class": (lambda value: ValueError.__new__(value), Properties),
    "tuple of no class": (lambda value: tuple.__new__(value), 1),  # type: ignore[type-var]
    "no deleter": (lambda value: delattr(value, "first"), Properties()),
}


@pytest.mark.parametrize("case", AT_ONCE)
def test_at_once(case: str) -> None:
    function, value = caught(AT_ONCE[case][0]), AT_ONCE[case][1]
    compiled = dynamo.compile(function, backend="eager")
    assert told(compiled(value)) == told(function(value))


def pulled(log: list[Any]) -> Iterator[int]:
    for item in (1, 3, 2):
        log.append(item)
        yield item


def noted(log: list[Any]) -> Callable[..., Any]:
    return lambda *items: (log.append(items), sum(items))[1]


IN_TURN: dict[str, Callable[[list[Any]], Any]] = {
    "max": lambda log: max(pulled(log), key=noted(log)),
    "min": lambda log: min(pulled(log), key=noted(log)),
    "reduce": lambda log: functools.reduce(noted(log), pulled(log)),
    "reduce from a start": lambda log: functools.reduce(noted(log), pulled(log), 5),
}


@pytest.mark.parametrize("case", IN_TURN)
def test_items_are_taken_in_turn(case: str) -> None:
    expected: list[Any] = []
    found: list[Any] = []
    wanted = IN_TURN[case](expected)
    assert dynamo.compile(IN_TURN[case], backend="eager", fullgraph=True)(found) == wanted
    assert found == expected


# -- functions and modules that change -------------------------------------------------------------


def make_functions() -> Any:
    """A new function, and a module that holds it."""
    def function(first: Any = 1, *, second: Any = 2) -> Any:
        return first, second

    module = types.ModuleType("module")
    module.function = function  # type: ignore[attr-defined]
    return module


def changes(part: str, key: Any, value: Any) -> Change:
    return lambda made: getattr(made.function, part).__setitem__(key, value)


FUNCTIONS: dict[str, tuple[Callable[[Any], Any], Change]] = {
    "default passed on": (lambda made: made.function(), gives("function", "__defaults__", None)),
    "keyword passed on": (lambda made: made.function(), gives("function", "__kwdefaults__", None)),
    "signature, defaults": (
        lambda made: str(inspect.signature(made.function)), changes("__kwdefaults__", "second", 6)),
    "signature, annotations": (
        lambda made: str(inspect.signature(made.function)),
        changes("__annotations__", "first", int)),
    "signature, a new annotation": (
        lambda made: str(inspect.signature(made.function)),
        changes("__annotations__", "second", int)),
    "asked for": (
        lambda made: hasattr(made, "new"), lambda made: setattr(made, "new", 1)),
    "missing": (lambda made: made.new, lambda made: setattr(made, "new", 1)),
}


@pytest.mark.parametrize("case", FUNCTIONS)
def test_functions_and_modules_that_change(case: str) -> None:
    asks, change = caught(FUNCTIONS[case][0]), FUNCTIONS[case][1]
    expected, found = make_functions(), make_functions()
    compiled = dynamo.compile(asks, backend="eager")
    assert told(compiled(found)) == told(asks(expected))
    change(found)
    change(expected)
    assert told(compiled(found)) == told(asks(expected))


@pytest.mark.parametrize("statement", ["from outer import inner", "import outer.inner as inner"])
def test_a_module_in_sys_modules_only(
    statement: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    outer, inner = types.ModuleType("outer"), types.ModuleType("outer.inner")
    outer.inner = inner  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "outer", outer)
    monkeypatch.setitem(sys.modules, "outer.inner", inner)
    scope: dict[str, Any] = {}
    exec(f"def imports():\n    {statement}\n    return inner.__name__", scope)
    function = caught(scope["imports"])
    compiled = dynamo.compile(function, backend="eager")
    assert compiled() == "outer.inner"
    monkeypatch.setitem(sys.modules, "outer", types.ModuleType("outer"))
    assert told(compiled()) == told(function())
    monkeypatch.delitem(sys.modules, "outer")
    assert told(compiled()) == told(function())
