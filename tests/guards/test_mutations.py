"""Each fact that a trace reads is changed between two calls: the result is eager's, before, after,
and when the fact is put back."""

from __future__ import annotations

import builtins
import functools
import inspect
import os
import sys
import types
import weakref
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn

import dynamo

HELPERS = types.ModuleType("mutated_helpers")
exec(
    "import torch\nSCALE = 2\nnames = {'a': 1}\n"
    "def shift(x, by=1, *, more=0): return x + by + more\n"
    "class Holder:\n    k = 3\n    def get(self): return self.k\n",
    HELPERS.__dict__,
)
sys.modules["mutated_helpers"] = HELPERS
FACTOR = 2
REGISTRY: dict[str, Any] = {"scale": 2, "list": [1, 2], "set": {1, 2}, "nested": {"a": {"b": 1}}}
os.environ["MUTATED_FLAG"] = "1"


class Base:
    shared = 1

    def value(self) -> Any:
        return 1


class Mixin:
    def value(self) -> Any:
        return 10


class Child(Base):
    named: Any = 2

    def __init__(self) -> None:
        self.named = 4
        self.own, self.items, self.table = 1, [1, 2, 3], {"a": 1, "b": 2}

    @property
    def twice(self) -> int:
        return self.own * 2

    @classmethod
    def made(cls) -> Any:
        return cls.shared + 1

    @staticmethod
    def fixed() -> Any:
        return 4


class Meta(type):
    fixed = 2


class Made(metaclass=Meta):
    own = 3


class Computing(types.ModuleType):
    @property
    def SCALE(self) -> int:
        return 21


class Other(Base):
    def value(self) -> Any:
        return 100

    own, items, table, twice = 7, [1], {"c": 5}, 9


class Slots:
    __slots__ = ("a", "b")


class Net(nn.Module):
    scale = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.layers = nn.ModuleList([nn.Linear(3, 3), nn.ReLU()])
        self.register_buffer("offset", torch.ones(3))
        self.drop = nn.Dropout(0.0)
        self.flag, self.extra = False, None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        x = self.drop(self.first(x)) * self.scale + self.offset
        if self.flag:
            x = self.second(x)
        if self.training:
            x = x + 1
        for name, _ in self.named_buffers():
            x = x + len(name)
        return x + len(list(self.parameters())) + (0 if self.extra is None else self.extra)


def default_of(x: Any, by: Any = 1, *, more: Any = 0) -> Any:
    return x + by + more


def last_of(x: Any, b: Any, c: Any = 3) -> Any:
    return x * b + c


def make_closure() -> Callable[..., Any]:
    count = 1

    def inner(x: Any) -> Any:
        return x * count

    return inner


class World:
    """Fresh objects for one case; `f` reads one of them."""

    def __init__(self) -> None:
        torch.default_generator.manual_seed(0)
        self.x = torch.rand(3, 3)
        self.y = torch.rand(3, 3)
        self.child, self.net, self.slots = Child(), Net(), Slots()
        self.slots.a = 1
        self.list, self.dict, self.set = [1, 2, 3], {"a": 1, "b": 2}, {1, 2}
        self.ordered = OrderedDict(a=1, b=2)
        self.default: Any = defaultdict(int, a=1)
        self.closure = make_closure()
        self.function = types.FunctionType(
            default_of.__code__, globals(), "default_of", (1,), None)
        self.function.__kwdefaults__ = {"more": 0}
        self.last = types.FunctionType(last_of.__code__, globals(), "last_of", (3,))
        self.partial = functools.partial(self.function, by=3)
        self.method = self.child.value
        self.key = Base()
        self.by_object = {self.key: 5}
        self.target: Any = Base()
        self.weak = weakref.ref(self.target)
        self.simple = types.SimpleNamespace(a=1)
        self.number, self.text, self.nothing = 3, "abc", None
        self.tuple: Any = (1, [2])
        self.iterator_source = [1, 2, 3]
        self.buffers = [torch.rand(3) for _ in range(2)]


def put(owner: Any, name: str, value: Any) -> Callable[[], None]:
    """Sets an attribute, of a class too; returns what puts it back."""
    space = getattr(owner, "__dict__", {})
    described = hasattr(inspect.getattr_static(type(owner), name, None), "__set__")
    had = name in space or described and hasattr(owner, name)
    old = space[name] if name in space else getattr(owner, name, None)
    setattr(owner, name, value)
    return lambda: setattr(owner, name, old) if had else delattr(owner, name)


