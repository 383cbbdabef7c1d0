"""Blocks that a program repeats and marks as such: `nested_compile_region`.

In: the mark of a function, and captured nodes. Out: which call of which marked function a node
belongs to. A backend may compile the operations of one call for all calls that are alike.
"""

from __future__ import annotations

import types
from typing import Any, TypeVar

from torch import fx

Marked = TypeVar("Marked")
MARK = "__dynamo_region__"  # of functions
REGION = "region"  # in the meta of captured nodes: the function's place, and the call's number


MARK_OF_TORCH = "__marked_compile_region_max_reuse_entries__"
MOST_KINDS = 8


def mark(function: Marked, most_kinds: int = MOST_KINDS) -> Marked:
    """Marks a function, or that of a method, as a block that is repeated; what was given.

    most_kinds: how many kinds of calls a graph may have.

    Errors: TypeError for what is none.

        >>> is_marked(mark(lambda: None))
        True
    """
    inside = function.__func__ if isinstance(function, types.MethodType) else function
    if not isinstance(inside, types.FunctionType):
        raise TypeError(
            f"nested_compile_region takes a function, not a {type(function).__name__}; for a "
            "module, mark the `forward` of its class")
    inside.__dict__[MARK] = most_kinds
    return function


def is_marked(function: Any) -> bool:
    """True for what `mark` was given."""
    return MARK in function.__dict__


def most_kinds_of(function: Any) -> int:
    """How many kinds of calls a graph may have, as the mark says, of ours or of torch's."""
    given = function.__dict__
    found: int = given.get(MARK, given.get(MARK_OF_TORCH, MOST_KINDS))
    return found


def kind_of(nodes: list[fx.Node]) -> str:
    """Text that is equal for calls whose operations, settings and tensors are alike."""
    names: dict[fx.Node, str] = {}

    def name_of(node: fx.Node) -> str:
        return names.setdefault(node, f"{len(names)}:{_facts(node.meta.get('example_value'))}")

    parts = [
        (node.op, str(node.target), fx.map_arg((node.args, node.kwargs), name_of), name_of(node))
        for node in nodes
    ]
    return repr(parts)


def _facts(value: Any) -> Any:
    facts = ("dtype", "shape", "device", "requires_grad")
    return type(value).__name__, *(getattr(value, name, None) for name in facts)


def region_of(node: fx.Node) -> tuple[str, int] | None:
    """The call of a marked function that a captured node belongs to."""
    found: tuple[str, int] | None = node.meta.get(REGION)
    return found


def has_repeated(gm: fx.GraphModule) -> bool:
    """True where a marked function was called more than once."""
    calls: dict[str, int] = {}
    for node in gm.graph.nodes:
        region = region_of(node)
        if region is not None and calls.setdefault(region[0], region[1]) != region[1]:
            return True
    return False
