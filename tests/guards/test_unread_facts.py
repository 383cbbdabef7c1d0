"""What a program does not read may change: no recompile, and eager's result.

A case is a function that returns the program, its first arguments, and a change. The change may
return other arguments; what it returns else is thrown away.
"""

from __future__ import annotations

import os
import sys
import threading
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import dynamo
from dynamo.testing import CompileCounter

Case = tuple[Callable[..., Any], tuple[Any, ...], Callable[[], Any]]
CASES: list[Callable[[], Case]] = []
FACTOR, UNREAD = 2, 5
TABLE: dict[str, Any] = {"read": 1, "other": [2]}


def case(make: Callable[[], Case]) -> Callable[[], Case]:
    CASES.append(make)
    return make


def new() -> torch.Tensor:
    return torch.randn(3, 4)


class Plain:
    """An object with one attribute that is read."""

    kind = 1
    unread = 1

    def __init__(self, **values: Any) -> None:
        self.own = 2
        self.__dict__.update(values)

    def get(self) -> Any:
        return self.own

    def never(self) -> int:
        return 1

    @property
    def twice(self) -> Any:
        return self.own * 2


class Slots:
    __slots__ = ("a", "b")

    def __init__(self, a: Any, b: Any) -> None:
        self.a, self.b = a, b


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.idle = nn.Linear(4, 4), nn.Dropout(0.5)
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.register_buffer("shift", torch.ones(4))
        self.register_buffer("spare", torch.ones(4))
        self.extra = nn.Parameter(torch.ones(4))
        self.scale, self.note = 2.0, "a"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers[0](self.used(x)) * self.scale + self.shift


def of_net(change: Callable[[Net], Any]) -> Case:
    net, x = Net(), new()
    return net, (x,), lambda: [change(net)] and None


def fresh_class() -> Any:
    """A class of its own, so that a change of it touches no other case."""
    return type("Own", (Plain,), {"local": 3, "call": lambda self, x: x * self.own})


# -- objects, classes, functions ---------------------------------------------------------------


def of_object(change: Callable[[Any], Any], read: Callable[[Any, Any], Any] | None = None) -> Case:
    value = fresh_class()(spare=1)
    f = read or (lambda x, o: x * o.own)
    return f, (new(), value), lambda: [change(value)] and None


OBJECT_CHANGES: dict[str, Callable[[Any], Any]] = {
    "other attribute set": lambda o: setattr(o, "spare", 7),
    "attribute added": lambda o: setattr(o, "added", 7),
    "attribute removed": lambda o: delattr(o, "spare"),
    "dict reordered": lambda o: (o.__dict__.pop("own"), o.__dict__.update(own=2)),
    "equal value": lambda o: setattr(o, "own", int("2")),
    "class attribute set": lambda o: setattr(type(o), "local", 9),
    "class attribute added": lambda o: setattr(type(o), "added", 9),
    "base class attribute added": lambda o: setattr(Plain, "later", 9),
    "method replaced": lambda o: setattr(type(o), "never", lambda self: 2),
    "docstring of the class": lambda o: setattr(type(o), "__doc__", "text"),
    "annotations of the class": lambda o: setattr(type(o), "__annotations__", {"own": int}),
    "name of the class": lambda o: setattr(type(o), "__qualname__", "Renamed"),
}
READS: dict[str, Callable[[Any, Any], Any]] = {
    "attribute": lambda x, o: x * o.own,
    "method": lambda x, o: x * o.get(),
    "property": lambda x, o: x * o.twice,
    "getattr": lambda x, o: x * getattr(o, "own", 1),
    "function of the class": lambda x, o: o.call(x),
    "isinstance": lambda x, o: x * 2 if isinstance(o, Plain) else x,
}
OBJECTS = [
    (f"{change}, {read}", OBJECT_CHANGES[change], READS[read])
    for change in OBJECT_CHANGES
    for read in READS
]


@case
def another_object_of_equal_content() -> Case:
    kind, x = fresh_class(), new()
    return (lambda x, o: x * o.own), (x, kind(spare=1)), lambda: (x, kind(spare=2))


