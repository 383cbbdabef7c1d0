"""The short cut of the guard program: what it skips is noticed all the same when it changes."""

from __future__ import annotations

import builtins
import gc
import sys
import types
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynamo
from dynamo import hook
from dynamo.guards.build import build_program
from dynamo.guards.explain import failures
from dynamo.guards.kinds import TensorFacts
from dynamo.guards.records import Guard
from dynamo.guards.sources import (
    AttrSource,
    CellContentsSource,
    CellSource,
    DictSource,
    DictValueSource,
    GlobalSource,
    ItemSource,
    LocalSource,
    ModuleSource,
    ObjectSource,
    Scope,
    Source,
    TypeSource,
)

M = LocalSource("m")
DICT = DictSource(M)


def item(name: str) -> Source:
    return ItemSource(DICT, name)


class Program:
    """A program, its twin, and a frame to run them on."""

    def __init__(self, *guards: Guard, collect: tuple[Source, ...] = (), **values: Any) -> None:
        self.guards, self.values = guards, values
        self.globals: dict[str, Any] = {"g": len}
        self.cells: dict[str, Any] = {}
        self.program = build_program(guards, collect)

    def holds(self) -> bool:
        scope = Scope(self.values, self.globals, builtins.__dict__, self.cells)
        expected = not failures(self.guards, scope)
        for _ in range(2):  # by the short cut or a walk, then by the other
            collected, _, held = self.program.run(
                self.values, self.globals, builtins.__dict__, self.cells)
            assert held == expected, failures(self.guards, scope)
        return bool(held)

    def settle(self) -> None:
        """Runs until the short cut stands."""
        for _ in range(3):
            assert self.holds()
        assert self.program.plan is not None


class Box:
    k = 3

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


class OtherBox(Box):
    pass


def helper() -> int:
    return 1


def changed_helper() -> int:
    return 2


class Slotted:
    __slots__ = ("a",)

    def __init__(self, a: Any) -> None:
        self.a = a


def fill(value: Any) -> Any:
    value.a = helper
    return helper


def closed_over(function: Any) -> Any:
    return lambda: function()


def tensor_guard(source: Source, value: torch.Tensor) -> Guard:
    return Guard("TENSOR", source, TensorFacts.of(value))


def weight() -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.randn(3, 2))


def set_class(box: Any) -> None:
    box.__class__ = OtherBox


