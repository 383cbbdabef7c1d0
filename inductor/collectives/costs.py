"""The steps of a schedule as events of the simulator.

In: units of steps (`scheduler/peak.py`), the numbers of a machine. Out: one event for each unit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

from inductor.codegen.step_facts import Layouts, facts_of_step
from inductor.collectives.calls import collective_of, is_wait
from inductor.collectives.machine import (
    Group,
    Machine,
    group_of,
    is_inside,
    seconds_of_collective,
    seconds_of_kernel,
)
from inductor.collectives.timeline import Compute, Event, Start, Wait
from inductor.ir.extent import hint_of
from inductor.ir.graph import ExternKernel, MultiOutput
from inductor.scheduler.schedule import Generated, Step, TemplateKernel

HALVES = (torch.float16, torch.bfloat16)
# Where this process has no such group: what is said of it holds for two ranks.
UNKNOWN = Group((0, 1))
Groups = Callable[[str, torch.device], Group | None]


def events_of(
    units: Iterable[list[Step]], layouts: Layouts, machine: Machine, groups: Groups = group_of
) -> list[Event]:
    """See the top of the file."""
    calls: dict[str, str] = {}  # results of lists of collectives, by name
    found: list[Event] = []
    for steps in units:
        step = steps[0]
        for other in steps[1:]:
            assert isinstance(other, MultiOutput)
            calls[other.name] = other.extern
        if isinstance(step, ExternKernel) and is_wait(step.target):
            waited = next(step.views()).buffer
            while waited in calls:
                waited = calls[waited]
            calls[step.name] = waited
            found.append(Wait(waited))
        else:
            found.append(_event_of(step, layouts, machine, groups))
    return _known_waits(found)


def _known_waits(events: list[Event]) -> list[Event]:
    """A wait for what another graph has started costs nothing that is known here."""
    started = {event.key for event in events if isinstance(event, Start)}
    return [Compute(0.0) if isinstance(event, Wait) and event.key not in started else event
            for event in events]  # fmt: skip


def _event_of(step: Step, layouts: Layouts, machine: Machine, groups: Groups) -> Event:
    row = facts_of_step(step, layouts)
    moved, operations = (0, 0) if row is None else map(hint_of, row[-2:])
    if isinstance(step, ExternKernel):
        started = collective_of(step.target, step.args)
        if started is not None:
            view = next(step.views())
            device = layouts[view.buffer].device
            group = groups(started.group, device) or UNKNOWN
            size = bytes_sent(step, layouts, len(group.ranks))
            seconds = seconds_of_collective(machine, started.kind, group, size)
            return Start(step.name, "inside" if is_inside(machine, group) else "between", seconds)
    return Compute(seconds_of_kernel(machine, moved, operations, _is_half(step, layouts)))


def bytes_sent(step: ExternKernel, layouts: Layouts, ranks: int) -> int:
    """Bytes of the larger side, operands or results."""
    given = sum(hint_of(_elements(view.size)) * view.dtype.itemsize for view in step.views())
    return given * ranks if "all_gather" in step.target._opname else given


def _elements(size: tuple[int, ...]) -> int:
    count = 1
    for extent in size:
        count = count * extent
    return count


def _is_half(step: Step, layouts: Layouts) -> bool:
    if isinstance(step, TemplateKernel):
        return step.gemms()[0].dtype in HALVES
    names = step.writes() if isinstance(step, Generated) else step.reads()
    return bool(names) and names[0] in layouts and layouts[names[0]].dtype in HALVES
