"""Backward where only some outputs have a gradient: the others count for nothing, as in autograd.

In: a backward graph, and which of its tangents there are not. Out: the backward graph of the rest.

A gradient of zeros instead would turn `0 * inf` into nan, and give zeros to inputs that eager
leaves without a gradient (an optimizer tells zeros from None).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import fx

from dynamo.aot.fakes import expression_of, is_symbolic_number
from dynamo.aot.graphs import make_module, remove_dead_code
from dynamo.aot.joint import TANGENT, viewed
from dynamo.aot.numbers import NumberNodes
from dynamo.graph_operators.arrived import ARRIVED

aten = torch.ops.aten
CONTIGUOUS: Any = {"memory_format": torch.contiguous_format}


def without_tangents(module: fx.GraphModule, missing: Collection[str]) -> fx.GraphModule:
    """A copy without the placeholders named in `missing`; gradients that need one of them are None.

    A sum goes on with its other half; any other operation that also needs a tangent that is there
    takes zeros, as autograd's own formulas do. So does an autograd function of the program where
    one of its results has a gradient (`arrived`): all of it runs.
    """
    return Rest(module, missing).graph_module()


class Rest:
    """The copy while it is made.

    absent: nodes that need a tangent which is missing; fed: those that one which is there reaches.
    """

    def __init__(self, module: fx.GraphModule, missing: Collection[str]) -> None:
        self.module, self.missing = module, missing
        self.graph = fx.Graph()
        self.copies: dict[fx.Node, fx.Node] = {}
        self.absent: set[fx.Node] = set()
        self.fed: set[fx.Node] = set()
        self.shown = _shown(module)
        self.table = module.meta.get("symbols")
        self.numbers: NumberNodes | None = None  # made behind the placeholders

    def graph_module(self) -> fx.GraphModule:
        for node in self.module.graph.nodes:
            if node.op == "output":
                self.graph.output(fx.map_arg(
                    node.args[0], lambda n: None if n in self.absent else self.copies[n]))
            else:
                self.take(node)
        remove_dead_code(self.graph)
        constants = [str(node.target) for node in self.graph.nodes if node.op == "get_attr"]
        rest = make_module(self.graph, {name: getattr(self.module, name) for name in constants})
        if self.table is not None:  # tangents tell no sizes, and come last
            rest.meta["symbols"] = self.table
        return rest

    def take(self, node: fx.Node) -> None:
        """Copies the node, unless it is absent."""
        absent, copies, sources = self.absent, self.copies, node.all_input_nodes
        if node.name in self.missing:
            absent.add(node)
            return
        is_tangent = node.op == "placeholder" and node.name.startswith(TANGENT)
        if is_tangent or any(source in self.fed for source in sources):
            self.fed.add(node)
        if node.target is ARRIVED:
            self.take_arrived(node)
            return
        if any(source in absent for source in sources):
            if node not in self.fed:
                absent.add(node)
                return
            halves = [arg for arg in node.args[:2] if isinstance(arg, fx.Node)]
            if node.target is aten.add.Tensor and not node.kwargs and len(halves) == 2:
                [there] = [half for half in halves if half not in absent]
                if _alike(there, node):  # a sum is a new tensor: two gradients share no storage
                    copies[node] = self.graph.call_function(aten.clone.default, (copies[there],))
                    copies[node].meta = {**node.meta, "val": there.meta["val"]}
                    return
        copies[node] = self.graph.node_copy(
            node, lambda n: self.zeros(n) if n in absent else copies[n])

    def take_arrived(self, node: fx.Node) -> None:
        """What an autograd function gets: zeros for what is absent, if it runs at all."""
        grad: Any = node.args[0]
        if node not in self.fed:
            self.absent.add(node)
        elif grad in self.absent:
            self.copies[node] = self.zeros(node)
        elif _alike(grad, node) and node not in self.shown:
            self.copies[node] = self.copies[grad]
        else:
            given = (self.copies[grad],)
            self.copies[node] = self.graph.call_function(aten.clone.default, given, CONTIGUOUS)
            self.copies[node].meta = {**node.meta}

    def zeros(self, node: fx.Node) -> fx.Node:
        value = node.meta["val"]
        made = self.graph.call_function(
            aten.full.default, ([self.size_of(size) for size in value.shape], 0),
            {"dtype": value.dtype, "device": value.device, "pin_memory": False})
        made.meta["val"] = value
        return made

    def size_of(self, size: Any) -> Any:
        if not is_symbolic_number(size):
            return size
        if self.numbers is None:
            assert self.table is not None
            self.numbers = NumberNodes(self.graph, self.table.symbols)
        return self.numbers.node(size)


def has_arrivals(module: fx.GraphModule) -> bool:
    """True for a graph that runs as it is once it is known which of its tangents there are."""
    return bool(module.graph.find_nodes(op="call_function", target=ARRIVED))


def _shown(module: fx.GraphModule) -> set[fx.Node]:
    """The results of the graph and what they are views of: they share memory with nothing."""
    found: set[fx.Node] = set()
    for node in module.graph.output_node().all_input_nodes:
        root: fx.Node | None = node
        while root is not None and root not in found:
            found.add(root)
            root = viewed(root)
    return found


def _alike(half: fx.Node, total: fx.Node) -> bool:
    """True where a half of a sum can stand for it: of its size and dtype, and of its strides where
    operations that are written for these read it."""
    is_gradient = all(user.op == "output" for user in total.users)
    a, b = ([*map(expression_of, (*v.shape, *(() if is_gradient else v.stride()))), v.dtype]
            for v in (half.meta["val"], total.meta["val"]))  # fmt: skip
    return a == b