# name: the object, its guards, what changes it.
MUTATIONS: dict[str, tuple[Callable[[], Any], Callable[[Any], list[Guard]], Callable[[Any], Any]]] = {
    "class of an instance": (
        Box, lambda b: [Guard("TYPE", M, Box), Guard("DICT_LACKS", DICT, "q")], set_class),
    "value in an instance dict": (
        lambda: Box(n=1), lambda b: [Guard("CONST", item("n"), 1)], lambda b: setattr(b, "n", 2)),
    "equal value of another type": (
        lambda: Box(n=1), lambda b: [Guard("CONST", item("n"), 1)],
        lambda b: setattr(b, "n", True)),
    "a whole new instance dict": (
        lambda: Box(n=1), lambda b: [Guard("CONST", item("n"), 1)],
        lambda b: setattr(b, "__dict__", {"n": 2})),
    "a key more": (
        Box, lambda b: [Guard("DICT_LACKS", DICT, "forward")],
        lambda b: setattr(b, "forward", 1)),
    "order of keys": (
        lambda: Box(d={1: 1, 2: 2}),
        lambda b: [Guard("TYPE", item("d"), dict), Guard("DICT_KEYS", item("d"), (1, 2))],
        lambda b: b.d.update({1: b.d.pop(1)})),
    "order of an OrderedDict": (
        lambda: Box(d=OrderedDict([(1, 1), (2, 2)])),
        lambda b: [Guard("TYPE", item("d"), OrderedDict), Guard("DICT_KEYS", item("d"), (1, 2))],
        lambda b: b.d.move_to_end(1)),
    "n-th value of an OrderedDict": (
        lambda: Box(d=OrderedDict([(1, 5), (2, 6)])),
        lambda b: [Guard("TYPE", item("d"), OrderedDict), Guard("DICT_KEYS", item("d"), (1, 2)),
                   Guard("CONST", DictValueSource(item("d"), 0), 5)],
        lambda b: b.d.move_to_end(1)),
    "an empty dict fills": (
        lambda: Box(d=OrderedDict()), lambda b: [Guard("DICT_KEYS", item("d"), ())],
        lambda b: b.d.update(a=1)),
    "length of a list": (
        lambda: Box(d=[1]), lambda b: [Guard("LENGTH", item("d"), 1)], lambda b: b.d.append(1)),
    "item of a list": (
        lambda: Box(d=[1, 2]), lambda b: [Guard("CONST", ItemSource(item("d"), 1), 2)],
        lambda b: b.d.__setitem__(1, 3)),
    "last item of a list": (
        lambda: Box(d=[1, 2]), lambda b: [Guard("CONST", ItemSource(item("d"), -1), 2)],
        lambda b: b.d.append(3)),
    "a list sorted in place": (
        lambda: Box(d=[2, 1]), lambda b: [Guard("CONST", ItemSource(item("d"), 0), 2)],
        lambda b: b.d.sort()),
    "contents of a constant list": (
        lambda: Box(d=[1, 2]), lambda b: [Guard("CONST", item("d"), [1, 2])],
        lambda b: b.d.__setitem__(0, 9)),
    "code of a function": (
        lambda: Box(f=types.FunctionType(helper.__code__, {})),
        lambda b: [Guard("CODE", item("f"), helper.__code__)],
        lambda b: setattr(b.f, "__code__", changed_helper.__code__)),
    "attribute of a class": (
        lambda: Box(c=type("C", (), {"k": 1})),
        lambda b: [Guard("CONST", ItemSource(DictSource(item("c")), "k"), 1)],
        lambda b: setattr(b.c, "k", 2)),
    "attribute more on a class": (
        lambda: Box(c=type("C", (), {})),
        lambda b: [Guard("DICT_LACKS", DictSource(item("c")), "k")],
        lambda b: setattr(b.c, "k", 2)),
    "type of a value": (
        lambda: Box(v=Box()), lambda b: [Guard("ID", TypeSource(item("v")), Box)],
        lambda b: set_class(b.v)),
    "a set": (
        lambda: Box(v={1}), lambda b: [Guard("SET_ITEMS", item("v"), frozenset({1}))],
        lambda b: b.v.add(2)),
    "a slot": (
        lambda: Box(v=types.MethodType(helper, 1)),
        lambda b: [Guard("ID", AttrSource(item("v"), "__self__"), 1)],
        lambda b: setattr(b, "v", types.MethodType(helper, 2))),
    "a slot of a class with slots": (
        lambda: Box(v=Slotted(1)), lambda b: [Guard("CONST", AttrSource(item("v"), "a"), 1)],
        lambda b: setattr(b.v, "a", 2)),
    "a slot that is deleted": (
        lambda: Box(v=Slotted(1)), lambda b: [Guard("CONST", AttrSource(item("v"), "a"), 1)],
        lambda b: delattr(b.v, "a")),
    "a slot that the class hides": (
        lambda: Box(v=type("Local", (), {"__slots__": ("a",)})()),
        lambda b: [Guard("ID", AttrSource(item("v"), "a"), fill(b.v))],
        lambda b: setattr(type(b.v), "a", 2)),
    "a class that reads slots in its own way": (
        lambda: Box(v=type("Local", (), {"__slots__": ("a",)})()),
        lambda b: [Guard("ID", AttrSource(item("v"), "a"), fill(b.v))],
        lambda b: setattr(type(b.v), "__getattribute__", lambda self, name: 3)),
    "getter of a property": (
        lambda: Box(v=property(helper)), lambda b: [Guard("ID", AttrSource(item("v"), "fget"), helper)],
        lambda b: b.v.__init__(changed_helper)),
    "defaults of a function": (
        lambda: Box(f=types.FunctionType(helper.__code__, {}, None, (1,))),
        lambda b: [Guard("CONST", AttrSource(item("f"), "__defaults__"), (1,))],
        lambda b: setattr(b.f, "__defaults__", (2,))),
    "defaults that come to be": (
        lambda: Box(f=types.FunctionType(helper.__code__, {})),
        lambda b: [Guard("CONST", AttrSource(item("f"), "__defaults__"), None)],
        lambda b: setattr(b.f, "__defaults__", (2,))),
    "keyword defaults of a function": (
        lambda: Box(f=types.FunctionType(helper.__code__, {})),
        lambda b: [Guard("CONST", AttrSource(item("f"), "__kwdefaults__"), None)],
        lambda b: setattr(b.f, "__kwdefaults__", {"a": 2})),
    "what a closure holds": (
        lambda: Box(f=closed_over(helper)),
        lambda b: [Guard("CODE", CellContentsSource(
            ItemSource(AttrSource(item("f"), "__closure__"), 0)), helper.__code__)],
        lambda b: setattr(b.f.__closure__[0], "cell_contents", changed_helper)),
    "requires_grad_": (
        lambda: Box(p=weight()), lambda b: [tensor_guard(item("p"), b.p)],
        lambda b: b.p.requires_grad_(False)),
    "requires_grad_ of a plain tensor": (
        lambda: Box(p=torch.ones(2)), lambda b: [tensor_guard(item("p"), b.p)],
        lambda b: b.p.requires_grad_()),
    "data of another size": (
        lambda: Box(p=weight()), lambda b: [tensor_guard(item("p"), b.p)],
        lambda b: setattr(b.p, "data", torch.ones(3, 4))),
    "data of another dtype": (
        lambda: Box(p=weight()), lambda b: [tensor_guard(item("p"), b.p)],
        lambda b: setattr(b.p, "data", torch.ones(3, 2, dtype=torch.float64))),
    "data with other strides": (
        lambda: Box(p=weight()), lambda b: [tensor_guard(item("p"), b.p)],
        lambda b: setattr(b.p, "data", torch.ones(2, 3).t())),
    "data on another device": (
        lambda: Box(p=weight()), lambda b: [tensor_guard(item("p"), b.p)],
        lambda b: setattr(b, "p", torch.nn.Parameter(b.p.to("meta")))),
    "resize_": (
        lambda: Box(p=torch.ones(3, 2)), lambda b: [tensor_guard(item("p"), b.p)],
        lambda b: b.p.resize_(2, 2)),
    "a dimension more": (
        lambda: Box(p=torch.ones(3, 2)), lambda b: [tensor_guard(item("p"), b.p)],
        lambda b: b.p.unsqueeze_(0)),
    "swapped tensors": (
        lambda: Box(p=torch.ones(3, 2)), lambda b: [tensor_guard(item("p"), b.p)],
        lambda b: torch.utils.swap_tensors(b.p, torch.ones(2, 2))),
    "a result of autograd in place": (
        lambda: Box(p=torch.ones(3)), lambda b: [tensor_guard(item("p"), b.p)],
        lambda b: b.p.mul_(torch.ones(3, requires_grad=True))),
    "many dimensions": (
        lambda: Box(p=torch.ones(1, 2, 1, 2, 1, 2, 1)), lambda b: [tensor_guard(item("p"), b.p)],
        lambda b: setattr(b.p, "data", torch.ones(2, 1, 2, 1, 1, 2, 1))),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_change_is_noticed(name: str) -> None:
    make, guards_of, change = MUTATIONS[name]
    value = make()
    program = Program(*guards_of(value), m=value)
    program.settle()
    change(value)
    assert not program.holds()


class Base(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(2, 2) for _ in range(5)])
        self.settings = Box(scale=2)

    def scale(self) -> int:
        return self.settings.scale


