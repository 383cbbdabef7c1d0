"""Graphs that need no gradients: weights that are laid out, folded and computed with once.

In: a functional ATen graph, and which of its inputs are parameters of the program. Out: a compiled
callable (`from_aten.py`), or its code, for a package.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from dynamo.aot.graphs import LazyGraph
from dynamo.aot.plain_graphs import CachedGraph
from dynamo.aot.recipes import noted
from dynamo.base import logs
from dynamo.base.counters import timed
from dynamo.base.fallbacks import GRAPH
from dynamo.base.graph_copies import copy_graph
from dynamo.base.loading import collection_paused
from dynamo.base.signals import is_of_signal
from inductor.autotune.early_libraries import with_libraries
from inductor.autotune.preparation import most_bytes
from inductor.config import config, is_enabled
from inductor.driver import from_aten
from inductor.driver.cached_aten import AtenCompiler, Cached
from inductor.driver.failures import report_defect
from inductor.driver.freezing import FrozenCall, frozen_inputs, steady_inputs
from inductor.fx_passes.checks import apply, checked
from inductor.fx_passes.constant_parts import compute_constants_once
from inductor.fx_passes.fakes import any_on_gpu
from inductor.fx_passes.fold import fold_batch_norms
from inductor.fx_passes.join_gemms import addresses_of, join_gemms
from inductor.fx_passes.pipeline import in_chunks, in_float32, laid_out, rewritten
from inductor.ir.graph import Prepared
from inductor.lowering.registry import LOWERINGS
from inductor.lowering.run import Lowered
from inductor.lowering.sizes import has_symbols

Compiled = Callable[..., Any]


def inference_compiler(
    gm: torch.fx.GraphModule, example_inputs: list[Any], settings: Mapping[str, Any],
    cached: Cached, learns: bool = False,
) -> AtenCompiler:
    """What compiles the ATen graph of a captured one, by what is known of these inputs. learns:
    whether some are learnt, though this graph gives no gradient: weights that change in between."""
    on_gpu = any_on_gpu(example_inputs)
    if on_gpu and config.kernels and is_enabled("patterns"):
        joined = functools.partial(_compile_joined, addresses_of(example_inputs))
        return cached(joined, "joined", example_inputs)
    freezes = config.freezing and config.kernels and not on_gpu and not learns
    frozen = frozen_inputs(gm, example_inputs) if freezes else frozenset[int]()
    if not frozen:
        return cached(compile_plainly, "plain")
    steady = steady_inputs(example_inputs, frozen)
    return cached(functools.partial(_compile_frozen, frozen, steady, settings),
                  f"frozen {sorted(frozen)} {sorted(steady)}")


def _compile_joined(
    addresses: Mapping[int, int], module: torch.fx.GraphModule, fakes: list[Any]
) -> Compiled:
    """addresses: where the inputs lie on a GPU, by position."""
    if not has_symbols(module):
        with timed("inductor.passes"):
            module = apply(
                join_gemms, module, addresses, LOWERINGS.__contains__, config.max_autotune)
    return compile_plainly(module, fakes)


def _compile_frozen(
    frozen: frozenset[int], steady: frozenset[int], settings: Mapping[str, Any],
    module: torch.fx.GraphModule, fakes: list[Any],
) -> Compiled:
    """As below; where the weights change all the time, the graph is compiled without freezing."""
    if has_symbols(module):
        return compile_plainly(module, fakes)
    copy = LazyGraph(module, copy_graph(module.graph))  # the stages write into the other one
    copy.meta.update(module.meta)
    call = compile_plainly(module, fakes, frozen, steady)

    if isinstance(call, FrozenCall):
        call.instead = _plain_instead(settings, CachedGraph(copy))
    return call


def _plain_instead(
    settings: Mapping[str, Any], graph: CachedGraph
) -> Callable[[], Compiled | None]:
    """What compiles a graph without freezing, for `FrozenCall`."""

    def compile_plain() -> Compiled | None:
        module = graph.module()
        fakes = [n.meta["val"] for n in module.graph.nodes if n.op == "placeholder"]
        try:
            with config.patch(**settings), torch.no_grad(), collection_paused():
                return compile_plainly(module, fakes)
        except Exception as defect:
            if is_of_signal(defect):
                raise
            report_defect(GRAPH, defect, module, at_call=True)
            return None

    return noted(compile_plain, _plain_instead, settings, graph)  # type: ignore[no-any-return]


def compile_plainly(
    module: torch.fx.GraphModule, fakes: list[Any], frozen: frozenset[int] = frozenset(),
    steady: frozenset[int] = frozenset(),
) -> Compiled:
    """An ATen graph. frozen: positions of parameters; steady: of inputs that seldom change."""
    if not has_symbols(module):
        module = _with_constants(in_chunks(module), fakes, frozen, steady)
    return from_aten.compile_aten(module, fakes)


def _with_constants(
    module: torch.fx.GraphModule, fakes: list[Any], frozen: frozenset[int], steady: frozenset[int]
) -> torch.fx.GraphModule:
    """The graph of inference in its layout, with what is computed once among its inputs."""
    with timed("inductor.passes"):
        module = in_float32(module)
        module, made, taken = _prepared(module, len(fakes), frozen, steady)
        module = laid_out(module)
    positions = frozen.union(range(len(fakes), len(fakes) + len(made)))
    module.meta.update(frozen=positions, prepared=made, prepared_bytes=taken)
    return module


@dataclass(frozen=True, slots=True)
class Generated:
    """The code of a graph on a CPU, and what made it. prepared: what its last inputs hold."""

    units: list[str]
    spec: dict[str, Any]
    lowered: Lowered
    prepared: tuple[Prepared, ...]


@collection_paused()
@with_libraries
def generate_inference(
    module: torch.fx.GraphModule, fakes: list[Any], frozen: frozenset[int], steady: frozenset[int]
) -> Generated:
    """The code of an ATen graph of inference on a CPU, for a package (`package/cpu_graph.py`)."""
    if has_symbols(module):
        with timed("inductor.passes"):
            module = laid_out(module)
    else:
        module = _with_constants(module, fakes, frozen, steady)
    with timed("inductor.passes"):
        module = rewritten(module)
    logs.log("aot_graphs").emit(lambda: str(module.code))
    lowered, schedule = from_aten.lower_and_schedule(module, None)
    units, spec = from_aten.generate(lowered, schedule)
    return Generated(
        units, spec, lowered, (*module.meta.get("prepared", ()), *lowered.graph.prepared))


def _prepared(
    module: torch.fx.GraphModule, count: int, frozen: frozenset[int], steady: frozenset[int]
) -> tuple[torch.fx.GraphModule, tuple[Prepared, ...], int]:
    """The graph with further inputs behind the first `count`, what these hold, and the bytes of
    those that were computed from steady inputs."""
    if not frozen:
        return module, (), 0
    module, values, taken = compute_constants_once(module, steady, most_bytes())
    known = frozen.union(range(count, count + len(values)))
    module, norms = fold_batch_norms(checked(module, "compute_constants_once"), known)
    return checked(module, "fold_batch_norms"), (*values, *norms), taken