@case
def other_slot() -> Case:
    value = Slots(2, 3)
    return (lambda x, o: x * o.a), (new(), value), lambda: setattr(value, "b", 9)


@case
def identity_of_a_list_argument() -> Case:
    x = new()
    return (lambda x, items: x * items[0]), (x, [1, 2]), lambda: (x, [1, 2])


@case
def other_global() -> Case:
    def change() -> None:
        globals()["UNREAD"] += 1
        globals()["BRAND_NEW"] = 1

    return (lambda x: x * FACTOR), (new(),), change


@case
def equal_global() -> Case:
    return (lambda x: x * FACTOR), (new(),), lambda: globals().update(FACTOR=int("2"))


@case
def other_key_of_a_global_dict() -> Case:
    return (lambda x: x * TABLE["read"]), (new(),), lambda: TABLE["other"].append(3)


@case
def function_attributes() -> Case:
    def helper(x: Any, by: int = 2) -> Any:
        "Text."
        return x * by

    def change() -> None:
        helper.__doc__ = "Other text."
        helper.__annotations__ = {}
        helper.__name__ = helper.__qualname__ = "renamed"
        setattr(helper, "note", 1)  # noqa: B010
        helper.__module__ = "elsewhere"

    return (lambda x: helper(x)), (new(),), change


@case
def attributes_of_the_compiled_function() -> Case:
    def program(x: Any) -> Any:
        return x * 2

    def change() -> None:
        program.__doc__, program.__name__ = "Text.", "renamed"
        setattr(program, "note", 1)  # noqa: B010

    return program, (new(),), change


@case
def other_closure_variable() -> Case:
    used, unused = 2, 3

    def program(x: Any) -> Any:
        if x is None:
            return unused
        return x * used

    def change() -> None:
        nonlocal unused
        unused = 4

    return program, (new(),), change


@case
def unused_default() -> Case:
    def helper(x: Any, by: int = 2, *, more: int = 1) -> Any:
        return x * by + more

    def change() -> None:
        helper.__defaults__, helper.__kwdefaults__ = (5,), {"more": 6}

    return (lambda x: helper(x, 3, more=4)), (new(),), change


@case
def attribute_of_an_imported_module() -> Case:
    module = types.ModuleType("unread_helpers")
    module.__dict__.update(used=2, unused=3)
    return (lambda x: x * module.used), (new(),), lambda: setattr(module, "unused", 4)


# -- containers --------------------------------------------------------------------------------


def of_container(value: Any, read: Callable[..., Any], change: Callable[[Any], Any]) -> Case:
    return (lambda x, c: x * read(c)), (new(), value), lambda: [change(value)] and None


