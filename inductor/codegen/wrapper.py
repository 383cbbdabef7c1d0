"""The C++ function that runs a whole schedule, and the description that the launcher needs.

In: a schedule, its memory plan and its printed kernels. Out: the text of `run` and a dict in the
format of `runtime/csrc/spec.cpp`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from inductor.codegen.calls import CallWriter
from inductor.codegen.cpp.kernel import KernelSource
from inductor.codegen.own_functions import own_call
from inductor.codegen.step_facts import Row, facts_of_step
from inductor.ir.graph import ExternKernel, LoopGraph
from inductor.scheduler.memory import MemoryPlan
from inductor.scheduler.schedule import Kernel, Schedule

HEAD = """\
extern "C" __attribute__((visibility("default"))) int run(Runtime* rt) {
  void** d = rt->data;
  rt->error_code = 0;
"""

SHORT = 4  # steps; chosen, not measured
FAILED = "return 1;"

# A function of so many steps is a list of calls, each of which takes longer than what an optimizer
# could save of them; optimizing it takes most of the build (48 layers: 0.7 s of 0.8).
LONG = 48
BEFORE_LONG = ("#pragma GCC push_options", '#pragma GCC optimize("O0")')
AFTER_LONG = ("#pragma GCC pop_options",)


@dataclass(frozen=True, slots=True)
class Wrapper:
    """text: of the function `run`; spec: for `Launcher`, with extents where sizes are known at a
    call (see `codegen/bind.py`)."""

    text: str
    spec: dict[str, Any]


def print_wrapper(
    name: str,
    graph: LoopGraph,
    schedule: Schedule,
    plan: MemoryPlan,
    kernels: Mapping[str, KernelSource],
    threads: int,
    epilogues: Mapping[str, KernelSource] = MappingProxyType({}),
) -> Wrapper:
    """The wrapper of a schedule; `kernels` by name; threads: for GEMMs of our own; epilogues:
    functions that these call, by the name of the kernel."""
    writer = CallWriter(graph, schedule, plan, {**kernels, **epilogues}, threads)
    facts = _write_steps(writer)
    spec = _spec(name, writer, facts)
    head = [*sorted(writer.declarations), HEAD, *_sizes(writer)]
    end = "  if (rt->step) rt->step(rt, -1);"
    lines = [*head, *writer.lines, end, "  return 0;", "}", ""]
    if len(schedule.steps) >= LONG:
        lines = [*BEFORE_LONG, *lines[:-1], *AFTER_LONG, ""]
    return Wrapper("\n".join(lines), spec)


def _write_steps(writer: CallWriter) -> list[Row]:
    """Writes all calls; what is said of the steps that the wrapper announces."""
    rows: list[Row] = []
    for position, step in enumerate(writer.schedule.steps):
        facts = facts_of_step(step, writer.layouts)
        if facts is not None:
            writer.lines.append(f"  if (rt->step) rt->step(rt, {len(rows)});")
            rows.append(facts)
        written = len(writer.lines)
        if isinstance(step, Kernel):
            writer.call_kernel(step)
        elif call := own_call(step):
            call(writer, step)
        elif isinstance(step, ExternKernel):
            writer.call_extern(step)
        _number_failures(writer.lines, written, len(rows))
        for dead in writer.plan.dead_after.get(position, ()):
            writer.lines.append(f"  rt->drop(rt, {writer.slot_of[dead]});")
    return rows


def _number_failures(lines: list[str], first: int, number: int) -> None:
    """A call that fails ends the function with the number of its step, from 1 on."""
    for at in range(first, len(lines)):
        lines[at] = lines[at].replace(FAILED, f"return {max(number, 1)};")


def _spec(name: str, writer: CallWriter, steps: list[Row]) -> dict[str, Any]:
    """The description of a wrapper whose calls are written."""
    plan, slot_of = writer.plan, writer.slot_of
    outputs = [writer.output(output) for output in writer.graph.outputs]  # these have views, too
    return {
        "name": name,
        "lives": [(slot_of[x.name], x.first, x.last, x.bytes) for x in plan.lives],
        "arena_bytes": plan.arena_bytes,
        "release_gil": lets_python_run(writer.schedule),
        "slots": writer.slots,
        "views": list(writer.views),
        "constants": [constant.value for constant in writer.graph.constants],
        "externs": writer.externs,
        "called": writer.called,
        "outputs": outputs,
        "steps": steps,
    }


def lets_python_run(schedule: Schedule) -> bool:
    """Whether other threads may run Python meanwhile, which a short call is too short for. One of
    an operator that is not ATen's always lets them: it may wait for a thread that wants to, as that
    of gloo does where it frees a tensor that a Python object belongs to."""
    others = (step for step in schedule.steps if isinstance(step, ExternKernel))
    return len(schedule.steps) > SHORT or any(
        getattr(step.target, "namespace", "aten") != "aten" for step in others)


def _sizes(writer: CallWriter) -> list[str]:
    """Sizes known at a call are read from the last slot."""
    symbols = sorted(writer.symbols)
    if not symbols:
        return []
    lines = [f"  const i64* sizes = (const i64*)d[{len(writer.slots)}];"]
    return lines + [f"  const i64 {name} = sizes[{int(name[1:])}];" for name in symbols]
