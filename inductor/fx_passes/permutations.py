"""Gradients of rows that a permutation picks are picked by its inverse.

In: a joint graph of known sizes, functional, with fakes. Out: the same graph (changed in place)
where what `x[perm]` adds up in backward, row by row, to zeros is a read by the inverse permutation,
and what `x[perm // k]` adds up is a sum over k such rows. Experts' layers sort tokens by their
expert and put them back that way. A read is part of the kernel that wants it; additions to memory
are atomic on a GPU, in float32, and are rounded by another kernel.
"""

from __future__ import annotations

import operator
from typing import Any, cast

import torch
from torch import fx

from inductor.fx_passes.calls_with_fakes import Calls
from inductor.fx_passes.zeros import is_zeros

aten = torch.ops.aten
SORTS = (aten.sort.default, aten.sort.stable)
COPIES = (aten._to_copy.default, aten.clone.default, aten.alias.default)
MOST_ROWS = 64  # that are summed for one


def read_by_inverses(module: fx.GraphModule) -> fx.GraphModule:
    """See the top of the file."""
    graph = module.graph
    if not any(graph.find_nodes(op="call_function", target=sort) for sort in SORTS):
        return module
    found, changed = _Permutations(graph), False
    for node in list(graph.find_nodes(op="call_function", target=aten.index_put.default)):
        changed |= found.replace(node)
    if changed:
        graph.eliminate_dead_code()
        module.recompile()
    return module


class _Permutations:
    """origin: of nodes that are permutations of 0 .. n - 1, that of which they are copies, perhaps
    themselves. inverse: of an origin its inverse, if there is one. groups: nodes that are
    `perm // k`, with (perm, k)."""

    def __init__(self, graph: fx.Graph) -> None:
        self.graph = graph
        self.origin: dict[fx.Node, fx.Node] = {}
        self.inverse: dict[fx.Node, fx.Node] = {}
        self.groups: dict[fx.Node, tuple[fx.Node, int]] = {}
        for node in graph.nodes:
            if node.op == "call_function" and isinstance(node.meta.get("val"), torch.Tensor):
                self._learn(node)

    def _learn(self, node: fx.Node) -> None:
        given: Any = node.args[0] if node.args else None
        if node.target is operator.getitem and given.target in SORTS and node.args[1] == 1:
            if node.meta["val"].dim() == 1:
                self.origin[node] = node
        elif node.target in COPIES and given in self.origin:
            if node.meta["val"].dtype in (torch.int64, torch.int32):
                self.origin[node] = self.origin[given]
        elif node.target is aten.index_put.default:
            permutation = self._inverted(node)
            if permutation is not None:
                self.origin[node] = node
                self.inverse[permutation], self.inverse[node] = node, permutation
        elif given in self.origin and _divisor(node) > 1:
            self.groups[node] = (given, _divisor(node))

    def _inverted(self, node: fx.Node) -> fx.Node | None:
        """The permutation at whose places 0, 1, 2 .. are written."""
        indices, values = cast(tuple[Any, Any], node.args[1:3])
        if len(indices) != 1 or node.args[3:] == (True,) or node.kwargs:
            return None
        (index,) = indices
        if index not in self.origin or not counts_up(values):
            return None
        same = node.meta["val"].shape == index.meta["val"].shape == values.meta["val"].shape
        return self.origin[index] if same and node.meta["val"].dtype is torch.int64 else None

    def replace(self, node: fx.Node) -> bool:
        """Whether the additions of a node are reads now."""
        base, indices, values = cast(tuple[Any, Any, Any], node.args[:3])
        if node.args[3:] != (True,) or node.kwargs or len(indices) != 1 or not is_zeros(base):
            return False
        (index,) = indices
        permutation, rows = self.groups.get(index, (index, 1))
        made, given = node.meta["val"], values.meta["val"]
        if permutation not in self.origin or rows > MOST_ROWS:
            return False
        if not made.dtype.is_floating_point:  # sums of small integers are wider
            return False
        permutation = self.origin[permutation]
        count = permutation.meta["val"].shape[0]
        size = (count, *made.shape[1:])
        if given.shape != size or made.shape[0] * rows != count or given.dtype is not made.dtype:
            return False
        call = Calls(node)
        read = call(aten.index.Tensor, values, [self._inverse_of(permutation)])
        if rows > 1:
            read = call(aten.view.default, read, [made.shape[0], rows, *made.shape[1:]])
            read = call(aten.sum.dim_IntList, read, [1])
        node.replace_all_uses_with(read)
        self.graph.erase_node(node)
        return True

    def _inverse_of(self, permutation: fx.Node) -> fx.Node:
        inverse = self.inverse.get(permutation)
        if inverse is None:
            value = permutation.meta["val"]
            call = Calls(permutation, permutation.next)
            empty = call(aten.empty_like.default, permutation)
            numbers = call(aten.arange.default, value.shape[0], device=value.device)
            inverse = call(aten.index_put.default, empty, [permutation], numbers)
            self.inverse[permutation] = inverse
        return inverse


def _divisor(node: fx.Node) -> int:
    """The number by which integers are divided and rounded down; 0 for other nodes."""
    if node.target is aten.div.Tensor_mode:
        rounds = node.kwargs.get("rounding_mode") in ("floor", "trunc")
    else:
        rounds = node.target is aten.floor_divide.default
    if not rounds or len(node.args) != 2 or node.meta["val"].dtype.is_floating_point:
        return 0
    return node.args[1] if type(node.args[1]) is int else 0


def counts_up(node: Any) -> bool:
    """Whether a node is 0, 1, 2 .., as integers."""
    if not isinstance(node, fx.Node) or node.meta["val"].dtype is not torch.int64:
        return False
    if node.target is aten.arange.default:
        return True
    if node.target not in (aten.arange.start, aten.arange.start_step):
        return False
    start, step = node.args[0], node.args[2] if len(node.args) > 2 else 1
    return type(start) is int and start == 0 and type(step) is int and step == 1
