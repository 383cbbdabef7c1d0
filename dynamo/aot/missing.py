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
from dynamo.aot.joint import TANGENT
from dynamo.aot.numbers import NumberNodes

aten = torch.ops.aten


def without_tangents(module: fx.GraphModule, missing: Collection[str]) -> fx.GraphModule:
    """A copy without the placeholders named in `missing`; gradients that need one of them are None.

    A sum goes on with its other half; any other operation that also needs a tangent that is there
    takes zeros, as autograd's own formulas do.
    """
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    absent: set[fx.Node] = set()
    fed: set[fx.Node] = set()  # nodes that a tangent which is there reaches
    table = module.meta.get("symbols")
    numbers: list[NumberNodes] = []  # made behind the placeholders

    def size_of(size: Any) -> Any:
        if not is_symbolic_number(size):
            return size
        if not numbers:
            assert table is not None
            numbers.append(NumberNodes(graph, table.symbols))
        return numbers[0].node(size)

    def zeros(node: fx.Node) -> fx.Node:
        value = node.meta["val"]
        made = graph.call_function(
            aten.full.default, ([size_of(size) for size in value.shape], 0),
            {"dtype": value.dtype, "device": value.device, "pin_memory": False})
        made.meta["val"] = value
        return made

    tangents = {
        node
        for node in module.graph.nodes
        if node.op == "placeholder" and node.name.startswith(TANGENT)
    }
    for node in module.graph.nodes:
        if node.op == "output":
            graph.output(fx.map_arg(node.args[0], lambda n: None if n in absent else copies[n]))
            continue
        if node.name in missing:
            absent.add(node)
            continue
        sources = node.all_input_nodes
        if node in tangents or any(source in fed for source in sources):
            fed.add(node)
        if any(source in absent for source in sources):
            if node not in fed:
                absent.add(node)
                continue
            halves = [arg for arg in node.args[:2] if isinstance(arg, fx.Node)]
            if node.target is aten.add.Tensor and not node.kwargs and len(halves) == 2:
                [there] = [half for half in halves if half not in absent]
                if _alike(there, node):  # a sum is a new tensor: two gradients share no storage
                    copies[node] = graph.call_function(aten.clone.default, (copies[there],))
                    copies[node].meta = {**node.meta, "val": there.meta["val"]}
                    continue
        copies[node] = graph.node_copy(node, lambda n: zeros(n) if n in absent else copies[n])
    remove_dead_code(graph)
    constants = [str(node.target) for node in graph.nodes if node.op == "get_attr"]
    rest = make_module(graph, {name: getattr(module, name) for name in constants})
    if table is not None:  # tangents tell no sizes, and come last
        rest.meta["symbols"] = table
    return rest


def _alike(half: fx.Node, total: fx.Node) -> bool:
    """True where a half of a sum can stand for it: of its size and dtype, and of its strides where
    operations that are written for these read it."""
    is_gradient = all(user.op == "output" for user in total.users)
    a, b = ([*map(expression_of, (*v.shape, *(() if is_gradient else v.stride()))), v.dtype]
            for v in (half.meta["val"], total.meta["val"]))  # fmt: skip
    return a == b
