"""A way in a process of its own: where an engine crashes, only its cell says so.

The process prepares eager and the way, waits for its turn, and times the two in turns: what it
gives is eager's time over the way's in one process, as for the ways that share one.
"""

from __future__ import annotations

import signal
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from benchmarks.paper.batches import Child, start
from benchmarks.paper.table import Run

ENDS = 60.0  # seconds that timing may take longer than asked for: it has a least number of rounds
LATE = "no time"


class Apart:
    """Starts at once; `cell` gives the number or the word. Ends with the block."""

    def __init__(self, table: str, run: Run, way: str) -> None:
        self.way, self.run = way, run
        self.until = run.began + run.limit
        self.folder = tempfile.TemporaryDirectory()
        alone = replace(
            run, ways=(way,), apart=True, folder=self.folder.name, number=0, tickets=(),
            seconds=run.seconds / 2, limit=max(1.0, self.until - time.perf_counter()))  # fmt: skip
        self.child: Child = start(table, alone, own_group=False)

    def __enter__(self) -> Apart:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.child.stop("stopped")
        self.folder.cleanup()

    def prepared(self) -> None:
        """Waits until it can be timed, has failed, or has no time left."""
        _wait(self.child.is_ready, self.until)
        if not self.child.is_ready():
            self.child.stop(LATE)

    def cell(self) -> Any:
        """Lets it be timed: the number, or the word for why there is none."""
        (Path(self.folder.name) / "go").touch()
        _wait(self._is_over, time.perf_counter() + self.run.seconds + ENDS)
        self.child.stop(LATE)
        code = self.child.process.returncode
        rows = self.child.rows()
        row = next((row for row in rows if self.way in row), None)
        if row is not None:
            return row[self.way]
        if code < 0 and not self.child.why:
            return f"crashed ({signal.Signals(-code).name})"
        return rows[-1].get("skipped", "failed") if rows else "failed"

    def _is_over(self) -> bool:
        return self.child.process.poll() is not None


def _wait(done: Any, until: float) -> None:
    while not done() and time.perf_counter() < until:
        time.sleep(0.05)
