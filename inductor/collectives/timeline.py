"""A simulator of a plan: steps and collectives as seconds, two kinds of queues.

In: events in the order in which a program issues them. Out: when it is done, and how long the
kernels stood still because a collective was not. Kernels run one after the other; so do the
collectives of one link, beside the kernels, each no earlier than the kernels issued before it are
done. (A GPU's streams do that; on a CPU a step is done when the next one is issued.)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Compute:
    """A step that takes so long."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Start:
    """A collective, which `key` names, on a link."""

    key: str
    link: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Wait:
    """Kernels behind it begin when the collective `key` is done."""

    key: str


Event = Compute | Start | Wait


@dataclass(slots=True)
class Clock:
    """now: when the kernels issued so far are done; exposed: how long they stood still."""

    now: float = 0.0
    exposed: float = 0.0
    links: dict[str, float] = field(default_factory=dict)  # when each is free
    done: dict[str, float] = field(default_factory=dict)  # when each collective is done

    def run(self, event: Event) -> None:
        if isinstance(event, Compute):
            self.now += event.seconds
        elif isinstance(event, Start):
            begin = max(self.now, self.links.get(event.link, 0.0))
            self.links[event.link] = self.done[event.key] = begin + event.seconds
        else:
            late = self.done[event.key] - self.now
            if late > 0:
                self.now += late
                self.exposed += late

    def is_done(self, key: str) -> bool:
        return self.done[key] <= self.now


@dataclass(frozen=True, slots=True)
class Forecast:
    """seconds of all, of them exposed communication; communication: seconds of all collectives;
    peak: bytes, 0 where nobody said them."""

    seconds: float
    exposed: float
    communication: float
    peak: int = 0

    def __str__(self) -> str:
        times = [f"{1e3 * x:.3f} ms" for x in (self.seconds, self.exposed, self.communication)]
        return (f"{times[0]}, of them {times[1]} wait for {times[2]} of collectives; "
                f"peak {self.peak / 1e6:.1f} MB")  # fmt: skip


def simulate(events: Iterable[Event], peak: int = 0) -> Forecast:
    """What a plan would take.

    >>> plan = [Start("a", "link", 2.0), Compute(1.5), Wait("a"), Compute(1.0)]
    >>> simulate(plan).seconds, simulate(plan).exposed
    (3.0, 0.5)
    """
    issued: Sequence[Event] = list(events)
    clock = Clock()
    for event in issued:
        clock.run(event)
    sent = sum(event.seconds for event in issued if isinstance(event, Start))
    return Forecast(clock.now, clock.exposed, sent, peak)
