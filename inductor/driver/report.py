"""What is counted and logged of each graph that the default backend compiles."""

from __future__ import annotations

from dynamo.base import events, logs
from inductor import metrics
from inductor.cache.graph_cache import report_fallbacks
from inductor.cache.launched import note_fallbacks
from inductor.ir.graph import ExternKernel, MultiOutput
from inductor.lowering.run import Lowered
from inductor.scheduler.schedule import Schedule


def report_graph(lowered: Lowered, schedule: Schedule) -> None:
    """Counts and logs one graph that is lowered and scheduled."""
    metrics.count("graphs")
    for kernel in schedule.kernels():
        metrics.count("kernels")
        metrics.count("nodes", len(kernel.nodes))
        metrics.count("fused_nodes", len(kernel.nodes) if len(kernel.nodes) > 1 else 0)
    metrics.count("extern_calls", sum(isinstance(s, ExternKernel) for s in schedule.steps))
    note_fallbacks(lowered.fallbacks)
    report_fallbacks(lowered.fallbacks)
    logs.log("ir_pre_fusion").emit(lambda: str(lowered.graph))
    logs.log("ir_post_fusion").emit(lambda: str(schedule))
    logs.log("fusion").emit(lambda: _fusion_text(schedule))


def report_steps(schedule: Schedule) -> None:
    """The event `kernels`: for each step in order its name, whether it is generated, and the lines
    of the program (`file:line`) that it computes."""
    rows = []
    for step in schedule.steps:
        if isinstance(step, ExternKernel):
            name = step.name if step.ours else f"{step.target} {step.name}"
            rows.append((name, step.ours, step.origins.lines))
        elif not isinstance(step, MultiOutput):
            rows.append((step.name, True, step.origins.lines))
    events.record(events.Event("kernels", logs.compile_id_now(), {"kernels": rows}))


def _fusion_text(schedule: Schedule) -> str:
    lines = [f"{kernel.name} = {' + '.join(kernel.nodes)}" for kernel in schedule.kernels()]
    lines += [f"{a} and {b} stay apart: {why}" for a, b, why in schedule.refusals]
    return "\n".join(lines)
