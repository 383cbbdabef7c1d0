"""Where the steps of a schedule read and write each buffer, for passes that move and join steps."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from inductor.ir.graph import ExternKernel, LoopGraph, ViewRef
from inductor.scheduler.schedule import Generated, Schedule, Step


class Uses:
    """readers, writers: positions of steps, by buffer. outside: buffers that leave the graph."""

    def __init__(self, graph: LoopGraph, schedule: Schedule) -> None:
        self.layouts, self.steps = graph.layouts(), schedule.steps
        self.outside = {o.buffer for o in graph.outputs if isinstance(o, ViewRef)}
        self.readers: dict[str, list[int]] = {}
        self.writers: dict[str, list[int]] = {}
        for position, step in enumerate(self.steps):
            for name in step.reads():
                self.readers.setdefault(name, []).append(position)
            for name in written(step):
                self.writers.setdefault(name, []).append(position)

    def is_written(self, names: Iterable[str], start: int, end: int) -> bool:
        """Whether a step between two positions writes one of these buffers."""
        return any(start < at < end for name in names for at in self.writers.get(name, ()))


def written(step: Step) -> tuple[str, ...]:
    """Buffers that a step makes or changes."""
    if isinstance(step, Generated):
        return step.writes()
    return (step.name, *step.mutates) if isinstance(step, ExternKernel) else (step.name,)


def with_placed(
    schedule: Schedule, placed: Mapping[int, Step], gone: Collection[int]
) -> Schedule:
    """The schedule with these steps at these positions, without those that are gone else."""
    steps = tuple(
        placed.get(position, step)
        for position, step in enumerate(schedule.steps)
        if position in placed or position not in gone
    )
    return replace(schedule, steps=steps)
