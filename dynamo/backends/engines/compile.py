"""A captured graph compiled by an engine.

    captured graph -> functional ATen graph, forward and backward (dynamo.aot) -> parts -> engines

So an engine sees no mutation, no alias and no number that changes. Training gives it the forward
and the backward graph. A graph for many sizes is compiled for each set of sizes that is met, up to
a limit.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx

from dynamo.aot.api import compile_inference, compile_training
from dynamo.aot.decompositions import default_decompositions
from dynamo.aot.program import is_of_program
from dynamo.aot.records import NeedsGradients, Unsupported
from dynamo.backends.engines.parts import compile_parts
from dynamo.backends.engines.records import Engine
from dynamo.base.examples import real_examples
from dynamo.base.fallbacks import BACKWARD, GRAPH, Site, failed, place_of, refused, site_now
from dynamo.base.signals import is_of_signal
from dynamo.graph_operators.cuts import has_cuts
from dynamo.graph_operators.gradients import has_gradients
from inductor.driver.freezing import frozen_inputs
from inductor.driver.known_results import is_lazy
from inductor.dynamic_shapes.specialise import BySizes, fits, is_symbolic
from inductor.dynamic_shapes.subgraphs import NothingToCompile, compile_subgraphs, has_unbacked

Compiled = Callable[..., Any]


def compile_by(engine: Engine, gm: fx.GraphModule, example_inputs: list[Any]) -> Compiled:
    """Compiles a captured graph; what can't be compiled runs as captured and is counted.

    Errors: InvalidBackend where the engine is not installed.
    """
    engine.check_options(None, None)
    example_inputs = real_examples(example_inputs)

    def compile_subgraph(module: fx.GraphModule, inputs: list[Any]) -> Compiled:
        compiled = functools.partial(_compile, engine, site_now())
        if not is_symbolic(module, inputs):
            return compiled(module, inputs)
        by_sizes = BySizes(module, inputs, compiled)

        def call(*given: Any) -> Any:
            return by_sizes(*given) if all(map(fits, given)) else module.forward(*given)

        return call

    try:
        if any(map(is_lazy, example_inputs)):
            raise Unsupported("an input is not what its memory holds")
        if has_unbacked(gm) or has_cuts(gm) or has_gradients(gm):
            return compile_subgraphs(gm, compile_subgraph)
    except NothingToCompile:
        return gm.forward
    except Unsupported as refusal:
        refused(GRAPH, refusal.reason, place_of(refusal, gm.graph.nodes))
        return gm.forward
    return compile_subgraph(gm, example_inputs)


def _compile(engine: Engine, site: Site, gm: fx.GraphModule, inputs: list[Any]) -> Compiled:
    trains = torch.is_grad_enabled() and any(
        isinstance(value, torch.Tensor) and value.requires_grad for value in inputs)
    forward = functools.partial(_forward, engine, site, frozenset[int]())
    try:
        if trains:
            try:
                return compile_training(gm, inputs, forward, functools.partial(
                    _backward, engine, site), decompositions=_backward_decompositions())
            except NeedsGradients as refusal:
                raise Unsupported(refusal.reason) from refusal
        frozen = frozen_inputs(gm, inputs)
        return compile_inference(gm, inputs, functools.partial(_forward, engine, site, frozen))
    except Unsupported as refusal:
        refused(GRAPH, refusal.reason, place_of(refusal, gm.graph.nodes), strict=site.strict)
    except Exception as defect:
        if is_of_signal(defect):
            raise
        if is_of_program(defect):
            return _raising(engine, gm, defect, site)
        _report(engine, GRAPH, defect, gm, site)
    return gm.forward


def _raising(
    engine: Engine, gm: fx.GraphModule, error: Exception, site: Site
) -> Callable[..., Any]:
    """The graph as it was captured, which raises the program's error; where it does not, the error
    was a defect."""
    reported: list[bool] = []

    def call(*inputs: Any) -> Any:
        results = gm.forward(*inputs)
        if not reported:
            reported.append(True)
            _report(engine, GRAPH, error, gm, site)
        return results

    return call


def _forward(
    engine: Engine, site: Site, frozen: frozenset[int], module: fx.GraphModule, fakes: list[Any]
) -> Compiled:
    return compile_parts(engine, module, frozen, site)


def _backward(engine: Engine, site: Site, module: fx.GraphModule, fakes: list[Any]) -> Compiled:
    """Compiled when forward has run: what can't be compiled runs as ATen."""
    try:
        return compile_parts(engine, module, (), site)
    except Exception as defect:
        _report(engine, BACKWARD, defect, module, site)
        return module.forward


def _report(
    engine: Engine, kind: str, defect: Exception, gm: fx.GraphModule, site: Site
) -> None:
    text = f"the backend {engine.name} failed on a graph, which runs without it"
    failed(kind, defect, text, place_of(defect, gm.graph.nodes), strict=site.strict)


@functools.cache
def _backward_decompositions() -> Mapping[Any, Any]:
    """What converters do not know, or not in full, is taken apart: derivatives, and operators that
    return what only those want."""
    table = default_decompositions()
    return {op: function for op, function in table.items()
            if "backward" in str(op) or "native_" in str(op)}


def backend_of(engine: Engine) -> Callable[..., Any]:
    """The engine as a backend."""

    def compile_graph(
        gm: fx.GraphModule, example_inputs: list[Any], *, mode: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> Compiled:
        engine.check_options(mode, options)
        return compile_by(engine, gm, example_inputs)

    compile_graph.__name__ = engine.name
    compile_graph.check_options = engine.check_options  # type: ignore[attr-defined]
    return compile_graph
