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


def mark(function: Marked) -> Marked:
    """Marks a function, or that of a method, as a block that is repeated; what was given.

    Errors: TypeError for what is none.

        >>> is_marked(mark(lambda: None))
        True
    """
    inside = function.__func__ if isinstance(function, types.MethodType) else function
    if not isinstance(inside, types.FunctionType):
        raise TypeError(
            f"nested_compile_region takes a function, not a {type(function).__name__}; for a "
            "module, mark the `forward` of its class")
    inside.__dict__[MARK] = True
    return function


def is_marked(function: Any) -> bool:
    """True for what `mark` was given."""
    return MARK in function.__dict__


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