CONTAINERS: dict[str, Callable[[], Case]] = {
    "other list item": lambda: of_container(
        [1, 2, 3], lambda c: c[0], lambda c: c.__setitem__(2, 9)),
    "other item of a nested list": lambda: of_container(
        [[1, 2], [3]], lambda c: c[0][0], lambda c: c[1].append(9)),
    "other dict item": lambda: of_container(
        {"a": 1, "b": 2}, lambda c: c["a"], lambda c: c.update(b=9)),
    "dict item added": lambda: of_container(
        {"a": 1, "b": 2}, lambda c: c["a"], lambda c: c.update(z=9)),
    "dict item removed": lambda: of_container(
        {"a": 1, "b": 2}, lambda c: c.get("a"), lambda c: c.pop("b")),
    "order of dict keys": lambda: of_container(
        {"a": 1, "b": 2}, lambda c: c["a"] + c["b"], lambda c: c.update(a=c.pop("a"))),
    "order of an OrderedDict": lambda: of_container(
        OrderedDict(a=1, b=2), lambda c: c["a"] + c["b"], lambda c: c.move_to_end("a")),
    "other item of a defaultdict": lambda: of_container(
        defaultdict(int, a=1), lambda c: c["a"], lambda c: c["missing"]),
    "membership, other key": lambda: of_container(
        {"a": 1}, lambda c: 2 if "a" in c else 3, lambda c: c.update(b=9)),
    "absence, other key": lambda: of_container(
        {"a": 1}, lambda c: 2 if "z" in c else 3, lambda c: c.update(b=9)),
    "values where only keys are read": lambda: of_container(
        {"a": 1, "b": 2}, lambda c: len(list(c)), lambda c: c.update(b=9)),
    "values where only the length is read": lambda: of_container(
        [1, 2], lambda c: len(c), lambda c: c.__setitem__(0, 9)),
    "items where only the truth is read": lambda: of_container(
        {"a": 1}, lambda c: 2 if c else 3, lambda c: c.update(a=9)),
    "set item not asked": lambda: of_container(
        {1, 2}, lambda c: 2 if 1 in c else 3, lambda c: c.add(9)),
    "set item not asked, absent": lambda: of_container(
        {1, 2}, lambda c: 2 if 7 in c else 3, lambda c: c.discard(2)),
    "list length where an item is read": lambda: of_container(
        [1, 2, 3], lambda c: c[0], lambda c: c.append(9)),
    "list length where a late item is read": lambda: of_container(
        [1, 2, 3], lambda c: c[1], lambda c: c.pop()),
    "frozenset item not asked": lambda: of_container(
        [{1, 2}], lambda c: 2 if 1 in c[0] else 3, lambda c: c.__setitem__(0, {1, 5, "a"})),
    "set items where only the length is read": lambda: of_container(
        {1, 2}, lambda c: len(c), lambda c: (c.discard(2), c.add("b"))),
    "set items where only the truth is read": lambda: of_container(
        {1, 2}, lambda c: 2 if c else 3, lambda c: c.add(9)),
    "dict keys where only the length is read": lambda: of_container(
        {"a": 1, "b": 2}, lambda c: len(c), lambda c: c.update(z=c.pop("a"))),
    "dict length where only the truth is read": lambda: of_container(
        {"a": 1}, lambda c: 2 if c else 3, lambda c: c.update(z=9)),
    "list length where only the truth is read": lambda: of_container(
        [1], lambda c: 2 if c else 3, lambda c: c.append(9)),
    "items of an object that is only passed on": lambda: of_container(
        [1], lambda c: 2 if c is not None else 3, lambda c: c.append(9)),
    "items where only the type is read": lambda: of_container(
        {"a": 1}, lambda c: 2 if isinstance(c, dict) else 3, lambda c: c.clear()),
    "deque item": lambda: of_container(
        deque([1, 2]), lambda c: len(c), lambda c: c.rotate(1)),
}


@case
def other_item_of_a_tuple() -> Case:
    x = new()
    return (lambda x, pair: x * pair[0]), (x, (2, "a")), lambda: (x, (2, "b"))


@case
def extra_keyword_argument() -> Case:
    def program(x: Any, **options: Any) -> Any:
        return x * options["by"]

    x = new()
    return (lambda x, options: program(x, **options)), (x, {"by": 2, "more": 1}), \
        lambda: (x, {"by": 2, "more": 5})


@case
def argument_that_nothing_reads() -> Case:
    x = new()
    return (lambda x, unused: x * 2), (x, 1), lambda: (x, "text")


@case
def tensor_that_nothing_reads() -> Case:
    x = new()
    return (lambda x, unused: x * 2), (x, new()), lambda: (x, torch.zeros(7, dtype=torch.int64))


# -- modules -----------------------------------------------------------------------------------


def set_parameter(net: Net) -> None:
    net.used.weight = nn.Parameter(torch.randn(4, 4))


