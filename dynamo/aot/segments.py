"""A backward graph cut into segments, each of which gives some of the gradients.

In: a backward graph and which gradients belong together. Out: a graph for each of these, in order.
A segment takes what the whole graph takes and what segments before it have computed, and gives its
gradients, then what later ones need. Whoever runs them in order may let go of each segment's
gradients at once: another process can have them while the rest is computed.

- Views are made again, from what they are views of: what is handed on has memory of its own.
- No value that is handed on shares memory with a gradient, which others may write into at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import fx

from dynamo.aot.fakes import (
    bytes_of,
    is_fake,
    is_symbolic_number,
    number_at,
    storage_key,
    symbols_of,
)
from dynamo.aot.graphs import must_run
from dynamo.aot.joint import viewed
from dynamo.aot.numbers import NumberNodes
from dynamo.aot.partition import DIES, finish_half
from dynamo.aot.records import Place, SymbolTable

aten = torch.ops.aten
Cut = tuple[tuple[int, ...], ...]
"""The gradients (their places in the backward graph's results) of each segment."""


@dataclass(frozen=True, slots=True)
class Segment:
    """module: gives the gradients of a segment, then the values that it adds.

    takes: where its arguments lie among the values: those that the whole graph takes, its symbols
    (`places_of_symbols`), then what the segments before have added. last: those of the values that
    no later segment takes.
    """

    module: fx.GraphModule
    takes: tuple[int, ...]
    last: tuple[int, ...]


def may_be_cut(module: fx.GraphModule) -> bool:
    """False for a graph with effects, whose order counts."""
    return not any(node.op == "call_function" and must_run(node) for node in module.graph.nodes)


def places_of_symbols(module: fx.GraphModule) -> dict[Any, Place]:
    """Where the values of symbols are read among what the whole graph takes, in the order in which
    they stand among the values. Tensors tell them only as long as they are there."""
    return dict(module.meta["symbols"].symbols) if "symbols" in module.meta else {}


def choose_cut(
    module: fx.GraphModule, there: Iterable[int], counted: Iterable[int], limits: Sequence[int]
) -> Cut:
    """Segments that end where a bucket is full.

    there: the gradients that there are, in order. counted: those that go into buckets. limits:
    bytes after which a bucket is full; the last one is that of all further buckets.
    """
    results: Any = module.graph.output_node().args[0]
    in_buckets = set(counted)
    found: list[list[int]] = [[]]
    full, filled = list(reversed(limits)), 0
    for at in there:
        found[-1].append(at)
        filled += bytes_of(results[at].meta["val"]) if at in in_buckets else 0
        if filled >= full[-1]:
            found.append([])
            filled = 0
            if len(full) > 1:
                full.pop()
    if len(found) > 1 and not in_buckets.intersection(found[-1]):
        rest = found.pop()
        found[-1] += rest
    return tuple([tuple(part) for part in found])


def cut_backward(module: fx.GraphModule, cut: Cut) -> tuple[Segment, ...]:
    """The segments. The module's own graph stays as it is."""
    return _Cutting(module, cut).segments()


class _Cutting:
    """owner: the segment that computes a node first, or -1 for what the whole graph takes."""

    def __init__(self, module: fx.GraphModule, cut: Cut) -> None:
        self.module, self.cut = module, cut
        results: Any = module.graph.output_node().args[0]
        self.results: Sequence[fx.Node | None] = results
        self.given = [node for node in module.graph.nodes if node.op == "placeholder"]
        self.owner: dict[fx.Node, int] = {node: -1 for node in self.given}
        self.nodes: list[set[fx.Node]] = []
        self.taken: list[set[fx.Node]] = []
        for number, part in enumerate(cut):
            self.find(number, [self.results[at] for at in part])
        self.places = places_of_symbols(module)
        self.gradients = {storage_key(node.meta["val"]) for node in self.results
                          if node is not None}  # fmt: skip

    def find(self, number: int, roots: list[fx.Node | None]) -> None:
        """What a segment computes, and what it takes."""
        nodes, taken = set[fx.Node](), set[fx.Node]()
        work = [root for root in roots if root is not None]
        while work:
            node = work.pop()
            if node in nodes or node in taken or is_symbolic_number(node.meta["val"]):
                continue
            owner = None if is_free(node) else self.owner.setdefault(node, number)
            if owner not in (None, number):
                taken.add(node)
                continue
            nodes.add(node)
            work.extend(node.all_input_nodes)
            if owner is not None and not is_fake(node.meta["val"]):
                work.extend(node.users)  # one of several results can be handed on, all can not
        self.nodes.append(nodes)
        self.taken.append(taken)

    def segments(self) -> tuple[Segment, ...]:
        values: dict[fx.Node, int] = {node: at for at, node in enumerate(self.given)}
        final = {node: number for number, taken in enumerate(self.taken) for node in taken}
        found = []
        for number in range(len(self.cut)):
            added = [node for node in self.module.graph.nodes
                     if self.owner.get(node) == number and node in final]  # fmt: skip
            takes = [node for node in values if node in self.taken[number]]
            last = [at for node, at in values.items()
                    if final.get(node, 0) == number]  # fmt: skip
            part, symbols = self.extract(number, takes, added, final)
            places = [values[node] for node in takes] + [len(self.given) + at for at in symbols]
            found.append(Segment(part, tuple(places), tuple(last)))
            for node in added:
                values[node] = len(values) + len(self.places)
        return tuple(found)

    def extract(
        self, number: int, takes: list[fx.Node], added: list[fx.Node], final: dict[fx.Node, int]
    ) -> tuple[fx.GraphModule, list[int]]:
        """The graph, and which of the symbols it takes."""
        graph = fx.Graph()
        env: dict[fx.Node, fx.Node] = {}
        for node in takes:
            env[node] = graph.placeholder(node.name)
            env[node].meta = {"val": node.meta["val"]}
            is_ours = node.op != "placeholder" or DIES in node.meta
            if is_ours and final[node] == number:
                env[node].meta[DIES] = True
        symbols = self.symbols(graph, [*takes, *self.nodes[number]])
        first = len(takes)
        places = {symbol: (first + at, None) for at, symbol in enumerate(symbols)}
        numbers = NumberNodes(graph, places)

        def copied(node: fx.Node) -> Any:
            value = node.meta["val"]
            return numbers.node(value) if is_symbolic_number(value) else env[node]

        for node in self.module.graph.nodes:
            if node in self.nodes[number]:
                env[node] = graph.node_copy(node, copied)
        outputs = [self.gradient(graph, env, number, at) for at in self.cut[number]]
        outputs += [self.apart(graph, env[node], node) for node in added]
        part = finish_half(self.module, graph, outputs)
        if symbols:
            assumed = self.module.meta["symbols"].assumptions
            assumed = tuple([one for one in assumed if one.free_symbols <= places.keys()])
            part.meta["symbols"] = SymbolTable(MappingProxyType(places), assumed)
        return part, [at for at, symbol in enumerate(self.places) if symbol in places]

    def symbols(self, graph: fx.Graph, nodes: list[fx.Node]) -> list[Any]:
        """The symbols that these nodes need, which become inputs of the graph."""
        read = [*nodes, *(given for node in nodes for given in node.all_input_nodes)]
        wanted = symbols_of(node.meta["val"] for node in read)
        found = [symbol for symbol in self.places if symbol in wanted]
        for number, symbol in enumerate(found):
            index, dim = self.places[symbol]
            value = self.given[index].meta["val"]
            node = graph.placeholder(f"size_{number}")
            node.meta["val"] = number_at(value, dim)
        return found

    def gradient(
        self, graph: fx.Graph, env: dict[fx.Node, fx.Node], number: int, at: int
    ) -> fx.Node | None:
        """A gradient, in memory that this segment has made."""
        node = self.results[at]
        if node is None:
            return None
        root: fx.Node | None = node
        while root is not None and self.owner.get(root) is None:
            root = viewed(root)
        if root is not None and self.owner[root] == number and root not in self.taken[number]:
            return env[node]
        return _copied(graph, env[node], node)

    def apart(self, graph: fx.Graph, copy: fx.Node, node: fx.Node) -> fx.Node:
        """What is handed on, in memory of its own."""
        shares = storage_key(node.meta["val"]) in self.gradients
        return _copied(graph, copy, node) if shares else copy


def _copied(graph: fx.Graph, copy: fx.Node, node: fx.Node) -> fx.Node:
    made = graph.call_function(aten.clone.default, (copy,))
    made.meta = {"val": node.meta["val"]}
    return made


def is_free(node: fx.Node) -> bool:
    """True for what each segment makes for itself: views, constants, numbers."""
    return node.op == "get_attr" or viewed(node) is not None
