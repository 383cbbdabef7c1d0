"""Functional ATen graphs as torch.fx holds them: making modules, removing dead code."""

from __future__ import annotations

import torch
from torch import fx
from torch.fx._lazy_graph_module import _LazyGraphModule

from dynamo.aot.records import FAILS

aten = torch.ops.aten


def make_module(graph: fx.Graph, constants: dict[str, torch.Tensor]) -> fx.GraphModule:
    """A module of the graph with the constants that it reads. Its code is made when used."""
    used = {str(node.target) for node in graph.nodes if node.op == "get_attr"}
    root = {name: tensor for name, tensor in constants.items() if name in used}
    return _LazyGraphModule(root, graph, class_name="AtenGraph")


_EFFECTS = frozenset({aten._assert_async.msg, aten._assert_async.default, aten._print.default})


def is_effect(node: fx.Node) -> bool:
    """True for a node that must stay though nothing reads it: random, mutating, or checking."""
    target = node.target
    if node.op != "call_function" or not isinstance(target, torch._ops.OpOverload):
        return node.op in ("placeholder", "output")
    if torch.Tag.nondeterministic_seeded in target.tags or target._schema.is_mutable:
        return True
    return target in _EFFECTS or not target._schema.returns


def must_run(node: fx.Node) -> bool:
    """True for an effect, and for an operation of the program that may raise."""
    return FAILS in node.meta or is_effect(node)


def remove_dead_code(graph: fx.Graph) -> None:
    """Erases what nothing reads and need not run, placeholders aside."""
    for node in reversed(graph.nodes):
        if not node.users and not must_run(node):
            graph.erase_node(node)
