"""Keys and numbers whose comparison is the program's Python code, which may let go of what the guards
look at: the guards then own their values."""

from __future__ import annotations

import builtins
import types
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import torch

import dynamo
from dynamo.guards.build import build_program
from dynamo.guards.kinds import GUARD_KINDS
from dynamo.guards.records import Guard
from dynamo.guards.sources import (
    AttrSource,
    DictSource,
    DictValueSource,
    ItemSource,
    LocalSource,
    ModuleSource,
    Source,
)

HELD = ItemSource(DictSource(LocalSource("holder")), "value")
PLACE = ItemSource(LocalSource("places"), 0)
SIZE = 1000


class Holder:
    value: Any


class Scene:
    """An object with the only reference to its value, and code that drops it."""

    def __init__(self) -> None:
        self.holder = Holder()
        self.holder.value = bytearray(SIZE)
        self.dropped: list[bytearray] = []

    def drop(self) -> None:
        self.holder.value = None
        self.dropped.append(bytearray(5))

    def key(self, name: Any) -> Any:
        scene = self

        class Key:
            def __hash__(self) -> int:
                return hash(name)

            def __eq__(self, other: object) -> bool:
                scene.drop()
                return False

        return Key()

    def hashed_key(self) -> Any:
        scene = self

        class Key:
            def __hash__(self) -> int:
                scene.drop()
                return 5

        return Key()

    def number(self) -> int:
        scene = self

        class Number(int):
            def __ge__(self, other: int) -> bool:
                scene.drop()
                return True

        return Number(3)

    def mapping(self) -> Any:
        scene = self

        class Python(Mapping[str, int]):
            def __getitem__(self, name: str) -> int:
                scene.drop()
                return 1

            def __len__(self) -> int:
                scene.drop()
                return 1

            def __iter__(self) -> Iterator[str]:
                return iter("a")

        return types.MappingProxyType(Python())

    def instance(self) -> Any:
        held = Holder()
        held.__dict__[self.key("a")] = 1
        return held

    def module(self) -> Any:
        module = types.ModuleType("changed")
        module.__dict__[self.key("a")] = 1
        return module


Case = tuple[Callable[[Scene], Any], Guard | Source]
CASES: dict[str, Case] = {
    "lacks": (lambda s: {s.key("a"): 1}, Guard("DICT_LACKS", PLACE, "a")),
    "has": (lambda s: {s.key("a"): 1, "a": 2}, Guard("DICT_HAS", PLACE, "a")),
    "tuple": (lambda s: {(s.key("a"),): 1}, Guard("DICT_LACKS", PLACE, ("a",))),
    "number": (lambda s: {s.key(7): 1}, Guard("DICT_LACKS", PLACE, 7)),
    "set": (lambda s: {s.key("a")}, Guard("DICT_LACKS", PLACE, "a")),
    "item": (lambda s: {s.key("a"): 1, "a": 2}, ItemSource(PLACE, "a")),
    "proxy": (
        lambda s: types.MappingProxyType({s.key("a"): 1, "a": 2}), Guard("DICT_HAS", PLACE, "a")
    ),
    "mapping": (lambda s: s.mapping(), Guard("DICT_HAS", PLACE, "a")),
    "mapping_item": (lambda s: s.mapping(), ItemSource(PLACE, "a")),
    "mapping_truth": (lambda s: s.mapping(), Guard("BOOL_TRUTH", PLACE, True)),
    "ordered": (lambda s: OrderedDict({s.hashed_key(): 1}), DictValueSource(PLACE, 0)),
    "range": (lambda s: s.number(), Guard("RANGE", PLACE, (0, None))),
    "attribute": (lambda s: s.instance(), Guard("LACKS_ATTR", PLACE, "a")),
    "module": (lambda s: s.module(), Guard("LACKS_ATTR", PLACE, "a")),
}


@pytest.mark.parametrize("name", CASES)
def test_values_outlive_the_code_of_keys(name: str) -> None:
    make, fact = CASES[name]
    collect: tuple[Source, ...] = (HELD,)
    guards = [
        Guard("TYPE", LocalSource("holder"), Holder),
        Guard("TYPE", HELD, bytearray),
        Guard("TYPE", LocalSource("places"), list),
    ]
    if isinstance(fact, Guard):
        guards.append(fact)
    else:
        collect += (fact,)
    program = build_program(guards, collect)
    for _ in range(2):
        scene = Scene()
        value = make(scene)
        scene.dropped.clear()
        if scene.holder.value is None:
            scene.holder.value = bytearray(SIZE)
        values, _, held = program.run(
            {"holder": scene.holder, "places": [value]}, {}, builtins.__dict__
        )
        assert held
        assert len(values[0]) == SIZE
        assert scene.dropped, "the case runs no code of the program"
        assert program.python_steps


class Compared:
    """Its comparison is seen, as is a call of it."""

    seen: list[str] = []

    def __eq__(self, other: object) -> bool:
        self.seen.append("compared")
        return True

    def __hash__(self) -> int:
        return 1

    def __call__(self) -> None:
        pass


REFERRING: dict[str, Callable[[Compared], Any]] = {
    "weak": lambda held: weakref.ref(held),
    "weak in a tuple": lambda held: (weakref.ref(held),),
    "weak in a set": lambda held: frozenset([weakref.ref(held)]),
    "alias": lambda held: list[held],  # type: ignore[valid-type]
    "method": lambda held: types.MethodType(held, "a"),
}


@pytest.mark.parametrize("name", REFERRING)
def test_what_keys_refer_to_is_not_compared(name: str) -> None:
    def program(places: dict[Any, int], x: torch.Tensor) -> torch.Tensor:
        return x * sum(1 for _ in places)

    dynamo.reset()
    compiled = dynamo.compile(program, backend="eager")
    keep = [Compared(), Compared()]
    for held in keep:
        places = {REFERRING[name](held): 1}
        Compared.seen.clear()
        assert compiled(places, torch.ones(1)).tolist() == [1.0]
        assert not Compared.seen


@pytest.mark.parametrize("name", REFERRING)
def test_keys_that_refer_to_the_same_are_equal(name: str) -> None:
    held = Compared()
    first, second = REFERRING[name](held), REFERRING[name](held)
    guard = Guard("CONST", PLACE, first)
    program = build_program([guard])
    other = REFERRING[name](Compared())
    for value, expected in ((first, True), (second, True), (other, False)):
        assert program.run({"places": [value]}, {}, builtins.__dict__)[2] == expected
        assert GUARD_KINDS["CONST"].holds(value, first) == expected


def test_names_and_plain_keys_need_no_python() -> None:
    class Plain:
        pass

    containers: list[Any] = [
        {"a": 1}, {"a": 1, 2: 3, (1, "b"): 4, Plain: 5, Plain(): 6, None: 7, 1.5: 8},
        {"a", 2, (1, 2)}, OrderedDict({"a": 1, 2: 3}), types.MappingProxyType({"a": 1, 2: 3}),
    ]
    for container in containers:
        program = build_program([Guard("DICT_HAS", PLACE, "a"), Guard("DICT_LACKS", PLACE, 3)])
        assert program.run({"places": [container]}, {}, builtins.__dict__)[2]
        assert not program.python_steps


def test_names_of_modules_are_looked_up_as_before() -> None:
    program = build_program([Guard("HAS_ATTR", ModuleSource("types"), "FunctionType")],
                            (AttrSource(ModuleSource("types"), "FunctionType"),))
    values, _, held = program.run({}, {}, builtins.__dict__)
    assert held and values == (types.FunctionType,)
    assert not program.python_steps
