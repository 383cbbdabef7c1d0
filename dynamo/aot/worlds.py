"""Which world of fakes a program is captured in.

In: a captured module and its example inputs. Out: what a capture makes of them, and its world. The
symbolic world is imported at its first use: that costs seconds, and static graphs don't need it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from torch import fx

from dynamo.aot.capture import refusals
from dynamo.aot.records import WrapperMet
from dynamo.aot.reference import ReferenceWorld

T = TypeVar("T")


def capture_in_world(
    capture: Callable[[Any], T], gm: fx.GraphModule, examples: list[Any], symbolic: bool
) -> tuple[T, Any]:
    """`capture(world)` and the world: static, or symbolic as the placeholders tell.

    With symbols the program's calls run as in eager first, since their results must be the same
    views; the capture is repeated with Python's versions of those that fail.
    Errors: Unsupported.
    """
    try:
        return _capture_in_world(capture, gm, examples, symbolic, False)
    except WrapperMet:
        return _capture_in_world(capture, gm, examples, symbolic, True)


def _capture_in_world(
    capture: Callable[[Any], T], gm: fx.GraphModule, examples: list[Any], symbolic: bool,
    wrappers: bool,
) -> tuple[T, Any]:
    """wrappers: the program uses wrapper subclasses, if only in its backward."""
    world: Any = ReferenceWorld()
    world.meets_wrappers = wrappers
    if not symbolic:
        return capture(world), world
    module = importlib.import_module("dynamo.aot.symbolic_worlds")
    python_calls: frozenset[Any] = frozenset()
    while True:
        try:
            with refusals(symbolic):
                world = module.SymbolicReferenceWorld(gm, examples, python_calls)
                world.meets_wrappers = wrappers
            return capture(world), world
        except module.NeedsPython as call:
            python_calls |= {call.target, *_of_same_code(gm, call.target)}


def _of_same_code(gm: fx.GraphModule, target: Any) -> Iterator[Any]:
    """The functions of a program that are made of one piece of code, as those that redistribute a
    `DTensor` are for each place: what fails for one does for the others, and each costs a capture.
    """
    code = getattr(target, "__code__", None)
    for node in gm.graph.nodes:
        if code is not None and getattr(node.target, "__code__", None) is code:
            yield node.target
