"""Tensors of which each second element is written from one tensor and the others from another.

In: a functional ATen graph with fakes. Out: the same graph (changed in place) where writes into
`x[..., 0::2]` and `x[..., 1::2]` that leave nothing of `x` (or 0::3, 1::3 and 2::3, ..) are one
tensor whose elements alternate, which a kernel computes at once. Rotary embeddings are written so:
as writes in place each was a kernel that stored every second element (32 us for 6 million elements
in bfloat16 on an H200, twice, and zeros before that; 7 us together).

So is a sum of zeros, into each of which one part has been written: what the gradient of a tensor
is of which each second element, or each element of a last dimension, was read apart. Parts that
nothing was written into are zeros.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import copysign
from typing import Any

import torch
from torch import fx

from dynamo.aot.fakes import facts_of, is_fake
from inductor.fx_passes.calls_with_fakes import Calls, is_row_major

aten = torch.ops.aten
WRITE, SELECT, ADD = (
    aten.slice_scatter.default, aten.select_scatter.default, aten.add.Tensor)
ZEROS = {aten.zeros.default, aten.new_zeros.default, aten.zeros_like.default}
FILLED = {aten.full.default, aten.full_like.default, aten.new_full.default}
MOST_PARTS = 8  # whose loads a kernel has side by side (chosen, not measured)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a write goes: to the elements `first`, `first + count`, .. along `dim`; alone: what is
    written has one dimension less."""

    dim: int
    first: int
    count: int
    alone: bool


def interleave_writes(module: fx.GraphModule) -> fx.GraphModule:
    """See the top of the file."""
    changed = False
    for node in [*module.graph.nodes][::-1]:
        if node.op != "call_function" or not node.users or node._erased:
            continue
        parts = None
        if node.target is ADD:
            parts = _parts_of_sum(node)
        elif node.target is WRITE:
            parts = _parts_of(node)
        if parts is not None:
            _replace(module.graph, node, *parts)
            changed = True
    if changed:
        module.graph.eliminate_dead_code()
        module.recompile()
    return module


Parts = tuple[_Place, list[fx.Node | None]]  # of the first write; what alternates, None for zeros


def _parts_of(node: fx.Node) -> Parts | None:
    """What alternates in the result, in order; None where something else is left of it."""
    place = _place_of(node)
    if place is None:
        return None
    found: dict[int, fx.Node] = {}
    one: Any = node
    while isinstance(one, fx.Node) and one.target is WRITE:
        other, source = _place_of(one), one.args[1]
        if other is None or (other.dim, other.count) != (place.dim, place.count):
            break
        if not isinstance(source, fx.Node):
            return None
        found.setdefault(other.first, source)
        if len(found) == place.count:
            return place, [found[n] for n in range(place.count)]
        one = one.args[0]
    return (place, [found.get(n) for n in range(place.count)]) if _is_zero(one) else None


def _parts_of_sum(node: fx.Node) -> Parts | None:
    """The same of a sum of zeros that something was written into."""
    terms: list[Any] = [node]
    found: dict[int, fx.Node] = {}
    place = None
    while terms:
        term = terms.pop()
        if not isinstance(term, fx.Node) or term is not node and len(term.users) != 1:
            return None
        if term.target is ADD:
            if term.kwargs or len(term.args) != 2 or not _is_like(term, node):
                return None
            terms += term.args
            continue
        other = _place_of(term)
        if other is None or not _is_like(term, node) or not _is_zero(term.args[0]):
            return None
        place = place or other
        source = term.args[1]
        alike = (other.dim, other.count, other.alone) == (place.dim, place.count, place.alone)
        if not alike or other.first in found or not isinstance(source, fx.Node):
            return None
        found[other.first] = source
    return None if place is None else (place, [found.get(n) for n in range(place.count)])


def _is_like(node: fx.Node, other: fx.Node) -> bool:
    one, two = node.meta.get("val"), other.meta.get("val")
    if not is_fake(one) or not is_fake(two):
        return False
    one, two = facts_of(one), facts_of(two)
    return one.dtype is two.dtype and one.size == two.size


def _is_zero(node: Any) -> bool:
    if not isinstance(node, fx.Node) or node.target not in ZEROS | FILLED:
        return False
    if node.target in ZEROS:
        return True
    value: Any = node.args[2 if node.target is aten.new_full.default else 1]
    return type(value) in (int, float, bool) and not value and copysign(1.0, value) > 0


def _place_of(node: fx.Node) -> _Place | None:
    """None where a write does not go to the end, or the parts are not of one length, or few, or the
    result lies otherwise in memory."""
    value = node.meta.get("val")
    if node.target not in (WRITE, SELECT) or node.kwargs or not is_fake(value):
        return None
    if not _is_dense(value):
        return None
    size = facts_of(value).size
    if node.target is SELECT:
        dim, first = node.args[2:]
        if type(dim) is not int or type(first) is not int or dim % len(size) != len(size) - 1:
            return None
        count = size[-1]
        few = 1 < count <= MOST_PARTS
        return _Place(dim % len(size), first % count, count, True) if few else None
    given: list[Any] = [*node.args[2:]]
    dim, begin, end, step = given + [0, None, None, 1][len(given) :]
    begin = begin or 0
    if not all(type(n) is int for n in (dim, begin, step)):
        return None
    axis = dim % len(size)
    whole = end is None or type(end) is int and end >= size[axis]
    fits = whole and 0 <= begin < step and size[axis] % step == 0
    return _Place(axis, begin, step, False) if fits and 1 < step <= MOST_PARTS else None


def _is_dense(value: Any) -> bool:
    """Whether elements lie in the order of the indices, in known sizes."""
    facts = facts_of(value)
    numbers = (*facts.size, *facts.stride)
    return all(type(number) is int for number in numbers) and is_row_major(value)


def _replace(
    graph: fx.Graph, node: fx.Node, place: _Place, parts: list[fx.Node | None]
) -> None:
    facts, call = facts_of(node.meta["val"]), Calls(node)
    of_part = [*facts.size]
    of_part[place.dim] //= len(parts)
    if place.alone:
        del of_part[place.dim]

    wide = []
    for part in parts:
        source: Any = part
        if source is None:
            source = call(aten.full.default, of_part, 0, dtype=facts.dtype, device=facts.device)
        source = call.written(source, of_part, facts.dtype)
        if node.target is ADD and part is not None:  # which makes zeros positive
            source = call(ADD, source, 0)
        wide.append(call(aten.unsqueeze.default, source, place.dim + (not place.alone)))
    total = call(aten.cat.default, wide, place.dim + (not place.alone))
    if not place.alone:
        total = call(aten.view.default, total, [*facts.size])
    node.replace_all_uses_with(total)
    graph.erase_node(node)
