"""What a boolean mask of attention says: causal, a window, and masks that are smaller than it.

In: the node of a mask in a captured graph. Out: `MaskParts`, if the mask is a conjunction of which
something is known: a comparison of positions that a kernel needs no memory for, and the other
parts as they were before they were combined (mostly which keys are padding, the same for all
queries). Programs build such masks from `arange`, comparisons, `&`, and `expand`.

Axes are counted from the last one, as tensors are broadcast: -1 are the keys, -2 the queries.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from inductor.fx_passes.attention.patterns import WRITES

MOST_NODES = 64  # behind a mask; more are not looked at
QUERIES, KEYS = -2, -1


@dataclass(frozen=True, slots=True)
class MaskParts:
    """A mask as a conjunction. causal: no later keys. window: keys of less than this distance
    behind the query; 0: all. rest: nodes of boolean tensors that broadcast to the mask."""

    causal: bool
    window: int
    rest: tuple[fx.Node, ...]


@dataclass(frozen=True, slots=True)
class _Positions:
    """offset + the index along an axis of so many elements; a number where axis is 0."""

    offset: int
    rank: int = 0
    axis: int = 0
    length: int = 1

    @property
    def most(self) -> int:
        return self.offset + self.length - 1


@dataclass(frozen=True, slots=True)
class _Behind:
    """The index along axis `ahead` is at least `least` more than that along `back`."""

    node: fx.Node
    ahead: int
    back: int
    least: int


@dataclass(frozen=True, slots=True)
class _All:
    """All of these: comparisons, and nodes of which nothing is known."""

    parts: tuple[_Behind | fx.Node, ...] = ()


_Known = _Positions | _All | None


def parts_of(mask: fx.Node, attention: fx.Node) -> MaskParts | None:
    """What is known of a mask where the attention reads it; None where it may as well read it as
    it is."""
    reader = _Reader()
    found = reader.read(mask)
    if not isinstance(found, _All):
        return None
    causal, window, rest = False, 0, []
    for part in dict.fromkeys(found.parts):
        if isinstance(part, fx.Node):
            rest.append(part)
        elif (part.ahead, part.back) == (QUERIES, KEYS) and part.least == 0:
            causal = True
        elif (part.ahead, part.back) == (KEYS, QUERIES) and part.least <= 0:
            window = min(window or 1 - part.least, 1 - part.least)
        else:
            rest.append(part.node)
    if rest == [mask] or _is_written([*rest, *reader.known], attention):
        return None
    return MaskParts(causal, window, tuple(rest))


def _is_written(nodes: list[fx.Node], attention: fx.Node) -> bool:
    """Whether a mask or a position may be written between these nodes and the attention. A write
    must name what it writes, or a view of that."""
    graph = list(attention.graph.nodes)
    first = min(map(graph.index, nodes))
    return any(map(_may_write, graph[first : graph.index(attention)]))


def _may_write(node: fx.Node) -> bool:
    """Whether a call may write a tensor of booleans or integers."""
    if node.op not in ("call_function", "call_method"):
        return node.op == "call_module"
    writes = not node.users or "out" in node.kwargs or bool(node.kwargs.get("inplace"))
    if node.op == "call_function" and node.target in vars(operator).values():
        writes |= node.target in WRITES
    else:
        name = _name_of(node)
        writes |= name.endswith("_") and not name.endswith("__")
    return writes and any(map(_may_be_whole, node.all_input_nodes))


def _may_be_whole(node: fx.Node) -> bool:
    """Also where nothing is known."""
    value = node.meta.get("example_value", node.meta.get("val"))
    if not isinstance(value, torch.Tensor):
        return True
    return not (value.dtype.is_floating_point or value.dtype.is_complex)


def _name_of(node: fx.Node) -> str:
    return str(node.target if node.op == "call_method" else getattr(node.target, "__name__", ""))


def _operation_of(node: fx.Node) -> str:
    """The name of a method, operator or function of torch that writes nothing."""
    name = _name_of(node)
    if node.op == "call_function":
        if getattr(operator, name, None) is node.target:
            return name.strip("_")
        if getattr(torch, name, None) is not node.target:
            return ""
    return "" if name.endswith("_") and not name.endswith("__") else name.strip("_")


# -- reading a graph ------------------------------------------------------------------------------


@dataclass(slots=True)
class _Reader:
    """What is known of nodes; of a mask at most `MOST_NODES` are looked at."""

    known: dict[fx.Node, _Known] = field(default_factory=dict)

    def read(self, node: Any) -> _Known:
        if type(node) is int:
            return _Positions(node)
        if not isinstance(node, fx.Node) or node.op not in ("call_function", "call_method"):
            return None
        if node not in self.known and len(self.known) < MOST_NODES:
            self.known[node] = None
            rule = RULES.get(_operation_of(node))
            self.known[node] = None if rule is None else rule(self, node)
        return self.known.get(node)

    def all_of(self, node: Any) -> _All | None:
        """A tensor as a conjunction, which it may be the only part of."""
        found = self.read(node)
        if isinstance(found, _All):
            return found
        return _All((node,)) if isinstance(node, fx.Node) else None


def _arange(reader: _Reader, node: fx.Node) -> _Known:
    if node.op != "call_function" or not node.kwargs.keys() <= {"device", "dtype"}:
        return None
    if node.kwargs.get("dtype", torch.int64) not in (torch.int64, torch.int32, None):
        return None
    numbers = (0, *node.args) if len(node.args) == 1 else node.args
    if len(numbers) != 2 or any(type(number) is not int for number in numbers):
        return None
    first, last = numbers
    if last - first < 2:  # type: ignore[operator]
        return _Positions(first, 1) if last - first == 1 else None  # type: ignore[arg-type, operator]
    return _Positions(first, 1, -1, last - first)  # type: ignore[arg-type, operator]


def _shifted(sign: int) -> Callable[[_Reader, fx.Node], _Known]:
    def rule(reader: _Reader, node: fx.Node) -> _Known:
        if node.kwargs or len(node.args) != 2:
            return None
        found, number = reader.read(node.args[0]), node.args[1]
        if type(number) is not int and sign > 0:
            found, number = reader.read(node.args[1]), node.args[0]
        if not isinstance(found, _Positions) or type(number) is not int:
            return None
        return _Positions(found.offset + sign * number, found.rank, found.axis, found.length)

    return rule


def _unsqueezed(reader: _Reader, node: fx.Node) -> _Known:
    found, *rest = (reader.read(node.args[0]), *node.args[1:])
    dim = rest[0] if len(rest) == 1 and not node.kwargs else node.kwargs.get("dim")
    if type(dim) is not int:
        return None
    if isinstance(found, _All):
        return found if dim == 0 else None
    if not isinstance(found, _Positions):
        return None
    dim = dim if dim >= 0 else dim + found.rank + 1
    return _turned(found, [None if at == dim else slice(None) for at in range(found.rank + 1)])


def _indexed(reader: _Reader, node: fx.Node) -> _Known:
    """New axes, and nothing else."""
    if len(node.args) != 2:
        return None
    found, index = reader.read(node.args[0]), node.args[1]
    index = list(index) if isinstance(index, (tuple, list)) else [index]
    if any(part is not None and part != slice(None) for part in index):
        return None
    if isinstance(found, _All):
        firsts = index.index(slice(None)) if slice(None) in index else len(index)
        return found if None not in index[firsts:] else None
    return _turned(found, index) if isinstance(found, _Positions) else None


def _turned(positions: _Positions, index: list[Any]) -> _Known:
    """Positions with new axes where the index has None."""
    missing = positions.rank - sum(part is not None for part in index)
    if missing < 0:
        return None
    index = index + [slice(None)] * missing
    old = [at for at, part in enumerate(index) if part is not None]
    axis = old[positions.axis] - len(index) if positions.axis else 0
    return _Positions(positions.offset, len(index), axis, positions.length)


def _compared(positive: bool, least: int) -> Callable[[_Reader, fx.Node], _Known]:
    """first - second, or the other way around, is at least this."""

    def rule(reader: _Reader, node: fx.Node) -> _Known:
        if node.kwargs or len(node.args) != 2:
            return None
        ahead, back = map(reader.read, node.args if positive else node.args[::-1])
        if not isinstance(ahead, _Positions) or not isinstance(back, _Positions):
            return None
        if ahead.offset - back.most >= least:
            return _All()
        if not ahead.axis or not back.axis or ahead.axis == back.axis:
            return _All((node,))
        wanted = least - ahead.offset + back.offset
        return _All((_Behind(node, ahead.axis, back.axis, wanted),))

    return rule


def _both(reader: _Reader, node: fx.Node) -> _Known:
    if node.kwargs or len(node.args) != 2:
        return None
    first, second = map(reader.all_of, node.args)
    return None if first is None or second is None else _All((*first.parts, *second.parts))


def _ones(reader: _Reader, node: fx.Node) -> _Known:
    return _All() if node.kwargs.get("dtype") is torch.bool else None


def _expanded(reader: _Reader, node: fx.Node) -> _Known:
    """The same where it is broadcast."""
    return reader.all_of(node.args[0])


RULES: dict[str, Callable[[_Reader, fx.Node], _Known]] = {
    "arange": _arange, "add": _shifted(1), "sub": _shifted(-1), "unsqueeze": _unsqueezed,
    "getitem": _indexed, "ge": _compared(True, 0), "gt": _compared(True, 1),
    "le": _compared(False, 0), "lt": _compared(False, 1), "and": _both, "bitwise_and": _both,
    "logical_and": _both, "new_ones": _ones, "ones": _ones, "expand": _expanded,
}  # fmt: skip
