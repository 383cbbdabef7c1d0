"""All that a page shows, as plain records.

In: events, counters, entries and compiled graphs of this process since the last `reset`. Out: a
`Report`.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from dynamo import hook
from dynamo.api import live_policies
from dynamo.base import counters, events, recordings
from dynamo.base.config import config
from dynamo.base.events import Event
from dynamo.base.user_lines import TORCH
from dynamo.guards import records as guards
from dynamo.guards.listing import ROWS, expression, python_lines
from dynamo.reporting.kernels import Part, parts

Key = tuple[int, str]  # of a compile: its call of `compile`, and the id in logs
Place = tuple[str, int]
SHOWN_GUARDS = 250


@dataclass(frozen=True)
class Break:
    """number: its row in docs/graph_breaks.md. places: the user's lines, outermost first."""

    number: str
    what: str
    remedy: str
    text: str
    places: tuple[Place, ...]
    stack: tuple[str, ...]
    function: str
    count: int = 1

    @property
    def place(self) -> Place:
        return self.places[-1]


@dataclass(frozen=True)
class Recompile:
    """function: which one; reason: the value, what it was and is; place: the line that needs it."""

    function: str
    reason: str
    advice: str
    place: Place | None
    count: int = 1


@dataclass(frozen=True)
class Guard:
    text: str
    why: str
    place: Place | None


@dataclass(frozen=True)
class Graph:
    """A captured graph. number: counted from 0, None for a part of a function without operations.
    lines: (file, line, operations). guards: those of its entry, the first ones, what the program's
    own lines need before what torch's do; python_guards: how many of all run Python code."""

    number: int | None
    key: Key
    name: str
    file: str
    line: int
    operations: int
    lines: tuple[tuple[str, int, int], ...]
    ends_in_break: bool
    guards: tuple[Guard, ...] = ()
    guard_count: int = 0
    python_guards: int = 0
    captured: torch.fx.Graph | None = None
    parts: tuple[Part, ...] = ()
    left_to_aten: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Skipped:
    """A function that ran as it is."""

    name: str
    place: Place
    reason: str
    count: int = 1


@dataclass(frozen=True)
class NotCompiled:
    what: str
    reason: str
    place: str
    count: int = 1


@dataclass(frozen=True)
class Look:
    """Into a cache."""

    what: str
    found: bool
    reason: str


@dataclass(frozen=True)
class Report:
    """spans: timed blocks of compiles: (stage, begin, end, thread, compile). peaks: operations and
    bytes in a second, by kind of device. eager: what PyTorch takes for graphs, `eager.Eager`.
    is_busy: other work takes the cores, so that it is not measured."""

    graphs: tuple[Graph, ...]
    breaks: tuple[Break, ...]
    recompiles: tuple[Recompile, ...]
    skipped: tuple[Skipped, ...]
    not_compiled: tuple[NotCompiled, ...]
    looks: tuple[Look, ...]
    seconds: dict[str, float]
    spans: tuple[counters.Span, ...]
    others: tuple[Part, ...]
    machine: dict[str, str]
    peaks: dict[str, Any] = field(default_factory=dict)
    eager: dict[Key, Any] = field(default_factory=dict)
    is_busy: bool = False
    made: float = field(default_factory=time.time)

    def parts(self) -> Iterator[Part]:
        for graph in self.graphs:
            yield from graph.parts
        yield from self.others


def gather() -> Report:
    """What there is to report now."""
    frames = _since("frame")
    found = parts()
    graphs = tuple(_graphs(frames, found))
    known = {graph.key for graph in graphs}
    return Report(
        graphs, tuple(_breaks(frames)), tuple(_recompiles()), tuple(_skipped()),
        tuple(_not_compiled()),
        tuple(Look(**event.data) for event in _since("cache")), counters.compile_times(),
        tuple(counters.spans()), tuple(part for part in found if part.key not in known), _machine())


def _since(kind: str) -> list[Event]:
    return [event for event in events.events(kind) if event.time >= counters.since()]


