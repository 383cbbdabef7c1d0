"""The order of a schedule with collectives: started early, waited for late.

In: a loop graph of which each wait holds what its collective reads (`holds.py`), its schedule, the
numbers of a machine. Out: the same steps in another order.

Steps run as the program has them, but for this. A collective starts as soon as its operands are
there; what little is computed for it from inputs alone runs before it. A wait comes just before the
first step that needs it, or last. Where a step would stand still for a collective that is not done
(by the simulator's clock), others that need not wait run before it. What is there before the
program would have it, or stays longer, may take the `megabytes` of the machine; beyond that,
nothing starts before its place, and collectives are waited for so that their operands can go. The
order is taken only if its peak is at most so much above that of the program's order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from dynamo.base.errors import VerifyError
from dynamo.graph_operators.operator_effects import freedom_of
from inductor.collectives.calls import collective_of
from inductor.collectives.costs import Groups, events_of
from inductor.collectives.machine import Machine, group_of
from inductor.collectives.timeline import Clock, Compute, Event, Forecast, Start, Wait, simulate
from inductor.ir.graph import ExternKernel, LoopGraph
from inductor.scheduler.peak import Held
from inductor.scheduler.schedule import Schedule, Step
from inductor.scheduler.verify import verify_steps

MOST_BEFORE = 16  # steps that run earlier so that a collective can start
LOOKS = 64  # how many steps ahead others are looked for while a collective is not done


@dataclass(frozen=True, slots=True)
class Moved:
    """A collective, and by how many steps it starts earlier and is waited for later."""

    name: str
    target: str
    group: str
    earlier: int
    later: int


@dataclass(frozen=True, slots=True)
class Planned:
    """A schedule; what is predicted of it, and of the program's order; what has moved."""

    schedule: Schedule
    forecast: Forecast
    of_program: Forecast
    moved: tuple[Moved, ...] = ()

    def __str__(self) -> str:
        lines = [f"{one.name} {one.target} of group {one.group!r}: {one.earlier} steps earlier, "
                 f"waited for {one.later} later" for one in self.moved]  # fmt: skip
        return "\n".join([*lines, f"program's order: {self.of_program}", f"ours: {self.forecast}"])