def item(owner: Any, key: Any, value: Any) -> Callable[[], None]:
    if isinstance(owner, dict) and key not in owner:
        owner[key] = value
        return lambda: owner.pop(key)
    old = owner[key]
    owner[key] = value
    return lambda: owner.__setitem__(key, old)


def entering(manager: Any) -> Callable[[], None]:
    manager.__enter__()
    return lambda: manager.__exit__(None, None, None)


def setting(function: Callable[[Any], Any], new: Any, old: Any) -> Callable[[], None]:
    function(new)
    return lambda: function(old)


def none() -> None:
    pass


def gone(w: World) -> Callable[[], None]:
    w.target = None
    return none


def hooked(w: World) -> Callable[[], None]:
    handle = w.net.first.register_forward_hook(lambda m, i, o: o * 5)
    return handle.remove


def pre_hooked(w: World) -> Callable[[], None]:
    handle = w.net.register_forward_pre_hook(lambda m, i: (i[0] * 5,))
    return handle.remove


def all_hooked(w: World) -> Callable[[], None]:
    return nn.modules.module.register_module_forward_hook(lambda m, i, o: o + 1).remove


Case = tuple[Callable[[World, Any], Any], Callable[[World], Callable[[], Any]]]


def read_global(w: World, x: Any) -> Any:
    return x * FACTOR


def read_registry(w: World, x: Any) -> Any:
    return x * REGISTRY["scale"] + len(REGISTRY["list"]) + sum(REGISTRY["nested"]["a"].values())


def read_environment(w: World, x: Any) -> Any:
    return x * (2 if os.environ.get("MUTATED_FLAG") == "1" else 3)


def read_environment_item(w: World, x: Any) -> Any:
    return x * int(os.environ["MUTATED_FLAG"]) + ("MUTATED_OTHER" in os.environ)


def read_getenv(w: World, x: Any) -> Any:
    return x * int(os.getenv("MUTATED_FLAG", "7"))


def read_module(w: World, x: Any) -> Any:
    return HELPERS.shift(x) * HELPERS.SCALE + len(HELPERS.names)


def read_imported(w: World, x: Any) -> Any:
    import mutated_helpers

    return x * mutated_helpers.SCALE


def read_from_imported(w: World, x: Any) -> Any:
    from mutated_helpers import SCALE

    return x * SCALE


def read_sys_modules(w: World, x: Any) -> Any:
    return x + ("mutated_absent" in sys.modules)


def read_helper_class(w: World, x: Any) -> Any:
    return x * HELPERS.Holder().get()


def read_length(w: World, x: Any) -> Any:
    return x * len(w.list) + abs(w.list[0])


def keys_of(w: World, x: Any) -> Any:
    for key, value in w.dict.items():
        x = x * value + len(key)
    return x


def in_set(w: World, x: Any) -> Any:
    return x + (3 in w.set) + len(w.set)


def has_extra(w: World, x: Any) -> Any:
    return x + getattr(w.child, "extra", 5) + hasattr(w.child, "more")


def through_weak(w: World, x: Any) -> Any:
    target = w.weak()
    return x if target is None else x * target.value() + 1


def same_tensor(w: World, x: Any) -> Any:
    return x + 1 if w.x is w.y else x + 2


def write_one(w: World, x: Any) -> Any:
    w.x.add_(1)
    return w.y * 2 + w.x


def classes(w: World, x: Any) -> Any:
    return x * w.child.value() + isinstance(w.child, Mixin) + len(type(w.child).__name__)


def state_of_torch(w: World, x: Any) -> Any:
    y = torch.nn.functional.linear(x, w.net.first.weight)
    return y, y.requires_grad, torch.zeros(2), torch.tensor(1.5), torch.is_grad_enabled()


def threads(w: World, x: Any) -> Any:
    return x * torch.get_num_threads()


def flags(w: World, x: Any) -> Any:
    return (x + torch.backends.cudnn.enabled + 2 * torch.backends.cudnn.benchmark
            + 4 * torch.backends.cuda.matmul.allow_tf32 + 8 * torch.backends.cudnn.deterministic)


