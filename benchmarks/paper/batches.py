"""Models in processes: a batch of them is prepared side by side, then timed one by one.

A process that is not ready in time, or that fails, is a row that says so. A batch ends when its
processes have: nothing is left running.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO

from benchmarks.paper.report import Row
from benchmarks.paper.table import Run

RESULT = "RESULT "
NO_TIME = "no time was left"
ROOT = Path(__file__).parents[2]
LEAST = 20.0  # seconds that are worth starting a batch for
BESIDE = 3.0  # seconds beside the timing that a process takes when it is its turn


@dataclass(slots=True)
class Child:
    """A process with what it has said. why: what stopped it. own_group: whether what it starts
    ends with it; otherwise it ends with those that its parent belongs to."""

    run: Run
    process: subprocess.Popen[bytes]
    said: IO[str]
    complained: IO[str]
    why: str = ""
    own_group: bool = True

    def is_ready(self) -> bool:
        ready = Path(self.run.folder) / f"ready-{self.run.number}"
        return self.process.poll() is not None or ready.exists()

    def stop(self, why: str) -> None:
        """Ends it, and its compilers as well."""
        if self.process.poll() is None:
            if self.own_group:
                os.killpg(self.process.pid, signal.SIGKILL)
            else:
                self.process.kill()
            self.process.wait()
            self.why = why

    def rows(self) -> list[Row]:
        """What it has told; then why there is no more, if it failed."""
        with self.said, self.complained:
            self.said.seek(0)
            self.complained.seek(0)
            code = self.process.returncode
            return rows_said(self.run, self.said, self.complained, code, self.why)


def rows_said(
    run: Run, said: Iterable[str], complained: IO[str], code: int, why: str
) -> list[Row]:
    """The rows that a process has printed; then one that says why it failed, if it did.

    code: its exit status. why: what stopped it, else the signal that ended it and the last line it
    complained.
    """
    rows = [json.loads(line.removeprefix(RESULT)) for line in said if line.startswith(RESULT)]
    if code and not why:
        lines = complained.read().strip().splitlines()
        why = lines[-1][:200] if lines else f"the process ended with {code}"
        if code < 0:
            why = f"{signal.Signals(-code).name}: " + _where_it_was(lines)
    return [*rows, skipped(run, why)] if why else rows


def _where_it_was(lines: Sequence[str]) -> str:
    """The last calls, where the process has told them (PYTHONFAULTHANDLER=1), else what it said."""
    calls = [line.strip() for line in lines if line.startswith("  File ")]
    return " < ".join(calls[:4])[:400] if calls else (lines[-1][:200] if lines else "no word")


def skipped(run: Run, why: str) -> Row:
    kind = {"kind": run.kind} if run.kind else {}
    return {"model": run.model, **kind, "skipped": why}


def start(table: str, run: Run, own_group: bool = True) -> Child:
    facts = {**asdict(run), "began": 0.0}
    command = [sys.executable, "-m", "benchmarks.paper", table, "--work", json.dumps(facts)]
    said, complained = tempfile.TemporaryFile("w+"), tempfile.TemporaryFile("w+")  # noqa: SIM115
    process = subprocess.Popen(
        command, stdout=said, stderr=complained, cwd=ROOT, start_new_session=own_group)
    return Child(run, process, said, complained, own_group=own_group)


def batch(table: str, runs: Sequence[Run], limit: float) -> Iterator[list[Row]]:
    """The rows of each run. limit: seconds for all of them.

    Each has `run.limit` seconds to get ready, or what the limit leaves beside the timing.
    """
    began = time.perf_counter()
    timing = sum(map(timing_of, runs))
    prepared = max(LEAST / 2, min(max(run.limit for run in runs), limit - timing))
    with tempfile.TemporaryDirectory() as folder:
        children = [
            start(table, replace(run, limit=prepared, folder=folder, number=number))
            for number, run in enumerate(runs)
        ]
        try:
            _wait(lambda: all(child.is_ready() for child in children), began + prepared)
            for child in children:
                if not child.is_ready():
                    child.stop(f"more than {prepared:.0f} s")
            (Path(folder) / "go").touch()
            for child in children:
                alone = began + max(limit, prepared + timing)
                _wait(lambda child=child: child.process.poll() is not None, alone)
                child.stop(NO_TIME)
                yield child.rows()
        finally:
            for child in children:
                child.stop("stopped")


def _wait(done: Callable[[], bool], until: float) -> None:
    while not done() and time.perf_counter() < until:
        time.sleep(0.1)


def collect(table: str, runs: Sequence[Run], limit: float, processes: int) -> Iterator[list[Row]]:
    """The rows of all, as they come, until `limit` seconds are over; what is not begun is a row.

    A batch is only as large as its timing fits in beside half of the time in which the one before
    it got ready: less would end all of its processes before they have a row.
    """
    began = time.perf_counter()
    least, first = LEAST, 0
    while first < len(runs):
        start = time.perf_counter()
        left = limit - (start - began)
        some = fitting(runs[first : first + processes], left - least)
        if not some:
            break
        for number, rows in enumerate(batch(table, some, left)):
            if not number:
                least = max(LEAST, (time.perf_counter() - start - some[0].seconds) / 2)
            yield rows
        first += len(some)
    yield from ([skipped(run, NO_TIME)] for run in runs[first:])


def fitting(runs: Sequence[Run], seconds: float) -> Sequence[Run]:
    """As many of the first ones as are timed in so many seconds; none where they are negative."""
    count = 0
    while seconds >= 0 and count < len(runs):
        seconds -= timing_of(runs[count])
        count += seconds >= 0
    return runs[:count]


def timing_of(run: Run) -> float:
    """Seconds that its turn takes; where nothing is timed, none."""
    return run.seconds + BESIDE if run.seconds else 0.0