def _graphs(frames: Sequence[Event], compiled: Sequence[Part]) -> Iterator[Graph]:
    assumed = _entries()
    captured = {(r.compile.region, r.compile.id): r.data for r in recordings.recorded("graph")}
    left: dict[str, list[tuple[str, str]]] = {}
    for event in _since("left_to_aten"):
        left.setdefault(event.compile_id, []).extend(map(tuple, event.data["operators"]))
    number = 0
    for event in frames:
        data = event.data
        if data.get("break", {}).get("repeated"):
            continue  # the call alone that has cut the frames around it
        key = (data["region"], event.compile_id)
        assumptions, count, in_python = assumed.get(key, ((), 0, 0))
        yield Graph(
            number if data["operations"] else None, key, name_of(data["name"]), data["file"],
            data["line"], data["operations"], tuple(data["lines"]), "break" in data, assumptions,
            count, in_python, captured.get(key),
            tuple(part for part in compiled if part.key == key),
            tuple(dict.fromkeys(left.get(event.compile_id, ()))))
        number += bool(data["operations"])


def name_of(name: str) -> str:
    """`f, from line 12 on` for the part behind a break."""
    if not name.startswith("__resume_"):
        return name
    line, _, rest = name.removeprefix("__resume_").partition("_")
    return f"{rest}, from line {line} on"


def _entries() -> dict[Key, tuple[tuple[Guard, ...], int, int]]:
    """Of each compile the guards, how many they are, and how many run Python code."""
    found = {}
    for policy in live_policies():
        for code in policy.region.codes():
            for entry in hook.entries(code, policy.region):
                record = entry.keepalive
                shown = sorted(record.guards, key=_is_of_torch)[:SHOWN_GUARDS]
                rows = tuple(
                    Guard(expression(guard), ROWS[guard.kind][1],
                          (guard.line.filename, guard.line.lineno) if guard.line else None)
                    for guard in shown)
                slow = len(python_lines(record.guards, entry.program))
                found[policy.number, record.compile_id] = rows, len(record.guards), slow
    return found


def _is_of_torch(guard: guards.Guard) -> bool:
    """True where none of the program's own lines needs it."""
    return guard.line is None or guard.line.filename.startswith(TORCH)


def _breaks(frames: Sequence[Event]) -> Iterator[Break]:
    """Each line and reason once, with how often, in the order in which they were met."""
    found: dict[tuple[Place, str], Break] = {}
    for event in frames:
        row = event.data.get("break")
        if row is None or row["repeated"] or row["code"] == "escaping_exception":
            continue
        lines = [line.strip() for line in row["text"].splitlines()]
        what = _part_of(lines, "Graph break: ")
        made = Break(
            what[-7:].strip("[]"), what[:-9].rstrip(), _part_of(lines, "What to do: "), row["text"],
            tuple(row["places"]), tuple(row["stack"]), name_of(event.data["name"]))
        key = made.place, made.what
        found[key] = replace(found[key], count=found[key].count + 1) if key in found else made
    yield from found.values()


def _part_of(lines: Sequence[str], head: str) -> str:
    return next((line.removeprefix(head) for line in lines if line.startswith(head)), "")


def _recompiles() -> Iterator[Recompile]:
    rows: Counter[Recompile] = Counter()
    for event in _since("recompile"):
        data = event.data
        reason = data["reason"].partition(" (needed at ")[0]
        place = tuple(data["line"]) if data["line"] else None
        rows[Recompile(data["place"], reason, data["advice"], place)] += 1
    for row, count in rows.items():
        yield replace(row, count=count)


def _skipped() -> Iterator[Skipped]:
    rows = Counter(Skipped(e.data["name"], (e.data["file"], e.data["line"]), e.data["reason"])
                   for e in _since("skip"))
    for row, count in rows.items():
        yield replace(row, count=count)


def _not_compiled() -> Iterator[NotCompiled]:
    rows = Counter(NotCompiled(e.data["what"], e.data["reason"], str(e.data["place"]))
                   for e in _since("not_compiled"))
    for row, count in rows.items():
        yield replace(row, count=count)


def _machine() -> dict[str, str]:
    gpu = torch.cuda.get_device_name() if torch.cuda.is_initialized() else ""
    rows = {
        "program": " ".join(sys.argv) or "interactive", "torch": torch.__version__,
        "Python": platform.python_version(), "processor": _processor(),
        "threads": f"{torch.get_num_threads()} of {len(os.sched_getaffinity(0))} cores",
        "GPU": gpu, "cache folder": config.cache_dir,
    }
    return {name: text for name, text in rows.items() if text}


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in text.splitlines()
             if line.startswith("model name")]
    return names[0] if names else platform.processor()
