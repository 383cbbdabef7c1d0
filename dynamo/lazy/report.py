"""What the user may ask: how many traces there were, and where each of them ended.

In: events of the recorders. Out: `metrics()`, `explain()`, the same numbers in
`dynamo.counters["lazy"]`.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter, deque
from dataclasses import dataclass, field
from types import FrameType

import torch

from dynamo.base.counters import counters

OWN = os.path.dirname(os.path.abspath(__file__)) + os.sep
TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
MOST_ENDS = 1000


@dataclass(frozen=True, slots=True)
class Metrics:
    """traces: ended and run. compiles: graphs built. hits: traces that ran a compiled graph that
    was there. by_operator: traces run operator by operator, because they are not worth a compile
    yet or failed to compile. failures: graphs that failed to compile. fallbacks: operators that ran
    in eager, by name in `operators`. looks: traces that a look at a value ended. operations:
    recorded. followed: those among them that needed no Python, as their trace was known. copies: of
    ordinary tensors, made outside of a mode.

        >>> Metrics(traces=2, compiles=1, hits=1).hits
        1
    """

    traces: int = 0
    compiles: int = 0
    hits: int = 0
    by_operator: int = 0
    failures: int = 0
    fallbacks: int = 0
    looks: int = 0
    operations: int = 0
    followed: int = 0
    copies: int = 0
    operators: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class End:
    """The end of a trace. place: the user's line. reason: what ended it. how: "compiled", "hit" or
    "operator by operator". operations: how many it had."""

    place: str
    reason: str
    how: str
    operations: int

    def __str__(self) -> str:
        return f"{self.place}: {self.reason} ({self.operations} operations, {self.how})"


class Report:
    """Counts of this process; `reset` forgets them."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.reset()

    def reset(self) -> None:
        """Begin again."""
        self.counts: Counter[str] = Counter()
        self.operators: Counter[str] = Counter()
        self.ends: deque[End] = deque(maxlen=MOST_ENDS)

    def count(self, what: str, by: int = 1) -> None:
        """One more of these."""
        with self.lock:
            self.counts[what] += by
            counters["lazy"][what] += by

    def trace_followed(self, end: End) -> None:
        """A trace was followed to its end."""
        counts = {"traces": 1, "operations": end.operations, "followed": end.operations,
                  "hits": int(end.how == "hit")}  # fmt: skip
        with self.lock:
            for what, by in counts.items():
                self.counts[what] += by
                counters["lazy"][what] += by
        self.ends.append(end)

    def fell_back(self, operator: str) -> None:
        """An operator has run in eager."""
        self.count("fallbacks")
        self.operators[operator] += 1

    def metrics(self) -> Metrics:
        """The counts so far."""
        return Metrics(**self.counts, operators=dict(self.operators))


REPORT = Report()


def users_line() -> str:
    """The innermost line of the stack that is neither PyTorch's nor ours."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith((OWN, TORCH, "<")):
            return f"{name}:{frame.f_lineno} in {frame.f_code.co_name}"
        frame = frame.f_back
    return "(no line of the program)"
