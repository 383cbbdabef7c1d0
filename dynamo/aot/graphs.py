"""Functional ATen graphs as torch.fx holds them: making modules, removing dead code."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch.fx._lazy_graph_module import _LazyGraphModule

from dynamo.aot.records import FAILS, RECOMPUTED
from dynamo.graph_operators.operator_effects import acts, freedom_of


class LazyGraph(_LazyGraphModule):
    """A module whose code is made when it is first used.

    Its `forward` does not go through `__call__`, as torch's does: hooks that the program has for
    all modules would see a module that is none of the program's.
    """

    def _lazy_forward(self, *args: Any, **kwargs: Any) -> Any:
        self.real_recompile()
        return self.forward(*args, **kwargs)

    forward = _lazy_forward


LITERAL = "_literal_"  # begins the names of tensors that a program writes down


def is_literal(node: fx.Node) -> bool:
    """Whether a `get_attr` node is a tensor that nothing but the graph reads or writes: its numbers
    are known. Others (of a module that was given as a graph) may change between calls."""
    return str(node.target).startswith(LITERAL)


def make_module(graph: fx.Graph, constants: dict[str, torch.Tensor]) -> fx.GraphModule:
    """A module of the graph with the constants that it reads. Its code is made when used."""
    used = {str(node.target) for node in graph.nodes if node.op == "get_attr"}
    root = {name: tensor for name, tensor in constants.items() if name in used}
    return LazyGraph(root, graph, class_name="AtenGraph")


def is_effect(node: fx.Node) -> bool:
    """True for a node that must stay though nothing reads it: random, mutating, checking, or of a
    library that is not known."""
    if node.op != "call_function":
        return node.op in ("placeholder", "output")
    return not freedom_of(node.target, node.args, node.kwargs).drop


def is_once(node: fx.Node) -> bool:
    """True for a node that may not run twice, nor once for two."""
    return node.op == "call_function" and not freedom_of(
        node.target, node.args, node.kwargs).repeat


def acts_late(node: fx.Node) -> bool:
    """True for an effect of a node that was recorded in backward. A checkpoint draws nothing again,
    and writes nothing again."""
    return is_effect(node) and (RECOMPUTED not in node.meta or acts(node.target))


def must_run(node: fx.Node) -> bool:
    """True for an effect, and for an operation of the program that may raise."""
    return FAILS in node.meta or is_effect(node)


def remove_dead_code(graph: fx.Graph) -> None:
    """Erases what nothing reads and need not run, placeholders aside."""
    for node in reversed(graph.nodes):
        if not node.users and not must_run(node):
            graph.erase_node(node)


def ancestors(nodes: list[fx.Node]) -> set[fx.Node]:
    """The nodes, and all from which they are computed."""
    found, work = set(nodes), list(nodes)
    while work:
        fresh = [given for given in work.pop().all_input_nodes if given not in found]
        found.update(fresh)
        work += fresh
    return found
