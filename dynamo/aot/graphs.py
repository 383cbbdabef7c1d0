"""Functional ATen graphs as torch.fx holds them: making modules, removing dead code."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch.fx._lazy_graph_module import _LazyGraphModule

from dynamo.aot.records import FAILS

aten = torch.ops.aten


class LazyGraph(_LazyGraphModule):
    """A module whose code is made when it is first used.

    Its `forward` does not go through `__call__`, as torch's does: hooks that the program has for
    all modules would see a module that is none of the program's.
    """

    def _lazy_forward(self, *args: Any, **kwargs: Any) -> Any:
        self.real_recompile()
        return self.forward(*args, **kwargs)

    forward = _lazy_forward


def make_module(graph: fx.Graph, constants: dict[str, torch.Tensor]) -> fx.GraphModule:
    """A module of the graph with the constants that it reads. Its code is made when used."""
    used = {str(node.target) for node in graph.nodes if node.op == "get_attr"}
    root = {name: tensor for name, tensor in constants.items() if name in used}
    return LazyGraph(root, graph, class_name="AtenGraph")


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
