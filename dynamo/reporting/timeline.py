"""When what happened: the compiles, and the last step of the compiled graphs.

In: a `Report`. Out: `Bar`s for pictures, without the time in which nothing was compiled; and the
same as a Chrome trace, which chrome://tracing, Perfetto and torch.profiler's viewers read.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from dynamo.reporting.facts import Report

# A step of the program has a gap between two graphs of at most so many seconds, or of so many times
# what the graphs so far took.
GAP, GAPS = 0.005, 3.0
PAUSE = 0.02  # between two compiles, as it is drawn


@dataclass(frozen=True)
class Bar:
    """begin, end: seconds. depth: the row. group: a colour."""

    name: str
    begin: float
    end: float
    depth: int
    group: str


def compile_bars(report: Report) -> list[Bar]:
    """The stages of all compiles, those of one thread below those of another; time in which nothing
    was compiled is left out."""
    spans = sorted(report.spans, key=lambda span: (span[1], -span[2]))
    moved = _without_pauses(spans)
    bars: list[Bar] = []
    floors: dict[int, int] = {}
    for thread in dict.fromkeys(span[3] for span in spans):
        floor = max((bar.depth + 1 for bar in bars), default=0)
        floors[thread] = floor
        open_: list[float] = []
        for stage, begin, end, of in spans:
            if of != thread:
                continue
            while open_ and open_[-1] <= begin:
                open_.pop()
            shift = moved[begin]
            bars.append(Bar(stage, begin - shift, end - shift, floor + len(open_), stage))
            open_.append(end)
    return bars


def _without_pauses(spans: Sequence[tuple[str, float, float, int]]) -> dict[float, float]:
    """For each beginning, by how much it moves to the left."""
    shifts: dict[float, float] = {}
    shift, reached = (spans[0][1], spans[0][1]) if spans else (0.0, 0.0)
    for _, begin, end, _ in spans:
        if begin > reached + PAUSE:
            shift += begin - reached - PAUSE
        shifts[begin] = shift
        reached = max(reached, end)
    return shifts


def step_bars(report: Report) -> list[Bar]:
    """The kernels of the last step: the last timed calls of graphs, back to the first long gap."""
    calls = sorted(((part.spans[0][1], part.spans[-1][2], part) for part in report.parts()
                    if part.spans), key=lambda row: -row[1])  # fmt: skip
    chosen: list[Bar] = []
    first, taken = 0.0, 0.0
    for begin, end, part in calls:
        if chosen and first - end > max(GAP, GAPS * taken):
            break
        first, taken = begin, taken + end - begin
        chosen.append(Bar(part.title, begin, end, 0, part.part or "forward"))
        chosen += [Bar(part.steps[step].title, start, stop, 1, part.steps[step].kind)
                   for step, start, stop in part.spans]
    start = min((bar.begin for bar in chosen), default=0.0)
    moved = [Bar(bar.name, bar.begin - start, bar.end - start, bar.depth, bar.group)
             for bar in chosen]
    return sorted(moved, key=lambda bar: (bar.begin, bar.depth))


def chrome_trace(report: Report) -> str:
    """JSON of both, with the times of the process (`time.perf_counter`)."""
    rows = [_event(stage, "compile", begin, end, "compile", thread)
            for stage, begin, end, thread in report.spans]
    for part in report.parts():
        if part.spans:
            rows.append(_event(part.title, "graph", part.spans[0][1], part.spans[-1][2], "run", 0))
        rows += [_event(part.steps[step].title, part.steps[step].kind, begin, end, "run", 0)
                 for step, begin, end in part.spans]
    return json.dumps({"traceEvents": rows, "displayTimeUnit": "ms"})


def _event(
    name: str, kind: str, begin: float, end: float, process: str, thread: int
) -> dict[str, object]:
    return {"ph": "X", "name": name, "cat": kind, "ts": begin * 1e6, "dur": (end - begin) * 1e6,
            "pid": process, "tid": thread}