def plan_collectives(
    graph: LoopGraph, schedule: Schedule, machine: Machine,
    dying: Iterable[str] = (), groups: Groups = group_of,
) -> Planned | None:
    """See the top of the file; None for a schedule without collectives. dying: inputs that go at
    their last use."""
    if not any(map(_starts, schedule.steps)):
        return None
    layouts, limit = graph.layouts(), int(machine.megabytes * 1e6)
    held = Held(graph, schedule, layouts, dying)
    events = events_of([unit.steps for unit in held.units], layouts, machine, groups)
    before = held.before()
    program = list(range(len(events)))
    least = held.peak(program)
    order = program
    for most in (limit, limit // 4, 0):
        order = _Orderer(held, events, before, most).run()
        if held.peak(order) <= least + limit:
            break
    else:
        order = program
    _verify_order(events, before, order)
    steps = tuple(step for at in order for step in held.units[at].steps)
    verify_steps(graph, steps)
    return Planned(
        replace(schedule, steps=steps),
        simulate([events[at] for at in order], held.peak(order)),
        simulate(events, least),
        tuple(_moved(held, events, order)),
    )


def _starts(step: Step) -> bool:
    return isinstance(step, ExternKernel) and collective_of(step.target, step.args) is not None


class _Orderer:
    """One run of the rules at the top of the file.

    early: bytes of what runs before its place, by unit; operand_bytes: of operands that are
    only held for collectives that nobody has waited for, by the collective's name.
    """

    def __init__(
        self, held: Held, events: Sequence[Event], before: Sequence[set[int]], limit: int
    ) -> None:
        self.held, self.events, self.before, self.limit = held, events, before, limit
        self.order: list[int] = []
        self.done = [False] * len(events)
        self.place = 0  # all before it have run, but waits
        self.clock = Clock()
        self.early: dict[int, int] = {}
        self.operand_bytes: dict[str, int] = {}
        self.waits = [at for at, event in enumerate(events) if isinstance(event, Wait)]
        self.starts: dict[str, list[int]] = {}  # by group, those that have not run, the next last
        for at, event in reversed(list(enumerate(events))):
            if isinstance(event, Start):
                self.starts.setdefault(self._group(at), []).append(at)

    def _group(self, at: int) -> str:
        step = self.held.units[at].steps[0]
        assert isinstance(step, ExternKernel)
        found = collective_of(step.target, step.args)
        assert found is not None
        return found.group

    def run(self) -> list[int]:
        while (at := self._next()) is not None:
            if self._start_early(at):
                continue
            other = self._instead_of(at) if self._stands_still(at) else None
            if other is not None:
                self.early[other] = self._made(other)
                self._run(other)
            else:
                self._run(at)
                self._let_go()
        for wait in self.waits:
            self._run(wait)
        return self.order

    def _next(self) -> int | None:
        """The first step in the program's order that has not run; waits do not count."""
        events = self.events
        while self.place < len(events) and (
                self.done[self.place] or isinstance(events[self.place], Wait)):
            self.early.pop(self.place, None)
            self.place += 1
        return self.place if self.place < len(events) else None

    def _run(self, at: int) -> None:
        """A step behind all that it needs."""
        if self.done[at]:
            return
        for other in sorted(self.before[at]):
            self._run(other)
        event = self.events[at]
        self.clock.run(event)
        self.done[at] = True
        self.order.append(at)
        if isinstance(event, Start):
            self.starts[self._group(at)].pop()
            self.operand_bytes[event.key] = self._operands(at)
        elif isinstance(event, Wait):
            self.operand_bytes.pop(event.key, None)

    # -- collectives ------------------------------------------------------------------------------

    def _start_early(self, at: int) -> bool:
        """Whether a collective could start before step `at`, and has."""
        for left in self.starts.values():
            start = left[-1] if left else at
            if start <= at:
                continue
            first = self._needed_first(start)
            if first is None or not self._is_worth(at, start, first):
                continue
            size = sum(map(self._made, (*first, start)))
            if self._extra() + size + self._operands(start) <= self.limit:
                for other in (*first, start):
                    self.early[other] = self._made(other)
                self._run(start)
                return True
        return False

    def _needed_first(self, start: int) -> list[int] | None:
        """The steps that have to run before a collective; None if these are many, or wait."""
        found: set[int] = set()
        work = [start]
        while work:
            for other in self.before[work.pop()]:
                if self.done[other] or other in found:
                    continue
                if not self._is_plain(other) or len(found) == MOST_BEFORE:
                    return None
                found.add(other)
                work.append(other)
        return sorted(found)

    def _is_worth(self, at: int, start: int, first: list[int]) -> bool:
        """What is computed for it takes less than it does itself; and what could start at any time
        leaves the link to others until that is nearly free."""
        event, clock = self.events[start], self.clock
        assert isinstance(event, Start)
        if self._seconds(first) > event.seconds:
            return False
        if any(other not in first and self._is_plain(other) for other in self.before[start]):
            return True
        ahead = clock.links.get(event.link, 0.0) - clock.now
        return ahead <= max(event.seconds, self._seconds([at]))

    def _let_go(self) -> None:
        """Waits for collectives whose operands take too much memory, the oldest first."""
        if self._extra() <= self.limit:
            return
        for wait in [at for at in self.waits if not self.done[at]]:
            if self._extra() <= self.limit:
                return
            event = self.events[wait]
            assert isinstance(event, Wait)
            if self.operand_bytes.get(event.key) and all(self.done[x] for x in self.before[wait]):
                self._run(wait)

    # -- steps that wait --------------------------------------------------------------------------

    def _stands_still(self, at: int) -> bool:
        return any(not self.clock.is_done(key) for key in self._waited_for(at))

    def _waited_for(self, at: int) -> Iterator[str]:
        for other in self.before[at]:
            event = self.events[other]
            if isinstance(event, Wait) and not self.done[other]:
                yield event.key

    def _instead_of(self, at: int) -> int | None:
        for other in range(at + 1, min(at + LOOKS, len(self.events))):
            if self.done[other] or not self._is_plain(other):
                continue
            if self._extra() + self._made(other) <= self.limit and self._is_ready(other):
                return other
        return None

    def _is_ready(self, at: int) -> bool:
        """Whether it can run now, at most behind waits that take no time."""
        for other in self.before[at]:
            if self.done[other]:
                continue
            event = self.events[other]
            if not isinstance(event, Wait) or event.key not in self.clock.done:
                return False
            if not self.clock.is_done(event.key) or not all(map(self._has_run, self.before[other])):
                return False
        return True

    # -- facts ------------------------------------------------------------------------------------

    def _has_run(self, at: int) -> bool:
        return self.done[at]

    def _is_plain(self, at: int) -> bool:
        """No call with effects: one that may have another place."""
        step = self.held.units[at].steps[0]
        return not isinstance(step, ExternKernel) or freedom_of(step.target).move

    def _seconds(self, steps: Iterable[int]) -> float:
        events = [self.events[at] for at in steps]
        return sum(event.seconds for event in events if isinstance(event, Compute))

    def _made(self, at: int) -> int:
        return sum(self.held.sizes[name] for name in self.held.units[at].makes)

    def _operands(self, start: int) -> int:
        """Bytes that are there for this collective until somebody waits for it."""
        step = self.held.units[start].steps[0]
        assert isinstance(step, ExternKernel)
        found = collective_of(step.target, step.args)
        if found is None or not found.reads_on:
            return 0
        read = self.held.units[start].touched - set(self.held.units[start].makes)
        return sum(self.held.sizes.get(name, 0) for name in read - self.held.results)

    def _extra(self) -> int:
        return sum(self.early.values()) + sum(self.operand_bytes.values())


def _verify_order(
    events: Sequence[Event], before: Sequence[set[int]], order: Sequence[int]
) -> None:
    """Raise VerifyError unless each unit runs once, behind all that it needs, and no wait before a
    collective that the program starts before it."""
    place = {at: number for number, at in enumerate(order)}
    if len(place) != len(events) or len(order) != len(events):
        raise VerifyError("a step is lost or runs twice")
    started = -1
    for at, event in enumerate(events):
        if any(place[other] > place[at] for other in before[at]):
            raise VerifyError(f"{event} runs before what it needs")
        if isinstance(event, Start):
            started = max(started, place[at])
        elif isinstance(event, Wait) and place[at] < started:
            raise VerifyError(f"{event} comes before a collective that starts before it")


def _moved(held: Held, events: Sequence[Event], order: Sequence[int]) -> Iterator[Moved]:
    """Steps before each collective and between it and its wait, against the program's order."""
    ours = {at: number for number, at in enumerate(order)}
    waits: dict[str, int] = {}
    for at, event in enumerate(events):
        if isinstance(event, Wait):
            waits.setdefault(event.key, at)
    for at, event in enumerate(events):
        step = held.units[at].steps[0]
        found = collective_of(step.target, step.args) if isinstance(step, ExternKernel) else None
        if isinstance(event, Start) and found is not None:
            assert isinstance(step, ExternKernel)
            wait = waits.get(event.key, at)
            yield Moved(step.name, step.target._opname, found.group, at - ours[at],
                        ours[wait] - wait)  # fmt: skip