class Derived(Base):
    """Its bases are guarded, its name, and those of an object that it holds."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x) * super().scale()
        return x * len(type(self).__name__) + isinstance(self.settings, Box)


@pytest.mark.parametrize("make", [
    lambda: torch.nn.Sequential(*[torch.nn.Linear(2, 2) for _ in range(5)]), Derived,
])  # fmt: skip
def test_the_short_cut_covers_the_guards_of_modules(make: Callable[[], torch.nn.Module]) -> None:
    compiled = dynamo.compile(make(), backend="eager")
    for _ in range(3):
        compiled(torch.ones(1, 2))
    region = type(compiled)._policy.region
    entry, = hook.entries(torch.nn.Module._call_impl.__code__, region)
    assert not entry.program.runs_python
    names = [entry.program.dump()[number][0] for number in entry.program.plan[2]]
    assert set(names) <= {"GLOBAL_STATE", "LOCAL", "IS_TYPE", "EMPTY", "LENGTH", "ITEM", "TENSOR"}
    assert names.count("TENSOR") == 1, "only the argument is looked at"


def set_n(box: Any, value: Any) -> None:
    box.n = value  # one place in the code, which the interpreter makes fast


class ManyBox(Box):
    """Instances with more attributes than the interpreter keeps without a dict of their own."""

    def __init__(self, **values: Any) -> None:
        super().__init__(**{f"a{i}": i for i in range(50)}, **values)


class LateBox:
    """Its dict is made after its attributes."""

    def __init__(self, n: int) -> None:
        self.m, self.n = 0, n


def delete_and_set(box: Any, value: Any) -> None:
    del box.n
    box.n = value


STORES: dict[str, Callable[[Any, Any], Any]] = {
    "one place": set_n,
    "setattr": lambda b, v: setattr(b, "n", v),
    "object.__setattr__": lambda b, v: object.__setattr__(b, "n", v),
    "item of the dict": lambda b, v: vars(b).__setitem__("n", v),
    "update": lambda b, v: vars(b).update(n=v),
    "another dict": lambda b, v: setattr(b, "__dict__", {"n": v}),
    "again": delete_and_set,
    "clear": lambda b, v: (vars(b).clear(), setattr(b, "n", v)),
    "|=": lambda b, v: vars(b).__ior__({"n": v}),
    "pop": lambda b, v: (vars(b).pop("n"), vars(b).setdefault("n", v)),
    "popitem": lambda b, v: (vars(b).popitem(), setattr(b, "n", v)),
}


@pytest.mark.parametrize("cls", [Box, ManyBox, LateBox, torch.nn.Module])
@pytest.mark.parametrize("store", STORES)
def test_each_store_into_an_instance_is_noticed(store: str, cls: type) -> None:
    def make() -> Any:
        if cls is not torch.nn.Module:
            return cls(n=1)
        module = torch.nn.Module()
        module.n = 1  # type: ignore[assignment]
        return module

    boxes = [make() for _ in range(3)]
    program = Program(Guard("TYPE", M, cls), Guard("CONST", item("n"), 1), m=boxes[0])
    for count in range(40):
        STORES[store](boxes[0], 1)
        STORES[store](boxes[1], 2)
        for box, holds in ((boxes[0], True), (boxes[1], False), (boxes[2], True)):
            program.values["m"] = box
            assert program.holds() is holds
        program.values["m"] = boxes[0]
        if count % 4 == 0:
            program.program = build_program(program.guards, ())
            program.settle()
        STORES[store](boxes[0], 3)
        assert not program.holds()


def test_the_short_cut_leaves_instances_as_they_are() -> None:
    box = LateBox(1)
    box.z = 3  # type: ignore[attr-defined]
    names, contents = list(vars(box)), vars(box)
    program = Program(Guard("CONST", item("n"), 1), m=box)
    iterator = iter(contents)
    assert next(iterator) == "m"
    program.settle()
    assert list(iterator) == ["n", "z"]
    assert vars(box) is contents and list(vars(box)) == names and dir(box) == dir(LateBox(1)) + ["z"]
    box.n = 5
    assert contents["n"] == 5 and box.__dict__ == {"m": 0, "n": 5, "z": 3}


def test_dicts_that_several_programs_look_at() -> None:
    box = Box(n=1, k=1)
    both = [Program(Guard("CONST", item(name), 1), m=box) for name in "nk"]
    for _ in range(5):
        for program in both:
            program.settle()
        box.n = 2
        assert [program.holds() for program in both] == [False, True]
        box.n = 1
    both[0] = Program(Guard("CONST", item("n"), 1), m=box)  # the old program dies, the other looks on
    for program in both:
        program.settle()
    box.k = 2
    assert [program.holds() for program in both] == [True, False]


def test_many_programs_and_instances_come_and_go() -> None:
    for count in range(300):
        box = Box(n=count)
        program = Program(Guard("CONST", item("n"), count), m=box)
        program.settle()
        box.n = -1
        assert not program.holds()
        if count % 3:
            del box
        else:
            del program


def test_another_instance_of_the_class() -> None:
    program = Program(Guard("TYPE", M, Box), Guard("CONST", item("n"), 1), m=Box(n=1))
    program.settle()
    program.values["m"] = Box(n=2)
    assert not program.holds()
    program.values["m"] = Box(n=1)
    assert program.holds()


def test_values_of_another_instance_are_not_handed_out() -> None:
    boxes = [Box(p=weight()) for _ in range(3)]
    program = Program(tensor_guard(item("p"), boxes[0].p), collect=(item("p"),), m=boxes[0])
    for number in (0, 0, 0, 1, 0, 2, 2, 1, 0, 0, 1, 1):
        values = {"m": boxes[number]}
        collected, _, held = program.program.run(values, {}, builtins.__dict__)
        assert held and collected[0] is boxes[number].p


def test_a_new_object_at_an_old_address() -> None:
    program = Program(Guard("TYPE", M, Box), Guard("CONST", item("n"), 1), m=Box(n=1))
    program.settle()
    for count in range(200):
        program.values.clear()
        program.values["m"] = Box(n=2 if count % 2 else 1)
        assert program.holds() == (count % 2 == 0)


def test_cells_globals_and_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = types.ModuleType("fresh_module")
    fresh.k = 1  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "fresh_module", fresh)
    cell = types.CellType(Box(n=1))
    contents = CellContentsSource(CellSource("c"))
    program = Program(
        Guard("ID", GlobalSource("g"), len),
        Guard("CONST", ItemSource(DictSource(contents), "n"), 1),
        Guard("CONST", ItemSource(DictSource(ModuleSource("fresh_module")), "k"), 1),
    )
    program.cells["c"] = cell
    program.settle()
    cell.cell_contents = Box(n=2)
    assert not program.holds()
    cell.cell_contents = Box(n=1)
    program.settle()
    program.globals["g"] = max
    assert not program.holds()
    program.globals["g"] = len
    fresh.k = 2  # type: ignore[attr-defined]
    assert not program.holds()
    fresh.k = 1  # type: ignore[attr-defined]
    program.settle()
    other = types.ModuleType("fresh_module")
    other.k = 2  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "fresh_module", other)
    assert not program.holds()


def test_an_instance_that_changes_at_each_call_is_walked() -> None:
    box = Box(n=1, count=0)
    program = Program(Guard("CONST", item("n"), 1), m=box)
    for count in range(100):
        box.count = count
        assert program.holds()
    box.n = 2
    assert not program.holds()


def test_other_values_at_old_addresses_are_not_believed() -> None:
    """A place that no dict holds may get, in two steps, a new object where the old one was."""
    function = types.FunctionType(helper.__code__, {}, None, (1000, 2000))
    guard = Guard("CONST", AttrSource(item("f"), "__defaults__"), (1000, 2000))
    slotted, listed = Slotted((1, 2)), [(1, 2)]
    box = Box(f=function, v=slotted, d=listed)
    program = Program(
        guard, Guard("CONST", AttrSource(item("v"), "a"), (1, 2)),
        Guard("CONST", ItemSource(item("d"), 0), (1, 2)), m=box)
    for first in range(50):
        function.__defaults__ = (1000, 2000)
        slotted.a = tuple([1, 2])
        listed[0] = tuple([1, 2])
        program.settle()
        for second in range(5):  # the freed tuple's memory is used again soon
            function.__defaults__ = tuple([first, second + 3000])
            slotted.a = tuple([first, second + 5])
            listed[0] = tuple([first, second + 5])
        assert not program.holds()


# -- death ------------------------------------------------------------------------------------


def test_a_program_dies_with_the_class_that_it_is_about() -> None:
    cls = type("Local", (), {"k": 1})
    value = cls()
    program = Program(
        Guard("TYPE", M, cls),
        Guard("CONST", ItemSource(DictSource(ObjectSource(cls, "Local")), "k"), 1), m=value)
    program.settle()
    reference = weakref.ref(cls)
    built = program.program
    del cls, value, program
    gc.collect()
    assert reference() is None
    assert not built.alive
    assert built.run({"m": Box()}, {}, builtins.__dict__)[2] is False


def entry_count(compiled: Any, function: Any) -> int:
    return len(hook.entries(function.__code__, compiled.region))


held: dict[str, Any] = {}


def call(x: torch.Tensor) -> torch.Tensor:
    return held["it"](x)  # type: ignore[no-any-return]


def test_entries_go_with_the_functions_and_classes_that_they_guard() -> None:
    def make_function() -> Any:
        def inner(x: torch.Tensor) -> torch.Tensor:
            return x * 3

        return inner

    def make_class() -> Any:
        return type("Local", (), {"__call__": lambda self, x: x * 3})()

    for make in (make_function, make_class):
        compiled = dynamo.compile(call, backend="eager")
        references = []
        for _ in range(4):
            held["it"] = make()
            kept = held["it"] if make is make_function else type(held["it"])
            references.append(weakref.ref(kept))
            del kept
            assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 3.0))
            held.clear()
            gc.collect()
        assert [reference() for reference in references] == [None] * 4, make
        assert entry_count(compiled, call) == 0


def test_finalisers_of_an_old_short_cut_run_when_the_values_are_taken() -> None:
    """What only the old short cut held may let go of what the guards have just read."""

    def helper(a: Any = 1, b: Any = None) -> None: ...

    class Drops:
        def __del__(self) -> None:
            holder.value = None
            taken.append(bytearray(5))  # at the place of the old one

    taken: list[Any] = []
    holder = Box(value=bytearray(1000))
    defaults = AttrSource(GlobalSource("helper"), "__defaults__")
    helper.__defaults__ = (1, Drops())
    program = Program(
        Guard("TYPE", GlobalSource("helper"), types.FunctionType),
        Guard("CONST", ItemSource(defaults, 0), 1),
        Guard("TYPE", M, Box), Guard("TYPE", item("value"), bytearray),
        collect=(item("value"),), m=holder)
    program.globals["helper"] = helper
    program.settle()
    helper.__defaults__ = (1, 2)
    assert holder.value is not None, "the short cut holds the old defaults"
    lengths: list[int] = []
    while holder.value is not None and len(lengths) < 50:
        (value,) = program.program.run(program.values, program.globals, builtins.__dict__)[0]
        lengths.append(len(value))
        del value
    assert holder.value is None and lengths == [1000] * len(lengths)
