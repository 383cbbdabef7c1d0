"""From a functional ATen graph to a callable: loop IR, schedule, code, a library or a module.

In: an ATen graph with fakes in `meta["val"]`, of a forward or of a backward. Out: a callable from
its inputs to its outputs. What a stage can't do falls back to ATen, operator by operator.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from dynamo.aot.boxed import picking_arguments, run_as_it_is
from dynamo.aot.partition import DIES
from dynamo.aot.plain_graphs import CachedGraph
from dynamo.aot.recipes import noted
from dynamo.base import logs
from dynamo.base.counters import timed
from dynamo.base.loading import collection_paused
from dynamo.store.content import cache_store
from inductor.autotune.early_libraries import with_libraries
from inductor.autotune.library_kernels import choose_library_kernels
from inductor.autotune.library_settings import LibrarySettings
from inductor.cache.launched import note_launcher
from inductor.codegen.bind import broken_assumption
from inductor.collectives.holds import hold_operands
from inductor.collectives.settings import with_overlap
from inductor.config import config, is_enabled
from inductor.driver import cpu
from inductor.driver.failures import defects_refused
from inductor.driver.for_gpu import for_gpu, symbolic_for_gpu
from inductor.driver.freezing import FrozenCall
from inductor.driver.report import report_graph, report_steps
from inductor.dynamic_shapes.symbolic import ForAllSizes, Variant
from inductor.fx_passes.pipeline import rewritten
from inductor.lowering.run import Lowered, lower_graph
from inductor.lowering.sizes import has_symbols
from inductor.scheduler.convolution_chains import chain_convolutions
from inductor.scheduler.cpu_gemms import attach_epilogues, join_chains
from inductor.scheduler.fuse_convolutions import fuse_convolutions
from inductor.scheduler.run import schedule_graph
from inductor.scheduler.schedule import Schedule

Compiled = Callable[..., Any]


@with_libraries
def compile_aten(module: torch.fx.GraphModule, fakes: list[Any]) -> Compiled:
    """See the top of the file. Errors: Unsupported, NoCompiler; defects."""
    with timed("inductor.passes"):
        module = rewritten(module)
    logs.log("aot_graphs").emit(lambda: str(module.code))
    if not config.kernels:
        return run_as_it_is(module)
    if has_symbols(module):
        first = _compile_variant(module, logs.compile_now(), None)
        count = len(module.graph.find_nodes(op="placeholder"))
        return for_all_sizes(CachedGraph(module), count, first)
    lowered, schedule = lower_and_schedule(module, None)
    if lowered.graph.device.type != "cpu":
        call = for_gpu(lowered, schedule, module.meta.get("values"), _dying(module))
        return tensors_only(call, lowered)
    units, spec = generate(lowered, schedule)
    call = tensors_only(cpu.load(units, spec, cache_store()), lowered)
    prepared = (*module.meta.get("prepared", ()), *lowered.graph.prepared)
    if not prepared:
        return call
    unused = [n for n, one in enumerate(lowered.graph.inputs) if one is None and n >= len(fakes)]
    return FrozenCall(call, prepared, len(fakes), unused)


def for_all_sizes(graph: CachedGraph, count: int, first: Variant) -> Compiled:
    """The callable of a graph of `count` inputs, of which a variant is compiled."""
    what = logs.compile_now()
    program = ForAllSizes(
        graph, count, first, lambda hints: _compile_variant(graph.module(), what, hints))
    return noted(program.call, for_all_sizes, graph, count, first)  # type: ignore[no-any-return]


def _dying(module: torch.fx.GraphModule) -> frozenset[int]:
    """Inputs that nothing holds but who calls the graph."""
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    return frozenset([at for at, node in enumerate(placeholders) if DIES in node.meta])


@collection_paused()
@with_libraries
def _compile_variant(
    module: torch.fx.GraphModule, what: logs.Compile, hints: Sequence[int] | None
) -> Variant:
    """The code of a graph whose sizes are known at a call; hints: sizes that it is likely for."""
    with logs.compiling(what), defects_refused():
        lowered, schedule = lower_and_schedule(module, hints)
        symbols = lowered.symbols
        assert symbols is not None
        tensors = tuple(n for n, buffer in enumerate(lowered.graph.inputs) if buffer is not None)
        if lowered.graph.device.type != "cpu":
            values = module.meta.get("values")
            holds, bind = symbolic_for_gpu(lowered.graph, schedule, symbols.sizes, values)
        else:
            units, spec = generate(lowered, schedule)
            path = cpu.build(units, cache_store())
            variant = cpu.variant_of(path, spec, symbols.sizes, tuple(symbols.sources), tensors)
            note_launcher(variant, path, spec, units)
            return variant
    broken = functools.partial(broken_assumption, symbols.sizes)
    return Variant(holds, broken, bind, tuple(symbols.sources), tensors, symbols.sizes)


def lower_and_schedule(
    module: torch.fx.GraphModule, hints: Sequence[int] | None
) -> tuple[Lowered, Schedule]:
    """The loops of a graph, and their order. hints: values of its symbols that it is likely for."""
    with timed("inductor.lowering"):
        lowered = lower_graph(
            module, hints, inline=is_enabled("inlining"), in_memory_order=is_enabled("layout"),
            convolves=is_enabled("templates"))
    threads = torch.get_num_threads()
    if config.library_kernels != "default":
        with timed("inductor.library_kernels"):
            frozen = module.meta.get("frozen", ())
            chosen = choose_library_kernels(
                lowered.graph, cache_store(), threads, frozen,
                LibrarySettings(config.library_kernels, is_enabled("templates")),
                module.meta.get("prepared_bytes", 0))
            lowered = replace(lowered, graph=chosen)
    lowered = replace(lowered, graph=hold_operands(lowered.graph))
    with timed("inductor.scheduler"):
        schedule = schedule_graph(lowered.graph, threads, is_enabled("fusion"))
        if is_enabled("fusion"):
            schedule = fuse_convolutions(lowered.graph, schedule)
            schedule = chain_convolutions(lowered.graph, schedule)
            schedule = attach_epilogues(lowered.graph, schedule)
            schedule = join_chains(lowered.graph, schedule)
        if lowered.graph.device.type == "cpu":  # on a GPU, templates are chosen first
            schedule = with_overlap(lowered.graph, schedule)
    report_graph(lowered, schedule)
    return lowered, schedule


def generate(lowered: Lowered, schedule: Schedule) -> tuple[list[str], dict[str, Any]]:
    """C++ units of a schedule, and what the launcher has to know."""
    report_steps(schedule)
    cores = len(os.sched_getaffinity(0))
    return cpu.generate("graph", lowered.graph, schedule, torch.get_num_threads(), cores)


def tensors_only(launcher: Compiled, lowered: Lowered) -> Compiled:
    """The launcher takes tensors; numbers among the inputs are constants of the graph."""
    inputs = lowered.graph.inputs
    if None not in inputs:
        return launcher
    return picking_arguments(launcher, [n for n, buffer in enumerate(inputs) if buffer is not None])
