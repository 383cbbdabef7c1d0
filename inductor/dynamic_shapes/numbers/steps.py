"""Training steps whose learning rate may change: floats among the inputs of a graph that computes
gradients.

In: such a graph. Out: a callable like it. While the floats are those of the first call, the graph
is compiled as a whole, with them as constants. For others it is cut, when the first of them comes,
where a float is first used: what comes before holds for all floats, the rest is compiled for each.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from dynamo.aot.records import Unsupported
from dynamo.graph_operators.gradients import GRADIENTS, has_gradients
from inductor.dynamic_shapes.numbers.lift import number_nodes
from inductor.dynamic_shapes.subgraph import CompileSubgraph
from inductor.dynamic_shapes.subgraphs import compile_parts

Compiled = Callable[..., Any]
CompileGraph = Callable[[fx.GraphModule, list[Any]], Compiled]


def has_rates(gm: fx.GraphModule, inputs: list[Any]) -> bool:
    """True where a graph computes gradients, and has floats among its inputs."""
    return any(type(value) is float for value in inputs) and has_gradients(gm)


class Step:
    """compile_graph: compiles a graph as usual; compile_subgraph: a part whose inputs come
    later."""

    not_cacheable = "it is a step that is compiled for its rates"

    def __init__(
        self, gm: fx.GraphModule, inputs: list[Any], compile_graph: CompileGraph,
        compile_subgraph: CompileSubgraph,
    ) -> None:
        self.gm, self.compile_graph, self.compile_subgraph = gm, compile_graph, compile_subgraph
        floats = [at for at, value in enumerate(inputs) if type(value) is float]
        self.floats, self.others = floats, [at for at in range(len(inputs)) if at not in floats]
        self.bytes_of = struct.Struct(f"{len(floats)}d").pack
        self.known = self._key(inputs)
        values = {at: inputs[at] for at in floats}
        self.whole = compile_graph(with_constants(gm, values), [inputs[at] for at in self.others])
        self.parts: Compiled | None = None
        self.lock = threading.Lock()

    def _key(self, inputs: Any) -> bytes:
        return self.bytes_of(*[inputs[at] for at in self.floats])

    def __call__(self, *inputs: Any) -> Any:
        if self._key(inputs) == self.known:
            return self.whole(*[inputs[at] for at in self.others])
        if self.parts is None:
            with self.lock:
                self.parts = self.parts or self._compile_parts(inputs)
        return self.parts(*inputs)

    def _compile_parts(self, inputs: tuple[Any, ...]) -> Compiled:
        try:
            return compile_parts(self.gm, parts_of(self.gm), self.compile_subgraph)
        except Unsupported:
            return self.compile_graph(self.gm, list(inputs))


def with_constants(gm: fx.GraphModule, values: dict[int, float]) -> fx.GraphModule:
    """The graph without these inputs, which have these values."""
    numbers = number_nodes(gm.graph)
    graph, known = fx.Graph(), dict[fx.Node, Any]()
    places = [node for node in gm.graph.nodes if node.op == "placeholder"]
    known.update({places[at]: value for at, value in values.items()})
    for node in gm.graph.nodes:
        if node in known:
            continue
        given = node.all_input_nodes
        if node in numbers and given and all(
            type(known[other]) in (int, float) for other in given
        ):
            known[node] = node.target(*fx.map_arg(node.args, known.__getitem__))
        elif node.op == "output":
            graph.output(fx.map_arg(node.args[0], known.__getitem__))
        else:
            known[node] = graph.node_copy(node, known.__getitem__)
    return fx.GraphModule(gm, graph)


def parts_of(gm: fx.GraphModule) -> list[list[fx.Node]]:
    """The operations, cut before and behind those that take a float, where no mode is open.

    Errors: Unsupported where a part would compute gradients of what another has computed.
    """
    numbers = number_nodes(gm.graph)
    leaves = ("placeholder", "output", "get_attr")
    nodes = [node for node in gm.graph.nodes if node.op not in leaves]
    closed = _closed_places(nodes)
    takes = [at for at, node in enumerate(nodes) if any(n in numbers for n in node.all_input_nodes)]
    asks = [at for at, node in enumerate(nodes) if node.target in GRADIENTS]
    cuts: list[int] = []
    for ask, following in zip(asks, [*asks[1:], len(nodes)], strict=True):
        between = [at for at in takes if ask < at < following]
        if between:
            cuts.append(max(at for at in closed if at <= between[0]))
            cuts.append(min(at for at in closed if at > between[-1]))
    places = sorted({0, *cuts, len(nodes)})
    parts = [nodes[a:b] for a, b in zip(places, places[1:], strict=False)]
    if len(parts) < 2:
        raise Unsupported("a step without parts")
    for part in parts:
        if any(node.target in GRADIENTS for node in part):
            _check(part)
    return parts


def _check(part: list[fx.Node]) -> None:
    inside = set(part)
    for given in (other for node in part for other in node.all_input_nodes):
        value = given.meta.get("example_value")
        if given not in inside and given.op != "placeholder":
            if isinstance(value, torch.Tensor) and value.requires_grad:
                raise Unsupported("gradients of what another part has computed")


def _closed_places(nodes: list[fx.Node]) -> list[int]:
    """The places between nodes at which no mode is open."""
    setters = [at for at, node in enumerate(nodes) if _sets_mode(node)]
    places, opened, grad, before = [0], 0, None, None
    for at, node in enumerate(nodes, 1):
        if node.target is torch._C._set_grad_enabled:
            before = (not node.args[0]) if before is None else before
            grad = node.args[0]
        name = getattr(node.target, "__name__", "")
        opened += (name == "enter") - (name == "leave")
        between = bool(setters) and setters[0] < at <= setters[-1]
        if not opened and not between and grad in (None, before):
            places.append(at)
    return places


def _sets_mode(node: fx.Node) -> bool:
    """True for what sets autocast or the like; only before all of these and behind them is the
    state known."""
    name = getattr(node.target, "__name__", "").strip("_")
    return name.startswith("set_") and node.target is not torch._C._set_grad_enabled
