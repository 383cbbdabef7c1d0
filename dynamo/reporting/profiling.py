"""`profile()`: what each kernel of compiled graphs took, with the line of the program.

In: a block of the program. Out: a `Profile`, which prints as a table. On a CPU the launchers of
compiled graphs time their steps; what ran on a GPU comes from torch.profiler.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from dynamo.backends.services import service
from dynamo.base import terminal
from dynamo.reporting.kernels import Part, parts

MICRO = 1e-6
SHOWN = 40  # rows


@dataclass(frozen=True)
class Row:
    """kernel: its name and operators. graph: function, compile id, backward. moved, operations: in
    one call, 0 where that is not known. lines: of the program."""

    kernel: str
    graph: str
    calls: int
    seconds: float
    moved: int
    operations: int
    lines: tuple[tuple[str, int], ...]

    @property
    def place(self) -> str:
        return ", ".join(f"{os.path.basename(file)}:{line}" for file, line in self.lines)


@dataclass
class Profile:
    """rows: the slowest first; filled when the block ends."""

    rows: list[Row] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """In all kernels and library calls of compiled graphs."""
        return sum(row.seconds for row in self.rows)

    def table(self, limit: int = SHOWN) -> str:
        """The rows as text."""
        if not self.rows:
            return "no compiled graph has run"
        titles = [f"{row.graph}: {row.kernel}"[:64] for row in self.rows[:limit]]
        wide = max(map(len, titles))
        lines = [f"{'kernel':{wide}} {'calls':>6} {'ms':>10} {'share':>6} {'ms/call':>9} {'MB':>9} "
                 f"{'GB/s':>7} {'GFLOP/s':>8}  lines"]
        for title, row in zip(titles, self.rows, strict=False):
            each, moved, speed, rate = _rates(row)
            share = row.seconds / self.seconds if self.seconds else 0.0
            lines.append(f"{title:{wide}} {row.calls:6} {1e3 * row.seconds:10.3f} {share:6.1%} "
                         f"{each:>9} {moved:>9} {speed:>7} {rate:>8}  {row.place}")
        if len(self.rows) > limit:
            lines.append(f"and {len(self.rows) - limit} more")
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.table()

    def show(self) -> None:
        """Prints it, as a table of rich where that is installed and on a terminal."""
        terminal.show(self)

    def __rich__(self) -> Any:
        """The rows for rich, with a bar for each share."""
        if not self.rows:
            return str(self)
        text, bar = terminal.rich_module("text").Text, terminal.rich_module("bar").Bar
        made = terminal.rich_module("table").Table(expand=True)
        for title, justify, ratio in (
            ("kernel", "left", 3), ("calls", "right", 0), ("ms", "right", 0), ("share", "left", 1),
            ("ms/call", "right", 0), ("MB", "right", 0), ("GB/s", "right", 0),
            ("GFLOP/s", "right", 0), ("lines", "left", 2),
        ):  # fmt: skip
            made.add_column(title, justify=justify, ratio=ratio or None, no_wrap=not ratio)
        for row in self.rows[:SHOWN]:
            made.add_row(
                text(f"{row.graph}: {row.kernel}"), str(row.calls), f"{1e3 * row.seconds:.3f}",
                bar(self.seconds, 0, row.seconds, color="cyan"),
                *(text(cell) for cell in _rates(row)), text(row.place))
        if len(self.rows) > SHOWN:
            made.caption = f"and {len(self.rows) - SHOWN} more"
        return made


def _rates(row: Row) -> tuple[str, str, str, str]:
    """ms, MB, GB/s and GFLOP/s of one call; "" where they are not known."""
    each = row.seconds / row.calls
    moved = f"{row.moved / 1e6:.3f}" if row.moved and each else ""
    speed = f"{row.moved / each / 1e9:.1f}" if moved else ""
    rate = f"{row.operations / each / 1e9:.1f}" if row.operations and each else ""
    return f"{1e3 * each:.4f}", moved, speed, rate


@contextlib.contextmanager
def profile() -> Iterator[Profile]:
    """Times the kernels of compiled graphs that run in the block, in all threads.

    >>> import dynamo
    >>> with profile() as found:
    ...     pass
    >>> print(found)
    no compiled graph has run
    """
    launch = service("launcher")
    found = Profile()
    held = launch.launchers()  # so that none of them is counted out
    before = {id(launcher): launcher.times()[0] for launcher in held}
    on_gpu = _gpu_profiler()
    launch.keep_times(True)
    try:
        with on_gpu or contextlib.nullcontext():
            yield found
            if on_gpu is not None:
                torch.cuda.synchronize()
    finally:
        launch.keep_times(False)
        found.rows = sorted([*_rows(launch.launchers(), before), *_gpu_rows(on_gpu)],
                            key=lambda row: -row.seconds)


def _rows(launchers: list[Any], before: dict[int, Any]) -> Iterator[Row]:
    for launcher, part in zip(launchers, parts(with_code=False), strict=False):
        old = before.get(id(launcher)) or [(0, 0, 0)] * len(part.steps)
        for step, (calls, nanoseconds, _) in zip(part.steps, old, strict=True):
            if step.calls > calls:
                yield Row(
                    step.title, part.title, step.calls - calls, step.seconds - nanoseconds * 1e-9,
                    step.moved, step.operations, step.lines)


# -- GPU ------------------------------------------------------------------------------------------


def _gpu_profiler() -> Any:
    if not torch.cuda.is_available():
        return None
    return torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])


def _gpu_rows(profiler: Any) -> Iterator[Row]:
    """Of all kernels that have run there; those of compiled graphs with their lines."""
    if profiler is None:
        return
    known = {function: (step, part) for part in parts(with_code=False)
             for step in part.steps for function in step.functions}
    for event in profiler.key_averages():
        seconds = event.self_device_time_total * MICRO
        if not seconds or not event.count:
            continue
        step, part = known.get(event.key, (None, None))
        yield (Row(event.key, "ATen", event.count, seconds, 0, 0, ()) if step is None
               else _gpu_row(event, seconds, step, part))


def _gpu_row(event: Any, seconds: float, step: Any, part: Part | None) -> Row:
    title = "" if part is None else part.title
    return Row(step.title, title, event.count, seconds, step.moved, step.operations, step.lines)
