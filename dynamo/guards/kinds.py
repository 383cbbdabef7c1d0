"""What each kind of guard means: a sentence for people, a check in plain Python, a C++ opcode.

The plain-Python check is the twin of the C++ one: tests compare the two, and explanations use it.
"""

from __future__ import annotations

import functools
import struct
import types
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from dynamo import _C
from dynamo.base.instances import class_name, is_class, is_watched
from dynamo.guards.sources import order_of
from dynamo.guards.weak import HEAP_TYPE


@dataclass(frozen=True, slots=True)
class TensorFacts:
    """What a graph assumes of one tensor. -1 in sizes and strides: any value.

    raw: dispatch keys, dtype, device and requires_grad as the program compares them.
    """

    raw: tuple[int, ...]
    cls: type[torch.Tensor]
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool
    sizes: tuple[int, ...]
    strides: tuple[int, ...]

    @staticmethod
    def of(tensor: torch.Tensor, dynamic: frozenset[int] = frozenset()) -> TensorFacts:
        sizes = tuple(-1 if i in dynamic else int(n) for i, n in enumerate(tensor.shape))
        strides = tuple(-1 if dynamic else int(n) for n in tensor.stride())
        return TensorFacts(
            _C.tensor_facts(tensor),
            type(tensor),
            tensor.dtype,
            tensor.device,
            tensor.requires_grad,
            sizes,
            strides,
        )

    def describe(self) -> str:
        grad = ", requires_grad" if self.requires_grad else ""
        sizes = ["?" if n < 0 else n for n in self.sizes]
        return f"{self.cls.__name__}({sizes}, {self.dtype}, {self.device}, {self.strides}{grad})"

    def holds(self, value: Any) -> bool:
        return (
            type(value) is self.cls
            and _C.tensor_facts(value) == self.raw
            and len(value.shape) == len(self.sizes)
            and all(w in (-1, n) for w, n in zip(self.sizes, value.shape, strict=True))
            and all(w in (-1, n) for w, n in zip(self.strides, value.stride(), strict=True))
        )


SIMPLE = frozenset({int, str, bytes, bool, type(None)})  # equal where type and hash decide


SHOW_OTHERS = (types.MappingProxyType, *weakref.ProxyTypes)  # which the program's code may compare


def const_equal(a: Any, b: Any) -> bool:
    """Equal and of one type, floats bit by bit, containers item by item. Runs no user code."""
    if a is b:
        return True
    cls = type(a)
    if cls is not type(b):
        return False
    if cls is float:
        return struct.pack("d", a) == struct.pack("d", b)
    if cls is complex:
        return const_equal(a.real, b.real) and const_equal(a.imag, b.imag)
    if isinstance(a, tuple) or cls is list:
        return len(a) == len(b) and all(map(const_equal, a, b))
    if cls in (frozenset, set):
        simple = {(type(y), y) for y in b if type(y) in SIMPLE}
        return len(a) == len(b) and all(
            (type(x), x) in simple if type(x) in SIMPLE else any(const_equal(x, y) for y in b)
            for x in a
        )
    if cls in (slice, range):
        return const_equal((a.start, a.stop, a.step), (b.start, b.stop, b.step))
    if cls is types.GenericAlias:
        return const_equal(_parts(a), _parts(b))
    if cls is types.MethodType:
        return a.__self__ is b.__self__ and const_equal(a.__func__, b.__func__)
    if issubclass(cls, weakref.ref):
        referent = weakref.ref.__call__(a)
        return referent is not None and referent is weakref.ref.__call__(b)
    if cls.__flags__ & HEAP_TYPE or cls in SHOW_OTHERS:
        return False
    return bool(a == b)


def _parts(alias: types.GenericAlias) -> tuple[Any, ...]:
    return alias.__origin__, alias.__args__, alias.__unpacked__


@dataclass(frozen=True, slots=True)
class GuardKind:
    """opcode: name in csrc/opcodes.h; holds(value, payload); sentence(text, payload, value) says
    what
    differs."""

    opcode: str
    holds: Callable[[Any, Any], bool]
    sentence: Callable[[str, Any, Any], str]


def short(value: Any) -> str:
    """A value in a sentence: no data of tensors, no addresses."""
    if isinstance(value, torch.Tensor):
        return TensorFacts.of(value).describe()
    if is_watched(type(value)):
        return f"a {class_name(type(value))}"
    if issubclass(type(value), types.FunctionType | types.BuiltinFunctionType | type):
        name = value.__qualname__.replace("_VariableFunctionsClass", "torch")
        return f"{'class' if is_class(value) else 'function'} {name}"
    if isinstance(value, functools.partial):
        return f"a partial of {short(value.func)}"
    if type(value) in (tuple, list):
        items = [short(item) for item in value[:SHOWN]] + ["..."] * (len(value) > SHOWN)
        left, right = "()" if type(value) is tuple else "[]"
        return f"{left}{', '.join(items)}{',' if len(value) == 1 and left == '(' else ''}{right}"
    if type(value).__repr__ is object.__repr__ or isinstance(value, torch.nn.Module):
        return f"a {type(value).__qualname__}"
    text = repr(value)
    if "tensor(" in text:
        return f"a {type(value).__qualname__}"
    return text if len(text) < 80 else text[:77] + "..."


