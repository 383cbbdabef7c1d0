"""What each kind of guard means: a sentence for people, a check in plain Python, a number for the C++ program.

The plain-Python check is the twin of the C++ one: tests compare the two, and explanations use it.
"""

from __future__ import annotations

import struct
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class TensorFacts:
    """What a graph assumes of one tensor. -1 in sizes and strides: any value.

    example: the tensor itself while the program is built; the facts stay after it is gone.
    """

    example: torch.Tensor
    cls: type
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool
    sizes: tuple[int, ...]
    strides: tuple[int, ...]

    @staticmethod
    def of(tensor: torch.Tensor, dynamic: frozenset[int] = frozenset()) -> TensorFacts:
        sizes = tuple(-1 if i in dynamic else int(n) for i, n in enumerate(tensor.shape))
        strides = tuple(-1 if dynamic else int(n) for n in tensor.stride())
        return TensorFacts(tensor, type(tensor), tensor.dtype, tensor.device,
                           tensor.requires_grad, sizes, strides)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TensorFacts) and self.describe() == other.describe()

    def __hash__(self) -> int:
        return hash(self.describe())

    def describe(self) -> str:
        grad = ", requires_grad" if self.requires_grad else ""
        sizes = ["?" if n < 0 else n for n in self.sizes]
        return f"{self.cls.__name__}({sizes}, {self.dtype}, {self.device}, {self.strides}{grad})"

    def holds(self, value: Any) -> bool:
        return (
            type(value) is self.cls
            and value.dtype == self.dtype
            and value.device == self.device
            and value.requires_grad == self.requires_grad
            and len(value.shape) == len(self.sizes)
            and all(w in (-1, n) for w, n in zip(self.sizes, value.shape, strict=True))
            and all(w in (-1, n) for w, n in zip(self.strides, value.stride(), strict=True))
        )


def const_equal(a: Any, b: Any) -> bool:
    """Equal and of one type, floats bit by bit, tuples and slices item by item."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if type(a) is float:
        return struct.pack("d", a) == struct.pack("d", b)
    if type(a) is complex:
        return const_equal(a.real, b.real) and const_equal(a.imag, b.imag)
    if type(a) is tuple:
        return len(a) == len(b) and all(map(const_equal, a, b))
    if type(a) is slice:
        return const_equal((a.start, a.stop, a.step), (b.start, b.stop, b.step))
    return bool(a == b)


@dataclass(frozen=True, slots=True)
class GuardKind:
    """opcode: number in csrc/guards.cpp; holds(value, payload); sentence(text, payload, value) says what
    differs."""

    opcode: int
    holds: Callable[[Any, Any], bool]
    sentence: Callable[[str, Any, Any], str]


def short(value: Any) -> str:
    """A value in a sentence."""
    if isinstance(value, torch.Tensor):
        return TensorFacts.of(value).describe()
    text = repr(value)
    return text if len(text) < 80 else text[:77] + "..."


def _keys(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, dict) else ()


GUARD_KINDS: dict[str, GuardKind] = {
    "TYPE": GuardKind(0, lambda v, p: type(v) is p,
                      lambda t, p, v: f"type of {t} was {p.__name__}, now it is {type(v).__name__}"),
    "ID": GuardKind(1, lambda v, p: v is p, lambda t, p, v: f"{t} was another object, now it is {short(v)}"),
    "CONST": GuardKind(2, const_equal, lambda t, p, v: f"{t} was {short(p)}, now it is {short(v)}"),
    "TENSOR": GuardKind(3, lambda v, p: p.holds(v),
                        lambda t, p, v: f"{t} was {p.describe()}, now it is {short(v)}"),
    "LENGTH": GuardKind(4, lambda v, p: len(v) == p,
                        lambda t, p, v: f"len({t}) was {p}, now it is {len(v)}"),
    "DICT_KEYS": GuardKind(5, lambda v, p: const_equal(_keys(v), tuple(p)),
                           lambda t, p, v: f"keys of {t} were {short(p)}, now they are {short(_keys(v))}"),
    "DICT_HAS": GuardKind(6, lambda v, p: p in v, lambda t, p, v: f"{t} had the key {p!r}, now it has not"),
    "DICT_LACKS": GuardKind(7, lambda v, p: p not in v, lambda t, p, v: f"{t} had no key {p!r}, now it has"),
    "SET_ITEMS": GuardKind(8, lambda v, p: isinstance(v, (set, frozenset)) and v == p,
                           lambda t, p, v: f"{t} was {short(p)}, now it is {short(v)}"),
    "HAS_ATTR": GuardKind(9, lambda v, p: hasattr(v, p),
                          lambda t, p, v: f"{t} had the attribute {p}, now it has not"),
    "LACKS_ATTR": GuardKind(10, lambda v, p: not hasattr(v, p),
                            lambda t, p, v: f"{t} had no attribute {p}, now it has"),
    "CODE": GuardKind(11, lambda v, p: isinstance(v, types.FunctionType) and v.__code__ is p,
                      lambda t, p, v: f"{t} was another function, now it is {short(v)}"),
    "SAME": GuardKind(12, lambda v, p: v is p, lambda t, p, v: f"{t} was one object with another input"),
    "NOT_SAME": GuardKind(13, lambda v, p: v is not p,
                          lambda t, p, v: f"{t} is now one object with another input"),
    "GLOBAL_STATE": GuardKind(14, lambda v, p: True,
                              lambda t, p, v: "torch's global state (grad mode, autocast, default dtype) changed"),
    "CELL_EMPTY": GuardKind(15, lambda v, p: not cell_bound(v), lambda t, p, v: f"{t} was unbound, now it is bound"),
}


def cell_bound(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True
