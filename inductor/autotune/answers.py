"""What was measured of candidates, by class of calls: of GEMMs, convolutions and attention."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass

import torch

from dynamo.store.content import Store, make_key
from dynamo.store.processor import processor

# What is narrow is measured again in so many later processes.
NARROW, MOST_MEASUREMENTS = 1.1, 3


@dataclass(frozen=True, slots=True)
class Answer:
    """How long each candidate takes against the usual one (the mean of logarithms over
    `measurements`), and the last process that measured."""

    ratios: dict[str, float]
    measurements: int
    process: int

    def is_narrow(self, chosen: str) -> bool:
        """Whether another measurement might change the choice."""
        return any(
            name != chosen and abs(ratio - self.ratios[chosen]) < math.log(NARROW)
            for name, ratio in self.ratios.items()
        )

    def is_worth_another(self, chosen: str) -> bool:
        """Whether this process should measure again."""
        other_process = self.process != os.getpid()
        return other_process and self.measurements < MOST_MEASUREMENTS and self.is_narrow(chosen)

    def joined(self, other: Answer) -> Answer:
        """Both together; of the same candidates."""
        if self.ratios.keys() != other.ratios.keys():
            return other
        count = self.measurements + other.measurements
        ratios = {
            name: (ratio * self.measurements + other.ratios[name] * other.measurements) / count
            for name, ratio in self.ratios.items()
        }
        return Answer(ratios, count, other.process)


class Answers:
    """Those of one kind of calls for this machine, as the cache folder has them. parts: what they
    depend on besides."""

    def __init__(self, store: Store, kind: str, threads: int, **parts: str) -> None:
        machine = {"isa": processor().text, "torch": torch.__version__, "threads": str(threads)}
        self.store, self.key = store, make_key(kind, {**machine, "answers": "ratios", **parts})
        self.known, self.added = self._read(), dict[str, Answer]()

    def _read(self) -> dict[str, Answer]:
        return {name: Answer(*row) for name, row in (self.store.values(self.key) or {}).items()}

    def add(self, name: str, ratios: dict[str, float]) -> Answer:
        """Beside what was measured before."""
        found, known = Answer(ratios, 1, os.getpid()), self.known.get(name)
        answer = found if known is None else known.joined(found)
        self.known[name] = self.added[name] = answer
        return answer

    def save(self) -> None:
        """Beside what another process has written meanwhile."""
        if self.added:
            rows = self._read() | self.added
            self.store.keep_values(self.key, {
                name: (one.ratios, one.measurements, one.process) for name, one in rows.items()})
