"""Graphs whose inputs or outputs are wrapper subclasses: compiled as graphs of plain tensors.

One for many sizes is compiled once for all. Where that fails, as for a gradient that is a wrapper
of many sizes, it is compiled for each set of sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import fx

from dynamo.aot.flat_programs import compile_flat, has_symbolic_sizes
from dynamo.aot.records import PlainRefused, Unsupported
from dynamo.base import logs
from inductor.driver.failures import as_captured
from inductor.dynamic_shapes.specialise import BySizes

Compiled = Callable[..., Any]
Compile = Callable[[fx.GraphModule, list[Any]], Compiled]


def compile_wrapped(
    gm: fx.GraphModule, inputs: list[Any], settings: Mapping[str, Any], compile_plain: Compile,
    compile_static: Compile,
) -> Compiled:
    """A callable like the graph; the graph as it was captured where it can't be compiled.

    compile_plain: for what the plain graph is open for. compile_static: for one set of sizes.
    """

    def compile_at(module: fx.GraphModule, given: list[Any], compile: Compile) -> Compiled:
        try:
            return compile_flat(module, given, compile, at_sizes=True)
        except Unsupported as refusal:
            return as_captured(settings, module, refusal)
        except PlainRefused as refused:
            return as_captured(settings, module, refused.refusal)

    if not has_symbolic_sizes(gm):
        return compile_at(gm, inputs, compile_plain)
    try:
        return compile_flat(gm, inputs, compile_plain)
    except (Unsupported, PlainRefused) as refusal:
        why = str(refusal)
    logs.log("dynamic").emit(f"a symbolic graph is compiled for each set of sizes: {why}")
    return BySizes(gm, inputs, lambda module, given: compile_at(module, given, compile_static))