def modes(w: World, x: Any) -> Any:
    return (x + torch.is_inference_mode_enabled() + 2 * torch.is_autocast_enabled("cpu")
            + 4 * torch.are_deterministic_algorithms_enabled())


CASES: dict[str, Case] = {
    "global": (read_global, lambda w: item(globals(), "FACTOR", 5)),
    "global deleted and set": (read_global, lambda w: item(globals(), "FACTOR", 2.5)),
    "registry value": (read_registry, lambda w: item(REGISTRY, "scale", 3)),
    "registry list": (read_registry, lambda w: item(REGISTRY, "list", [1])),
    "registry nested": (read_registry, lambda w: item(REGISTRY["nested"]["a"], "c", 3)),
    "environment": (read_environment, lambda w: item(os.environ, "MUTATED_FLAG", "0")),
    "environment item": (read_environment_item, lambda w: item(os.environ, "MUTATED_FLAG", "4")),
    "environment gains": (
        read_environment_item, lambda w: entering(_environment(MUTATED_OTHER="1"))),
    "getenv": (read_getenv, lambda w: item(os.environ, "MUTATED_FLAG", "4")),
    "module global": (read_module, lambda w: put(HELPERS, "SCALE", 5)),
    "module dict": (read_module, lambda w: item(HELPERS.names, "z", 5)),
    "module function": (read_module, lambda w: put(HELPERS, "shift", lambda x: x * 9)),
    "module defaults": (read_module, lambda w: put(HELPERS.shift, "__defaults__", (7,))),
    "module kwdefaults": (read_module, lambda w: put(HELPERS.shift, "__kwdefaults__", {"more": 9})),
    "module code": (read_module, lambda w: put(
        HELPERS.shift, "__code__", (lambda x, by=1, *, more=0: x * 50).__code__)),
    "module class": (read_helper_class, lambda w: put(HELPERS.Holder, "k", 8)),
    "module method": (read_helper_class, lambda w: put(HELPERS.Holder, "get", lambda self: 6)),
    # Python 3.14's own bytecode, once it is warm, still reads the module's dict then.
    **({"module's class": (read_module, lambda w: put(HELPERS, "__class__", Computing))}
       if sys.version_info < (3, 14) else {}),
    "module replaced": (read_imported, lambda w: item(
        sys.modules, "mutated_helpers", types.SimpleNamespace(SCALE=11))),
    "imported name": (read_from_imported, lambda w: put(HELPERS, "SCALE", 5)),
    "sys.modules gains": (read_sys_modules, lambda w: item(
        sys.modules, "mutated_absent", types.ModuleType("mutated_absent"))),
    "builtin shadowed by a global": (read_length, lambda w: item(globals(), "len", lambda v: 50)),
    "builtin shadowed later": (read_length, lambda w: item(globals(), "abs", lambda v: 70)),
    "builtin replaced": (lambda w, x: x + ascii(w.text).count("b"), lambda w: put(
        builtins, "ascii", lambda text: "bbb")),
    "builtin made": (lambda w, x: x + made_later(), lambda w: put(  # noqa: F821
        builtins, "made_later", lambda: 4)),
    "list length": (read_length, lambda w: _do(lambda: w.list.append(1), w.list.pop)),
    "list item": (read_length, lambda w: item(w.list, 0, 9)),
    "list item's type": (read_length, lambda w: item(w.list, 0, 1.0)),
    "dict value": (keys_of, lambda w: item(w.dict, "a", 4)),
    "dict key": (keys_of, lambda w: item(w.dict, "ccc", 4)),
    "dict order": (keys_of, lambda w: _do(
        lambda: w.dict.update(a=w.dict.pop("a")), lambda: w.dict.update(b=w.dict.pop("b")))),
    "ordered dict": (lambda w, x: x * next(iter(w.ordered.values())), lambda w: _do(
        lambda: w.ordered.move_to_end("a"), lambda: w.ordered.move_to_end("b"))),
    "default dict gains": (lambda w, x: x + w.default["zz"], lambda w: item(w.default, "zz", 3)),
    "default factory": (lambda w, x: x + len(w.default["q"] * "a"), lambda w: put(
        w.default, "default_factory", lambda: 4)),
    "set": (in_set, lambda w: _do(lambda: w.set.add(3), lambda: w.set.discard(3))),
    "set swapped": (lambda w, x: x + (1 in w.set), lambda w: _do(
        lambda: (w.set.discard(1), w.set.add(9)), lambda: (w.set.discard(9), w.set.add(1)))),
    "attribute": (lambda w, x: x * w.child.own, lambda w: put(w.child, "own", 6)),
    "attribute gained": (has_extra, lambda w: put(w.child, "extra", 6)),
    "class attribute gained": (has_extra, lambda w: put(Base, "more", 6)),
    "__getattr__ gained": (has_extra, lambda w: put(Base, "__getattr__", lambda self, name: 33)),
    "class attribute": (lambda w, x: x * w.child.shared, lambda w: put(Base, "shared", 6)),
    "shadowed class attribute": (lambda w, x: x * w.child.shared, lambda w: put(
        w.child, "shared", 6)),
    "property over an attribute": (lambda w, x: x * w.child.own, lambda w: put(
        Base, "own", property(lambda self: 50))),
    "property in place of a class attribute": (lambda w, x: x * w.child.named, lambda w: put(
        Base, "named", property(lambda self: 50))),
    "__getattribute__ gained": (lambda w, x: x * w.child.own + w.child.value(), lambda w: put(
        Child, "__getattribute__", lambda self, name: lambda: 5)),
    "attribute over one of the metaclass": (lambda w, x: x * Made.fixed, lambda w: put(Made, "fixed", 6)),
    "metaclass gains": (lambda w, x: x * Made.own, lambda w: put(Meta, "own", property(lambda cls: 6))),
    "subclass gains": (lambda w, x: x * w.child.shared, lambda w: put(Child, "shared", 6)),
    "property": (lambda w, x: x * w.child.twice, lambda w: put(
        Child, "twice", property(lambda self: 50))),
    "property's fact": (lambda w, x: x * w.child.twice, lambda w: put(w.child, "own", 5)),
    "class method": (lambda w, x: x * w.child.made(), lambda w: put(Base, "shared", 7)),
    "static method": (lambda w, x: x * Child.fixed(), lambda w: put(
        Child, "fixed", staticmethod(lambda: 8))),
    "method": (classes, lambda w: put(Base, "value", lambda self: 6)),
    "method in instance": (classes, lambda w: put(w.child, "value", lambda: 6)),
    "code of a method": (classes, lambda w: put(Base.value, "__code__", (lambda s: 9).__code__)),
    "class": (classes, lambda w: put(w.child, "__class__", Other)),
    "slot": (lambda w, x: x * w.slots.a, lambda w: put(w.slots, "a", 3)),
    "slot gained": (lambda w, x: x + hasattr(w.slots, "b"), lambda w: put(w.slots, "b", 3)),
    "closure": (lambda w, x: w.closure(x), lambda w: put(
        w.closure.__closure__[0], "cell_contents", 8)),
    "defaults": (lambda w, x: w.function(x), lambda w: put(w.function, "__defaults__", (5,))),
    "more defaults": (lambda w, x: w.last(x, 2), lambda w: put(w.last, "__defaults__", (3, 9))),
    "a default at last": (lambda w, x: w.last(x), lambda w: put(w.last, "__defaults__", (3, 9))),
    "signature": (lambda w, x: x + len(inspect.signature(w.last).parameters), lambda w: put(
        w.last, "__signature__", inspect.signature(lambda: None))),
    "dict of a class": (lambda w, x: x + len([k for k in vars(Made) if k[0] != "_"]), lambda w: put(
        Made, "another", 1)),
    "value in the dict of a class": (lambda w, x: x + vars(Made)["own"], lambda w: put(
        Made, "own", 8)),
    "dtype of autocast to come": (lambda w, x: x + (torch.get_autocast_dtype("cpu") is torch.half),
        lambda w: setting(lambda to: torch.set_autocast_dtype("cpu", to), torch.half, torch.bfloat16)),
    "kwdefaults": (lambda w, x: w.function(x), lambda w: item(
        w.function.__kwdefaults__, "more", 5)),
    "code": (lambda w, x: w.function(x), lambda w: put(
        w.function, "__code__", (lambda x, by=1, *, more=0: x * 50).__code__)),
    "function attribute": (lambda w, x: x + getattr(w.function, "mark", 0), lambda w: put(
        w.function, "mark", 4)),
    "partial": (lambda w, x: w.partial(x), lambda w: put(
        w, "partial", functools.partial(w.function, by=9))),
    "bound method": (lambda w, x: x * w.method(), lambda w: put(w, "method", Mixin().value)),
    "object as key": (lambda w, x: x * w.by_object[w.key], lambda w: item(w.by_object, w.key, 8)),
    "weak reference": (through_weak, gone),
    "namespace": (lambda w, x: x * w.simple.a, lambda w: put(w.simple, "a", 8)),
    "number to float": (lambda w, x: x * w.number, lambda w: put(w, "number", 3.0)),
    "number to bool": (lambda w, x: x + w.number, lambda w: put(w, "number", True)),
    "text": (lambda w, x: x * len(w.text), lambda w: put(w, "text", "abcd")),
    "None": (lambda w, x: x + (w.nothing is None), lambda w: put(w, "nothing", 0)),
    "tuple": (lambda w, x: x + w.tuple[0] + len(w.tuple), lambda w: put(w, "tuple", (1, 2, 3))),
    "list in tuple": (lambda w, x: x + w.tuple[1][0], lambda w: item(w.tuple[1], 0, 9)),
    "list of tensors": (lambda w, x: x + sum(w.buffers), lambda w: _do(
        lambda: w.buffers.append(torch.ones(3)), w.buffers.pop)),
    # -- modules
    "training": (lambda w, x: w.net(x), lambda w: _do(w.net.eval, w.net.train)),
    "submodule's training": (lambda w, x: w.net(x), lambda w: put(w.net.drop, "p", 0.999999)),
    "hook": (lambda w, x: w.net(x), hooked),
    "pre-hook": (lambda w, x: w.net(x), pre_hooked),
    "hook of all modules": (lambda w, x: w.net(x), all_hooked),
    "submodule replaced": (lambda w, x: w.net(x), lambda w: item(w.net._modules, "first", nn.Tanh())),
    "layer appended": (lambda w, x: w.net(x), lambda w: _do(
        lambda: w.net.layers.append(nn.Tanh()), lambda: w.net.layers.__delitem__(-1))),
    "layer replaced": (lambda w, x: w.net(x), lambda w: item(w.net.layers._modules, "1", nn.Tanh())),
    "parameter replaced": (lambda w, x: w.net(x), lambda w: item(
        w.net.first._parameters, "weight", nn.Parameter(torch.rand(3, 3)))),
    "parameter of another dtype": (lambda w, x: w.net.first.weight * 2, lambda w: item(
        w.net.first._parameters, "weight", nn.Parameter(torch.rand(3, 3).double()))),
    "parameter removed": (lambda w, x: w.net(x), lambda w: item(
        w.net.first._parameters, "bias", None)),
    "parameter frozen": (lambda w, x: w.net(x).requires_grad, lambda w: _do(
        lambda: w.net.requires_grad_(False), lambda: w.net.requires_grad_(True))),
    "data replaced": (lambda w, x: w.net(x), lambda w: put(
        w.net.first.weight, "data", torch.rand(3, 3))),
    "buffer registered": (lambda w, x: w.net(x), lambda w: _do(
        lambda: w.net.register_buffer("another", torch.ones(1)),
        lambda: w.net._buffers.pop("another"))),
    "buffer replaced": (lambda w, x: w.net(x), lambda w: item(
        w.net._buffers, "offset", torch.zeros(1))),
    "module attribute": (lambda w, x: w.net(x), lambda w: put(w.net, "flag", True)),
    "module attribute from None": (lambda w, x: w.net(x), lambda w: put(w.net, "extra", 3.5)),
    "class attribute over a submodule": (lambda w, x: w.net(x), lambda w: put(Net, "first", nn.Tanh())),
    "module class attribute": (lambda w, x: w.net(x), lambda w: put(Net, "scale", 4.0)),
    "forward patched": (lambda w, x: w.net(x), lambda w: put(Net, "forward", lambda self, x: x * 7)),
    "forward of an instance": (lambda w, x: w.net(x), lambda w: put(
        w.net.first, "forward", lambda x: x * 7)),
    "forward of torch's class": (lambda w, x: w.net(x), lambda w: put(
        nn.ReLU, "forward", lambda self, x: x * 7)),
    "__call__ of a class": (lambda w, x: w.net(x), lambda w: put(
        Net, "__call__", lambda self, x: x * 9)),
    # -- tensors
    "dtype": (lambda w, x: w.x * 2, lambda w: put(w, "x", w.x.double())),
    "size": (lambda w, x: w.x * 2 + w.x.shape[0], lambda w: put(w, "x", torch.rand(5, 3))),
    "stride": (lambda w, x: (w.x * 2, w.x.is_contiguous()), lambda w: put(w, "x", w.x.t())),
    "requires_grad": (lambda w, x: ((w.x * 2).requires_grad), lambda w: _do(
        w.x.requires_grad_, lambda: w.x.requires_grad_(False))),
    "conjugate bit": (lambda w, x: w.x * 2, lambda w: put(
        w, "x", torch.complex(w.x, w.y).conj())),
    "one object": (same_tensor, lambda w: put(w, "y", w.x)),
    "None for a tensor": (lambda w, x: x + (w.y is None), lambda w: put(w, "y", None)),
    "shared memory": (write_one, lambda w: put(w, "y", w.x[:])),
    "shared memory of a view": (write_one, lambda w: put(w, "y", w.x.view(-1)[:3])),
    "resized": (lambda w, x: w.x.sum(0), lambda w: _do(lambda: w.x.resize_(1, 3))),
    "attribute of a tensor": (lambda w, x: x + getattr(w.x, "mark", 0), lambda w: put(
        w.x, "mark", 4)),
    "grad": (lambda w, x: x + (w.x.grad is None), lambda w: put(w.x, "grad", torch.ones(3, 3))),
    "subclass": (lambda w, x: w.x * 2, lambda w: put(w, "x", nn.Parameter(w.x))),
    # -- torch
    "grad mode": (state_of_torch, lambda w: entering(torch.no_grad())),
    "inference mode": (state_of_torch, lambda w: entering(torch.inference_mode())),
    "autocast": (state_of_torch, lambda w: entering(torch.autocast("cpu", torch.bfloat16))),
    "default dtype": (state_of_torch, lambda w: setting(
        torch.set_default_dtype, torch.float64, torch.float32)),
    "default device": (state_of_torch, lambda w: entering(torch.device("cpu"))),
    "threads": (threads, lambda w: setting(torch.set_num_threads, 1, torch.get_num_threads())),
    "cudnn": (flags, lambda w: put(torch.backends.cudnn, "benchmark", True)),
    "cudnn enabled": (flags, lambda w: put(torch.backends.cudnn, "enabled", False)),
    "tf32": (flags, lambda w: setting(
        lambda on: setattr(torch.backends.cuda.matmul, "allow_tf32", on), True, False)),
    "inference mode asked": (modes, lambda w: entering(torch.inference_mode())),
    "autocast asked": (modes, lambda w: entering(torch.autocast("cpu"))),
    "deterministic": (modes, lambda w: setting(torch.use_deterministic_algorithms, True, False)),
    "function mode": (lambda w, x: torch.add(x, 1), lambda w: entering(Doubling())),
}


