"""One line on a terminal while a compile takes long: what, why, how far, how long.

In: a block that compiles. Out: nothing, or a line on stderr that begins after two seconds and ends
with the block. Silent where stderr is no terminal, and under `DYNAMO_PROGRESS=0`. Where rich is
installed, it draws the bar.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, Protocol

from dynamo.base.config import config
from dynamo.base.counters import stage_of
from dynamo.base.terminal import console_of, rich_module

LONG, STEP = 2.0, 0.5  # seconds before the line, and between two states of it
# In the order in which they run.
STAGES = (
    ("trace", "outputs"), ("inductor.key", "inductor.passes", "backend", "inductor"),
    ("inductor.lowering", "inductor.library_kernels"), ("inductor.scheduler",),
    ("inductor.codegen",), ("inductor.build", "inductor.load", "inductor.keep"),
)  # fmt: skip


class Line(Protocol):
    """One line of a terminal."""

    def show(self, done: int, stage: str, seconds: float) -> None:
        """In the place of what it was. done: stages that have begun."""

    def end(self, seconds: float) -> None:
        """Its last state."""


@contextlib.contextmanager
def progress(what: str, why: str) -> Iterator[None]:
    """Tells of a long block. what: the function; why: the reason of this compile."""
    if not config.progress or not sys.stderr.isatty():
        yield
        return
    start, thread = time.perf_counter(), threading.get_ident()
    title = f"dynamo: compiling {what} ({why}) ..."
    done, lines = threading.Event(), list[Line]()

    def tell() -> None:
        wait = LONG
        while not done.wait(wait):
            wait = STEP
            if not lines:
                lines.append(_line(title))
            lines[0].show(*_how_far(thread), time.perf_counter() - start)

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield
    finally:
        done.set()
        teller.join()
        for line in lines:
            line.end(time.perf_counter() - start)


def _line(title: str) -> Line:
    console = console_of(sys.stderr)
    return _Text(title) if console is None else _Bar(title, console)


class _Text:
    def __init__(self, title: str) -> None:
        self._title = title

    def show(self, done: int, stage: str, seconds: float) -> None:
        bar = "#" * done
        self._write(f"{f'[{bar:.<{len(STAGES)}}] {stage}'.rstrip()} {seconds:.0f} s")

    def end(self, seconds: float) -> None:
        self._write(f"{seconds:.1f} s\n")

    def _write(self, text: str) -> None:
        sys.stderr.write(f"\r\x1b[K{self._title} {text}")
        sys.stderr.flush()


class _Bar:
    """By rich, drawn when it is told to: rich starts no thread."""

    def __init__(self, title: str, console: Any) -> None:
        parts = rich_module("progress")
        text = parts.TextColumn
        self._bar = parts.Progress(
            text("{task.description}", markup=False), parts.BarColumn(len(STAGES) * 2),
            text("{task.fields[state]}", markup=False), console=console, auto_refresh=False,
            redirect_stdout=False, redirect_stderr=False)  # fmt: skip
        self._task = self._bar.add_task(title, total=len(STAGES), state="")
        self._bar.start()

    def show(self, done: int, stage: str, seconds: float) -> None:
        self._draw(done, f"{stage} {seconds:.0f} s".lstrip())

    def end(self, seconds: float) -> None:
        self._draw(len(STAGES), f"{seconds:.1f} s")
        self._bar.stop()

    def _draw(self, done: int, state: str) -> None:
        self._bar.update(self._task, completed=done, state=state, refresh=True)


def _how_far(thread: int) -> tuple[int, str]:
    """How many stages have begun, and the one in which the thread is.

    >>> _how_far(0)
    (0, '')
    """
    stage = stage_of(thread)
    begun = [number for number, names in enumerate(STAGES, 1) if stage in names]
    return max(begun, default=0), stage.removeprefix("inductor.")