MODULES: dict[str, Callable[[Net], Any]] = {
    "submodule added": lambda net: net.add_module("late", nn.Linear(2, 2)),
    "submodule not called removed": lambda net: delattr(net, "idle"),
    "submodule not called replaced": lambda net: setattr(net, "idle", nn.ReLU()),
    "other parameter": lambda net: setattr(net, "extra", nn.Parameter(torch.ones(9))),
    "other buffer": lambda net: setattr(net, "spare", torch.ones(9)),
    "parameter added": lambda net: net.register_parameter("late", nn.Parameter(torch.ones(2))),
    "attribute not read": lambda net: setattr(net, "note", "b"),
    "training flag of a submodule not called": lambda net: net.idle.eval(),
    "training flag of a leaf that does not read it": lambda net: net.used.eval(),
    "training flag of a module that does not read it": lambda net: net.eval(),
    "values of a parameter": lambda net: net.used.weight.data.normal_(),
    "training flag of another module": lambda net: net.layers[1].eval(),
    "where a hook would be": lambda net: net.idle.register_forward_hook(lambda *a: None),
    "another parameter object": set_parameter,
    "another buffer object": lambda net: setattr(net, "shift", torch.randn(4)),
    "gradients": lambda net: setattr(net.used.weight, "grad", torch.randn(4, 4)),
    "load_state_dict": lambda net: net.load_state_dict(Net().state_dict()),
    "layer of a list that is not called": lambda net: net.layers.__setitem__(1, nn.ReLU()),
    "a leaf of equal configuration": lambda net: setattr(net, "used", nn.Linear(4, 4)),
    "hooks for the state dict": lambda net: net.register_state_dict_post_hook(lambda *a: None),
    "attribute of a leaf": lambda net: setattr(net.used, "note", 1),
    "names that a leaf shows only": lambda net: setattr(net.used, "in_features", 4),
    "class attribute of the module": lambda net: setattr(Net, "later", 1),
}


# -- tensors -----------------------------------------------------------------------------------


def of_tensors(*values: Callable[[], torch.Tensor], f: Callable[..., Any] | None = None) -> Case:
    first, second = values
    return f or (lambda x: x * 2 + 1), (first(),), lambda: (second(),)


TENSORS: dict[str, Callable[[], Case]] = {
    "values": lambda: of_tensors(new, lambda: torch.full((3, 4), torch.nan)),
    "version": lambda: of_tensors(new, lambda: new().add_(1).mul_(2)),
    "storage offset": lambda: of_tensors(new, lambda: torch.randn(17)[5:].view(3, 4)),
    "a view": lambda: of_tensors(new, lambda: torch.randn(6, 4)[3:]),
    "storage size": lambda: of_tensors(new, lambda: torch.randn(6, 4)[:3]),
    "shared memory": lambda: of_tensors(new, lambda: new().share_memory_()),
    "an attribute": lambda: of_tensors(new, lambda: with_attribute(new())),
    "a gradient": lambda: of_tensors(
        lambda: new().requires_grad_(), lambda: with_gradient(new().requires_grad_())),
    "retained gradient": lambda: of_tensors(
        lambda: new().requires_grad_() * 1, lambda: retained(new().requires_grad_() * 1)),
    "leaf or not": lambda: of_tensors(
        lambda: new().requires_grad_(), lambda: new().requires_grad_() * 1),
    "from numpy": lambda: of_tensors(new, lambda: torch.from_numpy(new().numpy())),
    "a parameter": lambda: of_tensors(
        lambda: new().requires_grad_(), lambda: new().requires_grad_().detach().requires_grad_()),
}


def with_attribute(x: torch.Tensor) -> torch.Tensor:
    x.note = 1  # type: ignore[attr-defined]
    return x


def with_gradient(x: torch.Tensor) -> torch.Tensor:
    x.sum().backward()
    return x


def retained(x: torch.Tensor) -> torch.Tensor:
    x.retain_grad()
    return x


# -- the process -------------------------------------------------------------------------------


@case
def environment_variable() -> Case:
    return (lambda x: x * 2), (new(),), lambda: os.environ.update(UNREAD_VARIABLE="1")


@case
def other_environment_variable() -> Case:
    os.environ["READ_VARIABLE"] = "2"
    return (lambda x: x * int(os.environ["READ_VARIABLE"])), (new(),), \
        lambda: os.environ.update(UNREAD_VARIABLE="2")


@case
def name_of_the_thread() -> Case:
    return (lambda x: x * 2), (new(),), lambda: setattr(threading.current_thread(), "name", "Main")


@case
def modules_of_the_process() -> Case:
    return (lambda x: x * 2), (new(),), \
        lambda: sys.modules.update(unread_module=types.ModuleType("unread_module"))


