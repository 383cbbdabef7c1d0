"""`summary()`: what the compiler has done in this process, in ten lines for a terminal.

In: counters and events since the last `reset`. Out: text.
"""

from __future__ import annotations

import sys
from collections import Counter

from dynamo.base import counters, events
from dynamo.base.events import Event
from dynamo.base.words import counted

SHOWN = 2
STAGES = ("trace", "backend", "codegen", "guards")
NO_CACHE = "cache: not asked yet"


def summary() -> str:
    """Functions, graphs, breaks with remedies, recompiles, what was not compiled, seconds by stage
    and hits of the cache, since the start or the last `reset`.

    >>> summary().startswith("dynamo: ")
    True
    """
    frames = [event for event in events.events("frame") if event.time >= counters.since()]
    graphs = [event for event in frames if event.data["operations"]]
    names = {event.data["frame"] for event in frames
             if not event.data["frame"].startswith("__resume_")}
    recompiles = counters.counters["recompiles"]
    seconds = counters.compile_times()
    operations = sum(event.data["operations"] for event in graphs)
    lines = [
        f"dynamo: {counted(len(names), 'function')} compiled to {counted(len(graphs), 'graph')} "
        f"with {counted(operations, 'operation')}, in {seconds.get('convert', 0.0):.2f} s",
        "  " + ", ".join(f"{stage} {seconds.get(stage, 0.0):.2f} s" for stage in STAGES)
        + f"; {_cache()}",
    ]
    lines += _rows("graph break", _breaks(frames))
    lines += _rows("recompile", recompiles)
    lines += _rows("part not compiled", counters.counters["not_compiled"])
    skipped = counters.counters["skips"]
    if skipped:
        reason, count = skipped.most_common(1)[0]
        lines.append(f"  run as they are: {counted(sum(skipped.values()), 'frame')}, "
                     f"{count} because {reason}")
    return "\n".join(lines)


def _rows(what: str, found: Counter[str]) -> list[str]:
    """A line with the number, and one for each of the most frequent."""
    total = sum(found.values())
    if not total:
        return [f"  no {what}"]
    more = len(found) - SHOWN
    head = f"  {counted(total, what)}" + (f" ({more} more kinds not shown)" if more > 0 else "")
    rows = [f"    {count} x {text}" if count > 1 else f"    {text}"
            for text, count in found.most_common(SHOWN)]
    return [f"{head}:", *rows]


def _breaks(frames: list[Event]) -> Counter[str]:
    """Line, reason and remedy of each break, in one line."""
    found: Counter[str] = Counter()
    for event in frames:
        row = event.data.get("break")
        if row is not None and not row["repeated"] and row["code"] != "escaping_exception":
            parts = [part.strip() for part in row["text"].splitlines()]
            place = parts[0]
            what = next((p for p in parts if p.startswith("Graph break: ")), "")
            todo = next((p for p in parts if p.startswith("What to do: ")), "")
            found[f"{place}: {what.removeprefix('Graph break: ')} "
                  f"{todo.removeprefix('What to do: ')}"] += 1
    return found


def _cache() -> str:
    metrics = sys.modules.get("inductor.metrics")  # only where that backend has worked
    if metrics is None:
        return NO_CACHE
    counts = metrics.snapshot()
    found, built = counts["libraries_reused"], counts["libraries_built"]
    return f"cache: {found} of {found + built} libraries found" if found + built else NO_CACHE
