"""What the backend keeps for `dynamo.report`.

In: a graph that is generated now. Out: recordings of kind "lowered", and the last modules for GPUs
(on a CPU the launchers themselves know what they run).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dynamo.backends.registry import at_reset
from dynamo.base import logs, recordings
from inductor.codegen.step_facts import facts_of_step, without_extents
from inductor.ir.graph import LoopGraph
from inductor.scheduler.schedule import Schedule


@dataclass(frozen=True, slots=True, eq=False)
class LoweredRecord:
    """steps: those of the launcher's description, the same object (see `codegen/step_facts.py`).
    loops: the loop IR before fusion; fused: behind it; refusals: what was not fused, and why.
    text: of the generated Python module, where there is one (on a GPU)."""

    steps: list[Any]
    loops: str
    fused: str
    refusals: tuple[tuple[str, str, str], ...]
    device: str
    text: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class GpuRecord:
    """steps: see `codegen/step_facts.py`. functions: the kernel that each of Triton's functions is
    of, by name. compile: whose it is."""

    steps: list[Any]
    functions: Mapping[str, str]
    compile: logs.Compile


gpu_records: deque[GpuRecord] = deque(maxlen=1_000)
at_reset(gpu_records.clear)


def keep_on_gpu(
    graph: LoopGraph, schedule: Schedule, functions: Mapping[str, str], text: str
) -> GpuRecord:
    """Keeps what profilers and reports want to know of a generated module."""
    layouts = graph.layouts()
    facts = (facts_of_step(step, layouts) for step in schedule.steps)
    steps = [without_extents(row) for row in facts if row is not None]
    record = GpuRecord(steps, functions, logs.compile_now())
    gpu_records.append(record)
    keep_lowered(graph, schedule, steps, text)
    return record


def keep_lowered(
    graph: LoopGraph, schedule: Schedule, steps: list[Any], text: str = ""
) -> None:
    """Keeps the texts of a graph where somebody wants a report."""
    if recordings.wanted():
        recordings.keep("lowered", LoweredRecord(
            steps, str(graph), str(schedule), schedule.refusals, str(graph.device), text))