@case
def random_seed() -> Case:
    return (lambda x: x * 2), (new(),), lambda: torch.manual_seed(3) and None


@case
def recursion_limit() -> Case:
    return (lambda x: x * 2), (new(),), lambda: sys.setrecursionlimit(sys.getrecursionlimit() + 1)


@case
def print_options() -> Case:
    return (lambda x: x * 2), (new(),), lambda: torch.set_printoptions(precision=4)


def check(program: Callable[..., Any], args: tuple[Any, ...], change: Callable[[], Any]) -> None:
    counter = CompileCounter()
    compiled = dynamo.compile(program, backend=counter)
    torch.testing.assert_close(compiled(*args), program(*args), rtol=0, atol=0)
    assert counter.frame_count == 1
    args = change() or args
    with dynamo.config.patch(error_on_recompile=True):
        found = compiled(*args)
    torch.testing.assert_close(found, program(*args), rtol=0, atol=0, equal_nan=True)
    assert counter.frame_count == 1


@pytest.mark.parametrize("make", CASES, ids=lambda make: make.__name__)
def test_case(make: Callable[[], Case]) -> None:
    check(*make())


@pytest.mark.parametrize(("_", "change", "read"), OBJECTS, ids=[row[0] for row in OBJECTS])
def test_object(_: str, change: Callable[[Any], Any], read: Callable[..., Any]) -> None:
    check(*of_object(change, read))


@pytest.mark.parametrize("name", CONTAINERS)
def test_container(name: str) -> None:
    check(*CONTAINERS[name]())


@pytest.mark.parametrize("name", MODULES)
def test_module(name: str) -> None:
    check(*of_net(MODULES[name]))


@pytest.mark.parametrize("name", TENSORS)
def test_tensor(name: str) -> None:
    check(*TENSORS[name]())


READ: dict[str, tuple[Any, Callable[[Any], Any], Callable[[Any], Any]]] = {
    "set item removed": ({1, 2}, lambda c: 2 if 1 in c else 3, lambda c: c.discard(1)),
    "set item added": ({1, 2}, lambda c: 2 if 7 in c else 3, lambda c: c.add(7)),
    "set emptied": ({1}, lambda c: 2 if c else 3, lambda c: c.clear()),
    "set grown": ({1}, lambda c: len(c), lambda c: c.add(2)),
    "list emptied": ([1], lambda c: 2 if c else 3, lambda c: c.clear()),
    "empty list filled": ([], lambda c: 2 if c else 3, lambda c: c.append(1)),
    "dict emptied": ({"a": 1}, lambda c: 2 if c else 3, lambda c: c.clear()),
    "dict grown": ({"a": 1}, lambda c: len(c), lambda c: c.update(b=1)),
    "item read alone, then all": ([1, 2], lambda c: c[0] + sum(c), lambda c: c.append(3)),
    "item read alone and written": ([1, 2], lambda c: (c[0], c.__setitem__(0, 7), c[0])[2],
                                    lambda c: c.append(3)),
    "negative index": ([1, 2], lambda c: c[-1], lambda c: c.append(3)),
    "item from the end of a longer list": ([1, 2], lambda c: c[0] + c[-1], lambda c: c.append(3)),
}


@pytest.mark.parametrize("name", READ)
def test_what_is_read_beside_it(name: str) -> None:
    """The neighbours of the facts above are guarded."""
    value, read, change = READ[name]

    def program(x: torch.Tensor, c: Any) -> torch.Tensor:
        return x * read(c)

    x, compiled = new(), dynamo.compile(program, backend="eager")
    for _ in range(2):
        twin = type(value)(value)
        expected = program(x, twin)
        torch.testing.assert_close(compiled(x, value), expected, rtol=0, atol=0)
        assert value == twin
        change(value)


def test_an_item_that_is_gone_raises() -> None:
    """Reading past the end raises, also where nothing is done with the item."""
    items = [1, "kept"]
    compiled = dynamo.compile(lambda x, c: (x + 1, c[1])[0], backend="eager")
    compiled(new(), items)
    items.pop()
    with pytest.raises(IndexError):
        compiled(new(), items)
