"""What a graph of inference computes from steady inputs alone is computed once, not at each call.

In: a functional ATen graph with fakes, and the positions of inputs that hardly ever change. Out: a
graph that reads further inputs in the place of such values, and what these hold: the values that
ATen computes from the steady inputs by the same operations, made again when one of these has
changed (`freezing.py`). Examples are standardised weights, attention biases that are looked up in a
table, projections of positions, weights in another dtype.

Taken is what ends in a value that others read, if making it costs more than reading it: a library
call, a sum or a lookup is among its operations, or a library reads it. The results of a graph are
made at each call: the caller may write into them.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from dynamo.aot.fakes import bytes_of, facts_of, is_fake
from dynamo.aot.graphs import LazyGraph, is_effect, make_module
from dynamo.aot.plain_graphs import CachedGraph
from inductor.fx_passes.places import base_of, device_kind, is_view
from inductor.ir.graph import Prepared

aten = torch.ops.aten
OpOverload = torch._ops.OpOverload
READ_BY_LIBRARIES = {
    aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default,
    aten.convolution.default,
}  # fmt: skip
# Copies and numbers, which any kernel makes on the way.
CHEAP = set(
    """clone _to_copy cat arange full full_like zeros zeros_like ones ones_like scalar_tensor
    constant_pad_nd lift_fresh_copy tril triu eye linspace""".split()
)
# Their contents are whatever lies there.
UNWRITTEN = ("empty", "new_empty", "resize")
# A value that is larger than what it is made of may take so much memory.
MOST_BYTES = 1 << 24


def compute_constants_once(
    module: fx.GraphModule, steady: Collection[int], room: int
) -> tuple[fx.GraphModule, tuple[Prepared, ...], int]:
    """See the top of the file; the module itself is left as it is. room: bytes that all values may
    take; what they take comes back, too."""
    places = [node for node in module.graph.nodes if node.op == "placeholder"]
    if not steady or any(device_kind(node) not in ("cpu", "") for node in module.graph.nodes):
        return module, (), 0
    known: dict[fx.Node, fx.Node] = {}
    graph = fx.Graph()
    graph.output(graph.graph_copy(module.graph, known))
    found = _Finder(graph, [known[node] for node in places], steady).values(room)
    if not found:
        return module, (), 0
    changed = LazyGraph(module, graph)
    changed.meta.update(module.meta)
    prepared = [_take(changed, node) for node in found]
    for node in reversed(graph.nodes):
        if not node.users and node.op != "placeholder" and not is_effect(node):
            graph.erase_node(node)
    graph.lint()
    changed.recompile()
    return changed, tuple(prepared), sum(map(_bytes, found))


class _Finder:
    def __init__(
        self, graph: fx.Graph, places: Sequence[fx.Node], steady: Collection[int]
    ) -> None:
        self.graph = graph
        written = {node.args[0] for node in graph.nodes if node.target is aten.copy_.default}
        self.sources = {
            node for position, node in enumerate(places)
            if position in steady and node not in written and is_fake(node.meta.get("val"))
        }  # fmt: skip
        # Constant values, and of each the largest source; 0 where it has none.
        self.constant: dict[fx.Node, int] = {node: _bytes(node) for node in self.sources}
        self.dear: set[fx.Node] = set()  # constants that took more than one pass over memory

    def values(self, room: int) -> list[fx.Node]:
        """What is to be computed once, in order."""
        for node in self.graph.nodes:
            self._look_at(node)
        found: dict[fx.Node, None] = {}
        (end,) = (node for node in self.graph.nodes if node.op == "output")
        results = set(map(base_of, end.all_input_nodes))
        for node in self.graph.nodes:
            if node in self.constant:
                continue
            for given in node.all_input_nodes:
                base = base_of(given)
                if base in results or not self._is_worth_it(base, node):
                    continue
                if base not in found and _bytes(base) <= room:
                    room -= _bytes(base)
                    found[base] = None
        order = {node: number for number, node in enumerate(self.graph.nodes)}
        return sorted(found, key=order.__getitem__)

    def _look_at(self, node: fx.Node) -> None:
        if node.op == "get_attr":
            self.constant[node] = 0
            return
        given = node.all_input_nodes
        if node.op != "call_function" or any(one not in self.constant for one in given):
            return
        if not _is_plain(node):
            return
        self.constant[node] = max((self.constant[one] for one in given), default=0)
        if not _is_cheap(node) or any(one in self.dear for one in given):
            self.dear.add(node)

    def _is_worth_it(self, base: fx.Node, reader: fx.Node) -> bool:
        """Whether a value that `reader` reads is computed once."""
        source = self.constant.get(base, 0)
        if base.op != "call_function" or not source or not is_fake(base.meta.get("val")):
            return False
        if _bytes(base) > max(2 * source, MOST_BYTES):
            return False
        return base in self.dear or reader.target in READ_BY_LIBRARIES


def _is_plain(node: fx.Node) -> bool:
    """Whether it is an operation of ATen that gives tensors, the same at each call, or one of these
    tensors."""
    target = node.target
    if target is operator.getitem:
        return True
    if not isinstance(target, OpOverload) or target.namespace not in ("aten", "prims"):
        return False
    if is_effect(node) or target._schema.is_mutable or _name(target).startswith(UNWRITTEN):
        return False
    value: Any = node.meta.get("val")
    values = value if isinstance(value, (list, tuple)) else (value,)
    return all(map(is_fake, values))


def _is_cheap(node: fx.Node) -> bool:
    """Whether it costs no more than to read its result."""
    target = node.target
    if target is operator.getitem or is_view(node):
        return True
    assert isinstance(target, OpOverload)
    return torch.Tag.pointwise in target.tags or _name(target) in CHEAP


def _name(target: OpOverload) -> str:
    return target._schema.name.partition("::")[2]


def _bytes(node: fx.Node) -> int:
    value = node.meta.get("val")
    return bytes_of(value) if is_fake(value) else 0


def _take(module: fx.GraphModule, node: fx.Node) -> Prepared:
    """A further input in the place of a value."""
    places = [each for each in module.graph.nodes if each.op == "placeholder"]
    needed = _needed(node)
    given = [place for place in places if place in needed]
    positions = tuple(n for n, place in enumerate(places) if place in needed)
    part = _part(module, [each for each in module.graph.nodes if each in needed], node)
    facts = facts_of(node.meta["val"])
    assert len(given) == len(positions)
    with module.graph.inserting_after(places[-1]):
        new = module.graph.placeholder(f"{node.name}_once")
    new.meta = dict(node.meta)
    node.replace_all_uses_with(new)
    strides = tuple(facts.size), tuple(facts.stride)
    return Prepared(positions, functools.partial(_computed, CachedGraph(part), *strides))


def _needed(node: fx.Node) -> set[fx.Node]:
    """What a node is computed from, itself too."""
    found, work = {node}, [node]
    while work:
        for given in work.pop().all_input_nodes:
            if given not in found:
                found.add(given)
                work.append(given)
    return found


def _part(module: fx.GraphModule, nodes: Iterable[fx.Node], result: fx.Node) -> fx.GraphModule:
    """The graph that computes `result`."""
    graph, known = fx.Graph(), dict[fx.Node, fx.Node]()
    constants: dict[str, Tensor] = {}
    for node in nodes:
        known[node] = graph.node_copy(node, known.__getitem__)
        known[node].meta = {"val": node.meta["val"]} if "val" in node.meta else {}
        if node.op == "get_attr":
            constants[str(node.target)] = getattr(module, str(node.target))
    graph.output(known[result])
    return make_module(graph, constants)


def _computed(
    part: CachedGraph, size: tuple[int, ...], stride: tuple[int, ...], *given: Tensor
) -> Tensor:
    """The value, in memory of its own, with the strides that the graph expects."""
    value = part.module().forward(*given)
    if value.stride() == stride and value.untyped_storage().nbytes() == value.nbytes:
        return value
    return torch.empty_strided(size, stride, dtype=value.dtype).copy_(value)
