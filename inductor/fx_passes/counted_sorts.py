"""Sorts of numbers from a small range, by counting: tokens by their experts.

In: a functional ATen graph of known sizes for a GPU, with fakes. Out: the same graph (changed in
place) where a long row of integers is sorted, in ascending order, without comparing: if each of
them is known to lie in 0 .. n - 1 for a small n, as places among the n columns of a `topk` do. An
element's place is the number of smaller ones, and of equal ones before it: counts in blocks of
the row, a cumulative sum over them, and comparisons within the block. Equal elements keep their
order, as a stable sort has it. A library's sort knows nothing of the range, and sorts by all bits.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import torch
from torch import fx

from dynamo.aot.fakes import facts_of, is_fake
from inductor.fx_passes.calls_with_fakes import Calls
from inductor.fx_passes.fakes import on_gpu

aten = torch.ops.aten
SORTS = (aten.sort.default, aten.sort.stable)
# Chosen, not measured: elements, each compared with all of its block; a shorter row is sorted in
# one kernel; so many counts have one sum.
BLOCK = 64
FEWEST, MOST = 1 << 10, 1 << 20
MOST_KINDS, MOST_COUNTS = 512, 1 << 17
# What gives elements of its first operand, and no others.
PICKS = frozenset((
    aten.view.default, aten._unsafe_view.default, aten.reshape.default, aten.clone.default,
    aten.alias.default, aten.detach.default, aten.expand.default, aten.permute.default,
    aten.transpose.int, aten.t.default, aten.unsqueeze.default, aten.squeeze.default,
    aten.squeeze.dim, aten.squeeze.dims, aten.slice.Tensor, aten.select.int, aten.flip.default,
    aten.index.Tensor, aten.gather.default, aten.index_select.default, aten.repeat.default,
))  # fmt: skip
INTEGERS = (torch.int16, torch.int32, torch.int64)  # that hold any number of kinds


def sort_by_counts(module: fx.GraphModule) -> fx.GraphModule:
    """See the top of the file. Not in deterministic mode, where kernels store at no places that
    are computed."""
    if torch.are_deterministic_algorithms_enabled():
        return module
    found = False
    for target in SORTS:
        for node in module.graph.find_nodes(op="call_function", target=target):
            found |= _replace(node)
    if found:
        module.graph.eliminate_dead_code()
        module.recompile()
    return module


def _replace(node: fx.Node) -> bool:
    x: Any = node.args[0]
    facts = facts_of(x.meta["val"])
    if not on_gpu(facts.device) or len(facts.size) != 1 or _is_descending(node):
        return False
    if any(user.target is not operator.getitem for user in node.users):
        return False
    (size,) = facts.size
    if type(size) is not int or not FEWEST < size <= MOST:
        return False
    kinds = bound_of(x)
    if not 0 < kinds <= min(MOST_KINDS, MOST_COUNTS * BLOCK // size):
        return False
    writer = _Writer(node)
    origin = writer.origins(writer.places(x, size, kinds), size)
    values = writer.call(aten._unsafe_index.Tensor, x, [origin])
    for user in [*node.users]:
        user.replace_all_uses_with(origin if user.args[1] == 1 else values)
    return True


def _is_descending(node: fx.Node) -> bool:
    rest = node.args[2:] if node.target is aten.sort.default else ()
    return bool(rest and rest[0] or node.kwargs.get("descending", False))


def bound_of(node: fx.Node) -> int:
    """n where each element of an integer tensor lies in 0 .. n - 1; 0 where that is not known."""
    if not is_fake(node.meta.get("val")) or node.op != "call_function":
        return 0
    if facts_of(node.meta["val"]).dtype not in INTEGERS:
        return 0
    given: Any = node.args[0] if node.args else None
    if node.target in PICKS or node.target is aten._to_copy.default:
        return bound_of(given)
    if node.target in (aten.argmax.default, aten.argmin.default):
        return _extent(node, 1, None)
    if node.target is operator.getitem and node.args[1] == 1:
        if given.target is aten.topk.default:
            return _extent(given, 2, -1)
        if given.target in (aten.max.dim, aten.min.dim):
            return _extent(given, 1, None)
    return 0


def _extent(node: fx.Node, place: int, default: Any) -> int:
    """Of what a call reads, along its dimension. place: of that among the arguments."""
    dim: Any = node.kwargs.get("dim", node.args[place] if len(node.args) > place else default)
    size = facts_of(node.args[0].meta["val"]).size  # type: ignore[union-attr]
    extent = math.prod(size) if dim is None else size[dim] if size else 0
    return extent if type(extent) is int else 0


class _Writer:
    """Adds operations before a sort."""

    def __init__(self, node: fx.Node) -> None:
        self.device = facts_of(node.args[0].meta["val"]).device  # type: ignore[union-attr]
        self.call = Calls(node)

    def count(self, number: int, dtype: torch.dtype) -> fx.Node:
        return self.call(aten.arange.default, number, dtype=dtype, device=self.device)

    def places(self, x: fx.Node, size: int, kinds: int) -> fx.Node:
        """Where each element goes."""
        call, int32 = self.call, torch.int32
        blocks = -(-size // BLOCK)
        narrow = call(aten._to_copy.default, x, dtype=int32)
        whole = narrow
        if blocks * BLOCK > size:
            whole = call(aten.constant_pad_nd.default, narrow, [0, blocks * BLOCK - size], kinds)
        rows = call(aten.view.default, whole, [blocks, BLOCK])
        kind = call(aten.view.default, self.count(kinds, int32), [kinds, 1, 1])
        equal = call(aten.eq.Tensor, call(aten.unsqueeze.default, rows, 0), kind)
        counts = call(aten.sum.dim_IntList, equal, [2], dtype=int32)
        counts = call(aten.view.default, counts, [kinds * blocks])
        ends = call(aten.cumsum.default, counts, 0, dtype=int32)
        within = self.count(BLOCK, int32)
        before = call(aten.lt.Tensor, within, call(aten.unsqueeze.default, within, 1))
        alike = call(aten.eq.Tensor, call(aten.unsqueeze.default, rows, 1),
                     call(aten.unsqueeze.default, rows, 2))
        rank = call(
            aten.view.default, call(
                aten.sum.dim_IntList, call(aten.bitwise_and.Tensor, alike, before), [2],
                dtype=int32),
            [blocks * BLOCK])
        rank = call(aten.slice.Tensor, rank, 0, 0, size)
        block = call(aten.div.Tensor_mode, self.count(size, int32), BLOCK, rounding_mode="floor")
        at = call(aten.add.Tensor, call(aten.mul.Tensor, narrow, blocks), block)
        start = call(
            aten.sub.Tensor, call(aten._unsafe_index.Tensor, ends, [at]),
            call(aten._unsafe_index.Tensor, counts, [at]))
        return call(aten.add.Tensor, start, rank)

    def origins(self, places: fx.Node, size: int) -> fx.Node:
        """Which element goes to each place."""
        empty = self.call(
            aten.empty.memory_format, [size], dtype=torch.int64, device=self.device)
        return self.call(
            aten.index_put.default, empty, [places], self.count(size, torch.int64))
