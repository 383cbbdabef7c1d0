"""Graphs with symbolic sizes and numbers: one compile for all, or one per sizes that are met.

In: a captured graph that holds for many sizes, a compiler for all of them and one for some. Out: a
callable. What can't be compiled for all sizes is compiled for the sizes and numbers of each
call at its first use, up to a limit; beyond, new ones run the graph as it was captured. All this is
counted, and said in the log `dynamic`.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import fx

from dynamo.aot.records import TAKES_WRAPPERS, PlainRefused, Unsupported
from dynamo.base import logs
from dynamo.base.counters import counters
from dynamo.base.fallbacks import SIZES, line_of, refused
from dynamo.base.graph_copies import copy_module
from dynamo.base.subclasses import layout_of
from inductor import metrics
from inductor.dynamic_shapes.symbolic import CompileSymbolic, program_for

Compiled = Callable[..., Any]
CompileStatic = Callable[[fx.GraphModule, list[Any]], Compiled]
LIMIT = 8  # sets of sizes, as `recompile_limit` has of frames


def is_symbolic(gm: fx.GraphModule, example_inputs: list[Any]) -> bool:
    """True for a graph that was captured for more than the sizes and numbers at hand."""
    if any(type(value) in (int, float) for value in example_inputs):
        return True
    return any(
        type(size) is not int
        for node in gm.graph.nodes
        if node.op == "placeholder"
        for size in getattr(node.meta.get("example_value"), "shape", ())
    )


def compile_for_sizes(
    gm: fx.GraphModule,
    example_inputs: list[Any],
    compile_static: CompileStatic,
    compile_symbolic: CompileSymbolic,
) -> Compiled:
    """A callable like the graph, compiled at once for the sizes at hand, so that errors of the
    compiler show early. Numbers were looked at before (`numbers/choose.py`).

    compile_static: for one set of sizes. compile_symbolic: see `Program`.
    """
    if not is_symbolic(gm, example_inputs):
        return compile_static(gm, example_inputs)
    try:
        return program_for(gm, example_inputs, compile_symbolic)
    except Unsupported as refusal:
        if gm.meta.get(TAKES_WRAPPERS):
            raise PlainRefused(refusal) from refusal
        why = refusal.reason
    logs.log("dynamic").emit(f"a symbolic graph is compiled for each set of sizes: {why}")
    return BySizes(gm, example_inputs, compile_static)


def fits(value: Any) -> bool:
    """False for ints that no tensor can hold.

    >>> fits(2**61), fits(2**62), fits(1e300), fits(torch.ones(1))
    (True, False, True, True)
    """
    return type(value) is not int or abs(value) < 2**62


class BySizes:
    """A compile for each set of sizes and numbers, up to LIMIT; beyond, it runs as captured."""

    not_cacheable = "it is compiled for each set of sizes"

    def __init__(
        self, gm: fx.GraphModule, example_inputs: list[Any], compile_static: CompileStatic
    ) -> None:
        self.gm = gm
        self.compile_static = compile_static
        self.lock = threading.Lock()
        self.full = False
        self.known: dict[Hashable, Compiled] = {}
        metrics.count("symbolic_graphs")
        self.known[key_of(tuple(example_inputs))] = self._compile(example_inputs)

    def __call__(self, *inputs: Any) -> Any:
        key = key_of(inputs)
        compiled = self.known.get(key)
        if compiled is None:
            compiled = self._find(key, inputs)
        return compiled(*inputs)

    def _find(self, key: Hashable, inputs: tuple[Any, ...]) -> Compiled:
        with self.lock:
            compiled = self.known.get(key)
            if compiled is not None:
                return compiled
            if len(self.known) < LIMIT:
                compiled = self.known[key] = self._compile(list(inputs))
                return compiled
            if not self.full:
                self.full = True
                logs.log("dynamic").emit(
                    f"a graph was compiled for {LIMIT} sets of sizes; others run as captured")
        why = f"it was compiled for {LIMIT} sets of them"
        refused(SIZES, why, line_of(self.gm.graph.nodes), strict=False)
        return self.gm.forward

    def _compile(self, inputs: list[Any]) -> Compiled:
        metrics.count("sizes_compiled")
        counters["inductor"]["sizes compiled"] += 1
        logs.log("dynamic").emit(lambda: f"a symbolic graph is compiled for {describe(inputs)}")
        return self.compile_static(copy_module(self.gm), inputs)


def key_of(inputs: tuple[Any, ...]) -> Hashable:
    """What one static compile holds for: sizes and strides of tensors, values of numbers."""
    return tuple([
        layout_of(value) if isinstance(value, torch.Tensor) else number_key(value)
        for value in inputs
    ])


def number_key(value: Any) -> Hashable:
    """Tells 1 from 1.0, and 0.0 from -0.0; equal for nan and nan."""
    return struct.pack("d", value) if type(value) is float else (type(value), value)


def describe(inputs: list[Any]) -> str:
    """Sizes and numbers, in words."""
    return ", ".join(
        str(list(value.shape)) if isinstance(value, torch.Tensor) else repr(value)
        for value in inputs
    )