def named(code: types.CodeType, now: Any) -> str:
    """A function in a sentence about the one that has taken its place."""
    text = f"function {code.co_qualname}"
    return text if text != short(now) else f"another {text}, of line {code.co_firstlineno}"


SHOWN = 4  # items of a container in a sentence


def _keys(value: Any) -> tuple[Any, ...]:
    if issubclass(type(value), dict):
        return tuple(order_of(value).__iter__(value))  # not what the class defines itself
    return tuple(value) if isinstance(value, types.MappingProxyType) else ()


GUARD_KINDS: dict[str, GuardKind] = {
    "TYPE": GuardKind(
        "IS_TYPE",
        lambda v, p: type(v) is p,
        lambda t, p, v: f"type of {t} was {p.__name__}, now it is {type(v).__name__}",
    ),
    "ID": GuardKind(
        "IS", lambda v, p: v is p, lambda t, p, v: f"{t} was {other(p, v)}, now it is {short(v)}"
    ),
    "CONST": GuardKind(
        "EQUAL", const_equal, lambda t, p, v: f"{t} was {short(p)}, now it is {short(v)}"
    ),
    "TENSOR": GuardKind(
        "TENSOR",
        lambda v, p: p.holds(v),
        lambda t, p, v: tensor_change(t, p, v),
    ),
    "LENGTH": GuardKind(
        "LENGTH",
        lambda v, p: plain_length(v) == p,
        lambda t, p, v: f"len({t}) was {p}, now it is {plain_length(v)}",
    ),
    "DICT_KEYS": GuardKind(
        "DICT_KEYS",
        lambda v, p: const_equal(_keys(v), tuple(p)),
        lambda t, p, v: f"keys of {t} were {short(p)}, now they are {short(_keys(v))}",
    ),
    "PRESENT": GuardKind(
        "", lambda v, p: True, lambda t, p, v: f"{t} was there"
    ),
    "DICT_HAS": GuardKind(
        "DICT_HAS",
        lambda v, p: has_key(v, p) is True,
        lambda t, p, v: f"{t} had the key {p!r}, now it has not",
    ),
    "DICT_LACKS": GuardKind(
        "DICT_LACKS",
        lambda v, p: has_key(v, p) is False,
        lambda t, p, v: f"{t} had no key {p!r}, now it has",
    ),
    "SET_HAS": GuardKind(
        "DICT_HAS",
        lambda v, p: isinstance(v, set | frozenset) and p in v,
        lambda t, p, v: f"{t} had the item {short(p)}, now it has not",
    ),
    "SET_LACKS": GuardKind(
        "DICT_LACKS",
        lambda v, p: isinstance(v, set | frozenset) and p not in v,
        lambda t, p, v: f"{t} had no item {short(p)}, now it has",
    ),
    "SET_ITEMS": GuardKind(
        "SET_ITEMS",
        lambda v, p: isinstance(v, set | frozenset) and const_equal(frozenset(v), p),
        lambda t, p, v: f"{t} was {short(p)}, now it is {short(v)}",
    ),
    "HAS_ATTR": GuardKind(
        "HAS_ATTR",
        lambda v, p: hasattr(v, p),
        lambda t, p, v: f"{t} had the attribute {p}, now it has not",
    ),
    "LACKS_ATTR": GuardKind(
        "LACKS_ATTR",
        lambda v, p: not hasattr(v, p),
        lambda t, p, v: f"{t} had no attribute {p}, now it has",
    ),
    "CODE": GuardKind(
        "CODE",
        lambda v, p: isinstance(v, types.FunctionType) and v.__code__ is p,
        lambda t, p, v: f"{t} was {named(p, v)}, now it is {short(v)}",
    ),
    "SAME": GuardKind(
        "SAME",
        lambda v, p: v is p,
        lambda t, p, v: f"{t} and {p} were one object, now they are two",
    ),
    "NOT_SAME": GuardKind(
        "NOT_SAME",
        lambda v, p: v is not p,
        lambda t, p, v: f"{t} and {p} were two objects, now they are one",
    ),
    "GLOBAL_STATE": GuardKind(
        "GLOBAL_STATE",
        lambda v, p: p is None or v == p,
        lambda t, p, v: f"torch's global state changed: {changed_state(p, v)}",
    ),
    "CELL_EMPTY": GuardKind(
        "CELL_EMPTY",
        lambda v, p: not cell_bound(v),
        lambda t, p, v: f"{t} was unbound, now it is bound",
    ),
    "WEAKREF_ALIVE": GuardKind(
        "WEAK_ALIVE",
        lambda v, p: (v() is not None) == p,
        lambda t, p, v: f"the object of {t} " + ("died" if p else "lives again"),
    ),
    "BOOL_TRUTH": GuardKind(
        "TRUTH", lambda v, p: bool(v) == p, lambda t, p, v: f"bool({t}) was {p}, now it is {not p}"
    ),
    "RANGE": GuardKind(
        "IN_RANGE",
        lambda v, p: in_range(v, p),
        lambda t, p, v: f"{t} lay in {p[0]}..{p[1]}, now it is {short(v)}",
    ),
    "SUBCLASS": GuardKind(
        "SUBCLASS",
        lambda v, p: any(kind is p for kind in type(v).__mro__),
        lambda t, p, v: f"{t} was a {p.__name__}, now it is a {type(v).__name__}",
    ),
}


