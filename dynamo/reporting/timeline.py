"""When what happened: the compiles, and the last step of the compiled graphs.

In: a `Report`. Out: compiles with what each spent its time on, `Bar`s of a step; and all blocks as
a Chrome trace, which chrome://tracing, Perfetto and torch.profiler's viewers read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dynamo.base.counters import Span
from dynamo.reporting.facts import Report, name_of

# A step of the program has a gap between two graphs of at most so many seconds, or of so many times
# what the graphs so far took.
GAP, GAPS = 0.005, 3.0
OTHER = "the rest"
# What a compile spends its time with, and the stages that are that.
GROUPS: dict[str, tuple[str, ...]] = {
    "evaluate Python": ("trace", "outputs"),
    "guards, new bytecode": ("guards", "codegen"),
    "make the graph functional": ("backend", "inductor", "inductor.key", "inductor.passes"),
    "fuse loops, print kernels": ("inductor.lowering", "inductor.scheduler", "inductor.codegen"),
    "choose kernels": ("inductor.library_kernels", "inductor.autotuning"),
    "C++ compiler": ("inductor.build",),
    "load and keep": ("inductor.load", "inductor.bind", "inductor.keep", "inductor.kept", "keep",
                      "kept"),
}
GROUP_OF = {stage: group for group, stages in GROUPS.items() for stage in stages}


@dataclass(frozen=True)
class Bar:
    """begin, end: seconds. depth: the row. group: a colour."""

    name: str
    begin: float
    end: float
    depth: int
    group: str


@dataclass(frozen=True)
class Made:
    """One compile, and its seconds by group, each counted once. begin: of `time.perf_counter`."""

    title: str
    begin: float
    seconds: dict[str, float]

    @property
    def total(self) -> float:
        return sum(self.seconds.values())


def compiles(report: Report) -> list[Made]:
    """All of them, in the order in which they began."""
    found: dict[tuple[int, str], Made] = {}
    for (stage, begin, _, _, what), seconds in _own_seconds(report.spans):
        key = what.region, str(what)
        title = f"{name_of(what.name)} [{what}]" if what.id else "outside of a compile"
        made = found.setdefault(key, Made(title, begin, dict.fromkeys((*GROUPS, OTHER), 0.0)))
        made.seconds[GROUP_OF.get(stage, OTHER)] += seconds
    return list(found.values())


def _own_seconds(spans: Sequence[Span]) -> Iterator[tuple[Span, float]]:
    """Each block with its seconds less those of the blocks inside of it."""
    open_: dict[int, list[tuple[Span, list[float]]]] = {}
    rows = []
    for span in sorted(spans, key=lambda span: (span[1], -span[2])):
        around = open_.setdefault(span[3], [])
        while around and around[-1][0][2] <= span[1]:
            around.pop()
        row = span, [span[2] - span[1]]
        if around:
            around[-1][1][0] -= row[1][0]
        around.append(row)
        rows.append(row)
    return ((span, max(seconds, 0.0)) for span, (seconds,) in rows)


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
            for stage, begin, end, thread, _ in report.spans]
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
