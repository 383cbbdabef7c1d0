"""`summary()`: what the compiler has done in this process, in ten lines for a terminal.

In: counters and events since the last `reset`. Out: text, which knows its parts.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from dynamo.backends.services import loaded_service
from dynamo.base import counters, events, terminal
from dynamo.base.events import Event
from dynamo.base.words import counted

SHOWN = 2
STAGES = ("trace", "backend", "codegen", "guards")
NO_CACHE = "cache: not asked yet"


@dataclass(frozen=True)
class Section:
    """what: of which there are `total`, of `kinds`; rows: the most frequent, with their numbers."""

    what: str
    total: int
    kinds: int
    rows: list[tuple[str, int]]

    @property
    def title(self) -> str:
        if not self.total:
            return f"no {self.what}"
        more = self.kinds - len(self.rows)
        hidden = f" ({more} more kinds not shown)" if more else ""
        return f"{counted(self.total, self.what)}{hidden}:"

    def lines(self) -> list[str]:
        rows = [f"    {count} x {text}" if count > 1 else f"    {text}"
                for text, count in self.rows]
        return [f"  {self.title}", *rows]


class Summary(str):
    """The lines; `show()` prints them, as tables where rich is installed and on a terminal."""

    head: str
    stages: str
    sections: list[Section]
    skipped: str

    @classmethod
    def of(cls, head: str, stages: str, sections: list[Section], skipped: str) -> Summary:
        lines = [head, f"  {stages}", *(line for part in sections for line in part.lines())]
        made = cls("\n".join(lines + ([f"  {skipped}"] if skipped else [])))
        made.head, made.stages, made.sections, made.skipped = head, stages, sections, skipped
        return made

    def show(self) -> None:
        """Prints it."""
        terminal.show(self)

    def __rich__(self) -> Any:
        """The same for rich: a table for each kind of finding."""
        text, table = terminal.rich_module("text").Text, terminal.rich_module("table").Table
        parts = [text(self.head, style="bold"), text(self.stages, style="dim")]
        for section in self.sections:
            if not section.rows:
                parts.append(text(section.title, style="green"))
                continue
            made = table(title=section.title.rstrip(":"), title_justify="left", expand=True,
                         title_style="yellow", show_header=False)
            made.add_column(justify="right", no_wrap=True)
            made.add_column(ratio=1)
            for what, count in section.rows:
                made.add_row(f"{count} x", text(what))
            parts.append(made)
        if self.skipped:
            parts.append(text(self.skipped, style="dim"))
        return terminal.rich_module("console").Group(*parts)


def summary() -> Summary:
    """Functions, graphs, breaks with remedies, recompiles, what was not compiled, seconds by stage
    and hits of the cache, since the start or the last `reset`: a text, whose `show()` prints it.

    >>> summary().startswith("dynamo: ")
    True
    """
    frames = [event for event in events.events("frame") if event.time >= counters.since()]
    graphs = [event for event in frames if event.data["operations"]]
    names = {event.data["frame"] for event in frames
             if not event.data["frame"].startswith("__resume_")}
    seconds = counters.compile_times()
    operations = sum(event.data["operations"] for event in graphs)
    head = (f"dynamo: {counted(len(names), 'function')} compiled to "
            f"{counted(len(graphs), 'graph')} with {counted(operations, 'operation')}, "
            f"in {seconds.get('convert', 0.0):.2f} s")
    times = ", ".join(f"{stage} {seconds.get(stage, 0.0):.2f} s" for stage in STAGES)
    sections = [
        _section("graph break", _breaks(frames)),
        _section("recompile", counters.counters["recompiles"]),
        _section("part not compiled", counters.counters["not_compiled"]),
    ]
    return Summary.of(head, f"{times}; {_cache()}", sections, _skipped())


def _section(what: str, counts: Counter[str]) -> Section:
    return Section(what, sum(counts.values()), len(counts), counts.most_common(SHOWN))


def _skipped() -> str:
    skipped = counters.counters["skips"]
    if not skipped:
        return ""
    reason, count = skipped.most_common(1)[0]
    return (f"run as they are: {counted(sum(skipped.values()), 'frame')}, "
            f"{count} because {reason}")


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
    metrics = loaded_service("metrics")  # only where that backend has worked
    if metrics is None:
        return NO_CACHE
    counts = metrics.snapshot()
    found, built = counts["libraries_reused"], counts["libraries_built"]
    return f"cache: {found} of {found + built} libraries found" if found + built else NO_CACHE
