"""What a table is: a row for each model, and what the rows come to."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from benchmarks.paper.report import Row


@dataclass(frozen=True, slots=True)
class Run:
    """How one model is run. seconds: of timing. hold: see `timing.held`. ways: what is wanted of
    the table's columns or rows, all unless named. limit: seconds from `began` (on the clock
    `time.perf_counter`) after which its process is killed."""

    model: str
    size: str
    cuda: bool = False
    seconds: float = 15.0
    hold: str = ""
    ways: tuple[str, ...] = ()
    limit: float = float("inf")
    began: float = field(default_factory=time.perf_counter)

    @property
    def device(self) -> str:
        return "cuda" if self.cuda else "cpu"

    def has_time(self, share: float = 0.6) -> bool:
        """Whether less than this share of the time is gone; what is not begun later is left out."""
        return time.perf_counter() - self.began < share * self.limit

    def wants(self, way: str) -> bool:
        return not self.ways or way in self.ways


@dataclass(frozen=True, slots=True)
class Table:
    """rows: of one model, one after the other (training after inference). notes: below all."""

    title: str
    about: str
    models: Callable[[], Sequence[str]]
    size: str
    rows: Callable[[Run], Iterable[Row]]
    notes: Callable[[Sequence[Row]], list[str]]
