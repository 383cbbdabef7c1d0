"""From a schedule to a callable on a GPU: templates, Triton modules, CUDA graphs.

In: the loop graph, its schedule. Out: what `from_aten.py` gives for it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from dynamo.aot.records import Unsupported
from dynamo.base import logs
from dynamo.base.counters import timed
from dynamo.store.content import cache_store
from inductor.autotune.gpu_gemms import choose_templates
from inductor.autotune.tuning import Tuner
from inductor.cache.gpu_module import Bind, by_sizes
from inductor.codegen.bind import where_it_holds
from inductor.collectives.settings import with_overlap
from inductor.config import config, is_enabled, records_graphs
from inductor.driver import cuda
from inductor.driver.report import report_steps
from inductor.ir.extent import Sizes
from inductor.ir.graph import LoopGraph
from inductor.lowering.run import Lowered
from inductor.runtime.cuda_graphs import Graphing
from inductor.runtime.recordable import is_reread, refusal, written_inputs
from inductor.runtime.recorder import CudaRecorder
from inductor.scheduler.peak import with_less_held
from inductor.scheduler.schedule import Schedule

Compiled = Callable[..., Any]


def symbolic_for_gpu(
    graph: LoopGraph, schedule: Schedule, sizes: Sizes, values: int | None
) -> tuple[Callable[..., bool], Bind]:
    """Triton kernels for all sizes: where they hold, and what binds them to some."""
    _need_triton(graph)
    if is_enabled("templates"):
        with timed("inductor.autotuning"):
            schedule = choose_templates(graph, schedule, _tuner(), is_enabled("fusion"), sizes)
    schedule = with_overlap(graph, schedule)
    report_steps(schedule)
    made = cuda.generate(graph, schedule, sizes.symbols)
    graphed = _graphing(graph, schedule, made.slow, values)
    measured = config.max_autotune  # by the first calls of each process
    record = None if measured else made.record
    loaded = cuda.load_module(made.text, graph, measured, graphed, record)
    return where_it_holds(sizes), by_sizes(*loaded)


def for_gpu(
    lowered: Lowered, schedule: Schedule, values: int | None, dying: frozenset[int] = frozenset()
) -> Compiled:
    """dying: positions of the inputs that the caller lets go of, where it does."""
    graph, plain = lowered.graph, schedule
    _need_triton(graph)
    tuner = _tuner()
    if is_enabled("templates"):
        with timed("inductor.autotuning"):
            schedule = choose_templates(graph, schedule, tuner, is_enabled("fusion"))
    given = [b.name for b in graph.inputs if b is not None and b.position in dying]
    build = functools.partial(_build, graph, given, tuner, values)
    try:
        return build(schedule)
    except cuda.KernelErrors as errors:
        if schedule is plain:
            raise
        cuda.report_broken_templates(graph, schedule, errors)
        return build(plain)


def _build(
    graph: LoopGraph, given: Sequence[str], tuner: Tuner | None, values: int | None,
    schedule: Schedule,
) -> Compiled:
    with timed("inductor.scheduler"):
        schedule = with_less_held(graph, schedule, given)
        schedule = with_overlap(graph, schedule, given)
    report_steps(schedule)
    graphing = functools.partial(_graphing, graph, schedule, values=values)
    return cuda.build(graph, schedule, tuner, graphing, given)


def _tuner() -> Tuner | None:
    return Tuner(cache_store(), cuda.load_all) if config.max_autotune else None


def _graphing(
    graph: LoopGraph, schedule: Schedule, slow: Sequence[str], values: int | None
) -> Graphing | None:
    """What makes callables that are recorded as CUDA graphs; None where they must not be, or
    nobody asks for it. values: see `GraphedCall`."""
    if not records_graphs():
        return None
    why = refusal(graph, schedule, slow)
    if why:
        logs.log("cudagraphs").emit(f"no CUDA graph: {why}")
        return None
    written = written_inputs(graph, schedule)
    repeatable = not (written or is_reread(schedule))
    return Graphing(CudaRecorder(graph.device), values, written, repeatable)


def _need_triton(graph: LoopGraph) -> None:
    why = cuda.available() if graph.device.type == "cuda" else f"no code for {graph.device}"
    if why:
        raise Unsupported(why)