class Doubling(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, function: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {})) * 2


@contextmanager
def _environment(**values: str) -> Iterator[None]:
    os.environ.update(values)
    try:
        yield
    finally:
        for name in values:
            del os.environ[name]


def _do(action: Callable[[], Any], undo: Callable[[], Any] = none) -> Callable[[], Any]:
    action()
    return undo


def outcome(function: Any, w: World) -> Any:
    torch.default_generator.manual_seed(3)
    try:
        return function(w, torch.rand(3, 3))
    except Exception as error:
        return type(error), str(error)


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and a.shape == b.shape and (
            torch.equal(a, b) and a.requires_grad == b.requires_grad)
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


@pytest.mark.parametrize("name", CASES)
def test_a_mutation_is_seen(name: str) -> None:
    function, mutate = CASES[name]
    mine, theirs = World(), World()
    compiled = dynamo.compile(function, backend="eager")

    def compare() -> None:
        for _ in range(2):
            expected, got = outcome(function, theirs), outcome(compiled, mine)
            assert same(got, expected), (got, expected)

    compare()
    for change in (mutate, mutate):
        undo_theirs = change(theirs)
        expected = [outcome(function, theirs) for _ in range(2)]
        undo_theirs()
        undo_mine = change(mine)
        got = [outcome(compiled, mine) for _ in range(2)]
        undo_mine()
        assert all(map(same, got, expected)), (got, expected)
        compare()
