"""A captured graph that is compiled in the background.

In: the graph and its inputs, the backend, what compiles. Out: a function that runs the graph as it
was captured until it is compiled. The job has a copy of the graph and substitutes of the inputs.

A backend may have two attributes: `is_cached(gm, inputs, **extra)` tells that compiling takes no
time, as the result is on the disk: then it is done at once. `prepare(gm, inputs, examples,
**extra)` has another process do the work first, as far as that is possible, and waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import fx

from dynamo.background.examples import Unlike, snapshot, stand_ins
from dynamo.background.jobs import calls_of_ranks, collecting, is_background, later
from dynamo.base import logs
from dynamo.base.graph_copies import copy_module

Call = Callable[..., Any]
Compile = Callable[[fx.GraphModule, list[Any]], Call]


def compile_later(
    module: fx.GraphModule, inputs: list[Any], backend: Call, extra: Mapping[str, Any],
    compile_graph: Compile, wrap: Callable[[Call], Call], on_error: Callable[[Exception], None],
    calls: int,
) -> Call:
    """See the top of the file. compile_graph: the backend, with the settings of this compile; wrap:
    what goes around its result; calls: which call waits."""
    try:
        likes = stand_ins(inputs)
        examples, _ = snapshot(inputs)
    except Unlike as why:
        text = str(why)
        logs.log("dynamo").emit(lambda: f"compiled at once: no substitute for an input ({text})")
        return wrap(compile_graph(module, inputs))
    is_cached = getattr(backend, "is_cached", None)
    # Another rank may not have it on its disk.
    if not calls_of_ranks() and is_cached is not None and is_cached(module, inputs, **extra):
        with collecting():
            return wrap(compile_graph(module, inputs))
    copy = copy_module(module)
    meanwhile = wrap(module.forward)

    def compile_now() -> Call:
        prepare = getattr(backend, "prepare", None)
        if prepare is not None:
            prepare(copy, likes, examples, **extra)
        made = compile_graph(copy, likes)
        return meanwhile if made == copy.forward else wrap(made)

    return later(compile_now, meanwhile, on_error, calls)


def deferring(compile_part: Compile, on_error: Callable[[Exception], None]) -> Compile:
    """What compiles parts of a graph at a call: later and in the background, where the graph itself
    is compiled so."""

    def compile_it(module: fx.GraphModule, inputs: list[Any]) -> Call:
        if is_background():
            return compile_part(module, inputs)
        try:
            likes = stand_ins(inputs)
        except Unlike:
            return compile_part(module, inputs)
        copy = copy_module(module)
        return later(lambda: compile_part(copy, likes), module.forward, on_error)

    return compile_it
