"""Removes graph nodes that nothing needs, and never one whose running can be observed."""

from __future__ import annotations

import operator
import types
from typing import Any

import torch
from torch import fx

from dynamo.graph_operators.operator_effects import freedom_of
from dynamo.symbolic.core.lookup import module_of
from dynamo.symbolic.tensors.contexts import MODE_NODES
from dynamo.symbolic.tensors.repeating import NORMS, STATEFUL

IN_PLACE_OPERATORS = frozenset(
    getattr(operator, name)
    for name in """setitem delitem iadd isub imul imatmul itruediv ifloordiv imod ipow ilshift
    irshift iand ior ixor""".split()
)


def is_observable(node: fx.Node) -> bool:
    """True where leaving the node out could be observed."""
    target: Any = node.target
    if node.op in ("placeholder", "output", "call_module"):
        return True
    if node.meta.get("checks") or node.meta.get("acts"):
        return True
    if node.op == "call_function" and not freedom_of(target).drop:
        return True
    if isinstance(target, torch._ops.OpOverload):
        return target._opname in NORMS
    if target in IN_PLACE_OPERATORS or target in MODE_NODES:
        return True
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    if not name or (name.endswith("_") and not name.endswith("__")) or name == "__setitem__":
        return True
    if name.startswith("__i") and name != "__invert__" and name not in ("__index__", "__int__"):
        return True
    if "out" in node.kwargs or node.kwargs.get("inplace") or _has_true(node, name):
        return True
    module = module_of(target)
    written = isinstance(target, types.FunctionType)  # by exec: without a name for its module
    known = isinstance(target, str) or module.split(".")[0] in (
        ("torch",) if written else ("torch", "_operator", "builtins", "math", "")
    )
    return not known or name in STATEFUL


def _has_true(node: fx.Node, name: str) -> bool:
    """`relu(x, True)` and the like: a flag that may mean in-place."""
    functional = getattr(torch.nn.functional, name, None) is node.target
    return functional and any(arg is True for arg in node.args)


def prune(graph: fx.Graph) -> int:
    """Erases unused nodes, last first; the number of erased ones."""
    count = 0
    for node in reversed(list(graph.nodes)):
        if not node.users and not is_observable(node):
            graph.erase_node(node)
            count += 1
    return count
