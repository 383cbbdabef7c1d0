"""What a table is: rows for each model, and what the rows come to."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from benchmarks.paper.report import Row


@dataclass(frozen=True, slots=True)
class Run:
    """How one model is run. kind: a word of the table's `kinds`. seconds: of timing. hold: see
    `timing.held`. ways: what is wanted of the table's columns or rows, all unless named. limit:
    seconds from `began` (on the clock `time.perf_counter`) until it must be ready to be timed.
    folder, number, tickets: see `timing.turn`. apart: whether it is one way alone, of a process
    that waits for it (`apart.py`)."""

    model: str
    size: str
    cuda: bool = False
    kind: str = ""
    seconds: float = 15.0
    hold: str = ""
    ways: tuple[str, ...] = ()
    limit: float = float("inf")
    folder: str = ""
    number: int = 0
    tickets: tuple[str, ...] = ()
    apart: bool = False
    began: float = field(default_factory=time.perf_counter)

    @property
    def device(self) -> str:
        return "cuda" if self.cuda else "cpu"

    @property
    def name(self) -> tuple[str, str]:
        return self.model, self.kind

    def has_time(self, share: float = 0.6) -> bool:
        """Whether less than this share of the time is gone; what is not begun later is left out."""
        return time.perf_counter() - self.began < share * self.limit

    def wants(self, way: str) -> bool:
        return not self.ways or way in self.ways


def one_kind(model: str) -> tuple[str, ...]:
    return ("",)


@dataclass(frozen=True, slots=True)
class Table:
    """models: the most telling first. rows: of one model and kind. notes: below all. kinds: what a
    model is measured in, a process for each."""

    title: str
    about: str
    models: Callable[[], Sequence[str]]
    size: str
    rows: Callable[[Run], Iterable[Row]]
    notes: Callable[[Sequence[Row]], list[str]]
    kinds: Callable[[str], Sequence[str]] = one_kind
    is_timed: bool = True