def plain_length(value: Any) -> int:
    """How many items a container has, whatever its class says of its length."""
    bases = (list, tuple, dict, set, frozenset)
    return next((base.__len__ for base in bases if isinstance(value, base)), len)(value)


def has_key(value: Any, key: Any) -> bool | None:
    """Whether a dict has a key; None for what is no dict (nor stands for one)."""
    if issubclass(type(value), dict):
        return dict.__contains__(value, key)  # not what the class defines itself
    return key in value if isinstance(value, types.MappingProxyType) else None


def other(old: Any, new: Any) -> str:
    """The old object in a sentence about a new one."""
    return "another object of this kind" if short(old) == short(new) else short(old)


def in_range(value: Any, bounds: tuple[Any, Any]) -> bool:
    low, high = bounds
    return (
        isinstance(value, int | float)
        and (low is None or value >= low)
        and (high is None or value <= high)
    )


ON = ("off", "on")


def changed_state(old: tuple[int, ...] | None, new: tuple[int, ...]) -> str:
    """Which parts of torch's global state differ, in words."""
    if old is None:
        return "grad mode, autocast, default dtype or the like"
    rows = [row for row in zip(_C.STATE_NAMES, old, new, strict=True) if row[1] != row[2]]
    plain = [row for row in rows if not row[0].startswith("dispatch keys")] or rows
    words = [
        f"{name} was {a}, now it is {b}" if name == "threads"
        else f"{name} was {ON[a != 0]}, now it is {ON[b != 0]}"
        if {a, b} <= {0, 1} or name.startswith("autocast on") and 0 in (a, b) else name
        for name, a, b in plain
    ]
    return ", ".join(words) or "nothing"


def tensor_change(text: str, facts: TensorFacts, value: Any) -> str:
    """The first fact of a tensor that differs."""
    if type(value) is not facts.cls:
        return f"type of {text} was {facts.cls.__name__}, now it is {type(value).__name__}"
    for name in ("dtype", "device", "requires_grad"):
        before, now = getattr(facts, name), getattr(value, name)
        if before != now:
            return f"{name} of {text} was {before}, now it is {now}"
    sizes = [new if old == -1 else old for old, new in zip(facts.sizes, value.shape, strict=False)]
    if len(facts.sizes) != value.dim() or sizes != list(value.shape):
        old = ["?" if n == -1 else n for n in facts.sizes]
        return f"shape of {text} was {short_list(old)}, now it is {short_list(value.shape)}"
    if value.layout is torch.strided and _C.tensor_facts(value) == facts.raw:
        return f"strides of {text} were {facts.strides}, now they are {tuple(value.stride())}"
    return f"{text} was {facts.describe()}, now it is {short(value)} with other dispatch keys"


SIZE_DISTANCE = 2  # of a tensor that has other sizes, and is alike otherwise


def tensor_distance(facts: TensorFacts, value: Any) -> int:
    """How many facts of a tensor differ: 1 at least."""
    if not isinstance(value, torch.Tensor) or type(value) is not facts.cls:
        return 10
    names = ("dtype", "device", "requires_grad")
    found = sum(4 for name in names if getattr(facts, name) != getattr(value, name))
    if len(facts.sizes) != value.dim():
        return found + 3
    pairs = zip(facts.sizes, value.shape, strict=True)
    return max(found + SIZE_DISTANCE * any(old not in (-1, new) for old, new in pairs), 1)


def const_distance(wanted: Any, value: Any) -> int:
    """Numbers are near: the next compile may be for all of them; values of another type are far."""
    if type(wanted) is not type(value):
        return 3 if {type(wanted), type(value)} == {int, float} else 5
    return SIZE_DISTANCE if type(value) in (int, float) else 3


def short_list(items: Any) -> str:
    return f"[{', '.join(map(str, items))}]"


def cell_bound(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True
