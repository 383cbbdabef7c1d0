"""A `Report` as one HTML page, without network: texts, tables and pictures for the template."""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup, escape

from dynamo.backends.services import service
from dynamo.base.words import counted
from dynamo.reporting.facts import Graph, Guard, Report
from dynamo.reporting.kernels import Part, Step
from dynamo.reporting.pictures import lanes_html, megabytes, memory_svg, milliseconds
from dynamo.reporting.sources import sources
from dynamo.reporting.timeline import GROUPS, OTHER, Made, compiles, step_bars

FOLDER = Path(__file__).parent
HUES = {name: 47 * number % 360 for number, name in enumerate((*GROUPS, OTHER), 4)}
MOST_DRAWN = 400  # nodes of a picture
MOST_GUARDS, LEAST_GUARDS = 4_000, 15  # rows in all, and of one graph
MOST_TEXT = 60_000  # characters of one listing
MOST_ALL = 2_500_000  # of all pictures and listings
SLOWEST = 12
LONGEST = 20  # compiles in the list
NO_TIMES = ("No times were kept: run with DYNAMO_REPORT=folder, or inside of "
            "`with dynamo.profile():`.")
TIMING = ("Rates are those of the fastest call. MB: each element that is read or written, once. "
          "In cache: faster than memory is, as the data lay in a cache of the processor.")
NO_PEAKS = ("What this machine can do at best is unknown: it was busy with other work when the "
            "report was made.")
BUSY = "Unknown: the machine was busy with other work when the report was made."
SPEED = ("Ours: the fastest call of each kernel. Eager: the fastest of some runs of the captured "
         "graph by PyTorch's operators, when the report was made, on made-up values.")
NO_PICTURE = "Graphs and loops are kept where DYNAMO_REPORT=folder is set from the start."


def page(report: Report, trace: str = "") -> str:
    """trace: the name of the file with the Chrome trace, if there is one."""
    made = _Page(report)
    return made.render("page.html", **made.everything(trace))


def anchor(file: str, line: int) -> str:
    """The id of a line's element."""
    return f"line-{re.sub(r'[^A-Za-z0-9]+', '-', file)}-{line}"


def short(file: str, line: int) -> str:
    return f"{os.path.basename(file)}:{line}"


def readable(file: str) -> str:
    """The path below the current folder, or in a library."""
    _, found, rest = file.rpartition(f"{os.sep}site-packages{os.sep}")
    if found:
        return rest
    inside = os.path.relpath(file) if os.path.isabs(file) else file
    return file if inside.startswith("..") else inside


def breakable(name: str) -> Markup:
    """A long name may go on in the next line behind each of these."""
    return Markup(re.sub(r"(::|_)", r"\1<wbr>", str(escape(name))))


class _Page:
    def __init__(self, report: Report) -> None:
        self.report = report
        self.environment = jinja2.Environment(
            loader=jinja2.FileSystemLoader(FOLDER), autoescape=True, trim_blocks=True,
            undefined=jinja2.StrictUndefined)
        self.environment.globals.update(anchor=anchor, short=short, readable=readable)
        self.environment.filters["breakable"] = breakable
        self.left = MOST_ALL

    def render(self, name: str, **values: Any) -> str:
        return self.environment.get_template(name).render(**values)

    def everything(self, trace: str) -> dict[str, Any]:
        report = self.report
        graphs = [graph for graph in report.graphs if graph.number is not None]
        seconds = report.seconds
        inside = [f"{stage} {milliseconds(each)}" for stage, each in seconds.items()
                  if stage != "convert"]
        found = sum(look.found for look in report.looks)
        looks = len(report.looks)
        made = time.strftime("%Y-%m-%d %H:%M", time.localtime(report.made))
        return {
            "title": report.machine.get("program", "a program"),
            "style": Markup((FOLDER / "style.css").read_text()),
            "head": self._head(graphs), "machine": "; ".join(
                [*(f"{k}: {v}" for k, v in report.machine.items() if k != "program"), made]),
            "files": sources(report), "breaks": report.breaks, "recompiles": report.recompiles,
            "skipped": report.skipped, "not_compiled": report.not_compiled,
            "left": [(graph.number, *row) for graph in graphs for row in graph.left_to_aten],
            "slowest": Markup(self._slowest()), "peaks": self._peaks(),
            "remedies": self._remedies(),
            "timing": TIMING, "speed": self._speed(), "speed_words": SPEED,
            "no_speed": BUSY if report.is_busy else NO_TIMES,
            "compile_total": milliseconds(seconds.get("convert", 0.0)),
            **self._compiles(), "stages": "; ".join(inside),
            "lanes": Markup(lanes_html(step_bars(report))), "no_times": NO_TIMES,
            "trace": f"As a Chrome trace (chrome://tracing, Perfetto): {trace}" if trace else "",
            "cache_sentence": f"{found} of {looks} looks into the disk cache found what they "
                              "wanted." if looks else "The disk cache was not asked.",
            "looks": report.looks,
            "graphs": [self._graph(graph) for graph in graphs],
            "others": [{"title": part.title, "html": Markup(self._part(part))}
                       for part in report.others],
        }

    def _head(self, graphs: Sequence[Graph]) -> list[tuple[str, str]]:
        report = self.report
        kernels = sum(step.kind == "kernel" for part in report.parts() for step in part.steps)
        calls = sum(step.kind == "library" for part in report.parts() for step in part.steps)
        rows = [
            (len(graphs), "graph"), (sum(graph.operations for graph in graphs), "operation"),
            (len(report.breaks), "graph break"), (len(report.recompiles), "recompile"),
            (kernels, "kernel"), (calls, "library call"),
        ]
        words = [tuple(counted(count, word).split(" ", 1)) for count, word in rows]
        total = milliseconds(report.seconds.get("convert", 0.0))
        return [*words, (total, "of compiling")]  # type: ignore[list-item]

    def _peaks(self) -> str:
        if not self.report.peaks:
            return NO_PEAKS if any(step.calls for part in self.report.parts()
                                   for step in part.steps) else ""
        each = "; ".join(f"{name}: {peaks}" for name, peaks in self.report.peaks.items())
        return f"The machine's measured best: {each}."

    def _speed(self) -> dict[str, Any]:
        """Rows of ours beside eager, and graphs without, by reason."""
        rows, without = [], Counter[str]()
        for graph in self.report.graphs:
            eager = self.report.eager.get(graph.key)
            if eager is None:
                continue
            if eager.why_not:
                without[eager.why_not] += 1
            for part in graph.parts:
                theirs = eager.backward if part.part == "backward" else eager.forward
                if part.fastest and theirs:
                    rows.append(_beside(graph, part.part, part.fastest, theirs))
        return {"rows": rows, "without": [f"{counted(count, 'graph')}: {why}"
                                          for why, count in without.items()]}

    def _compiles(self) -> dict[str, Any]:
        """The list of compiles, and seconds by what they were spent on."""
        made = compiles(self.report)
        longest = sorted(made, key=lambda each: -each.total)[:LONGEST]
        widest = max((each.total for each in made), default=0.0)
        total = sum(each.total for each in made)
        groups = [(name, sum(each.seconds[name] for each in made)) for name in (*GROUPS, OTHER)]
        return {
            "compiles": [_bar(each, widest) for each in made if each in longest],
            "shorter": len(made) - len(longest),
            "groups": [(name, HUES[name], milliseconds(seconds), f"{seconds / total:.0%}")
                       for name, seconds in groups if seconds > 0],
        }

    def _remedies(self) -> list[tuple[str, list[tuple[str, int]]]]:
        """What to do about breaks and recompiles, each once, with the lines that it is for."""
        found: dict[str, list[tuple[str, int]]] = {}
        rows = [(row.remedy, row.place) for row in self.report.breaks]
        rows += [(row.advice, row.place) for row in self.report.recompiles if row.place]
        for remedy, place in rows:
            places = found.setdefault(remedy, [])
            if place not in places:
                places.append(place)
        return sorted(found.items(), key=lambda each: -len(each[1]))

    # -- kernels ----------------------------------------------------------------------------------

    def _slowest(self) -> str:
        timed = [(step, part) for part in self.report.parts() for step in part.steps if step.calls]
        timed.sort(key=lambda row: -row[0].seconds)
        rows = [{**self._row(step, part), "part": part.title} for step, part in timed[:SLOWEST]]
        return self.render("slowest.html", rows=rows, no_times=NO_TIMES)

    def _row(self, step: Step, part: Part) -> dict[str, Any]:
        row: dict[str, Any] = {
            "title": step.title, "lines": step.lines, "calls": step.calls or "",
            "ms": f"{1e3 * step.seconds / step.calls:.4f}" if step.calls else "",
            "total": f"{1e3 * step.seconds:.3f}", "mb": megabytes(step.moved) if step.moved else "",
            "bandwidth": "", "rate": "", "peak": "",
        }
        if step.calls and step.fastest:
            if step.moved:
                row["bandwidth"] = f"{step.moved / step.fastest / 1e9:.1f}"
            if step.operations:
                row["rate"] = f"{step.operations / step.fastest / 1e9:.1f}"
            peaks = self.report.peaks.get(part.device.partition(":")[0])
            if peaks is not None and (step.moved or step.operations):
                share = peaks.seconds(step.operations, step.moved) / step.fastest
                row["peak"] = f"{share:.0%}" if share <= 1 else "in cache"
        return row

    # -- graphs -----------------------------------------------------------------------------------

    def _graph(self, graph: Graph) -> dict[str, Any]:
        svg, why = self._picture(graph)
        parts = [{"title": part.title, "part": part.part, "html": Markup(self._part(part))}
                 for part in graph.parts]
        names = ("number", "name", "key", "operations", "ends_in_break", "guards", "guard_count",
                 "python_guards")
        values: Mapping[str, Any] = {name: getattr(graph, name) for name in names}
        shown_guards = max(LEAST_GUARDS, MOST_GUARDS // len(self.report.graphs))
        eager = self.report.eager.get(graph.key)
        reasons: dict[str, list[Guard]] = {}
        for guard in graph.guards[:shown_guards]:
            reasons.setdefault(guard.why, []).append(guard)
        # One guard with its reason says more than a hundred without.
        shown = {**values, "reasons": sorted(reasons.items(), key=lambda row: len(row[1])),
                 "guards": graph.guards[:shown_guards], "parts": parts,
                 "no_eager": eager.why_not if eager is not None else "",
                 "svg": Markup(svg), "no_picture": why,
                 "no_parts": "the graph runs as it was captured, or its code is forgotten by now."}
        return {**shown, "html": Markup(self.render("graph.html", graph=shown))}

    def _picture(self, graph: Graph) -> tuple[str, str]:
        """The graph's picture, or why there is none."""
        if graph.captured is None:
            return "", NO_PICTURE
        count = len(graph.captured.nodes)
        if count > MOST_DRAWN:
            return "", f"{count} nodes are too many for a picture; graphs.draw makes one."
        kernel_of = {place: step.title for part in reversed(graph.parts) for step in part.steps
                     for place in step.lines}
        lines = service("user_lines")

        def label(node: Any) -> str:
            line = lines.user_line(node)
            return kernel_of.get((line.file, line.number), "")

        draw = service("pictures")
        svg: str = draw.to_svg(_Module(graph.captured), label)
        return (svg, "") if self._fits(svg) else ("", "The page is large enough without a picture.")

    def _part(self, part: Part) -> str:
        code = "\n".join(step.code for step in _each_kernel_once(part.steps))
        code, loops, fused = map(self._cut, (code, part.loops, part.fused))
        return self.render(
            "part.html", rows=[self._row(step, part) for step in part.steps],
            memory=Markup(memory_svg(part)), arena=megabytes(part.arena), lives=len(part.lives),
            code=code, part={"loops": loops, "fused": fused, "refusals": part.refusals[:200]})

    def _cut(self, text: str) -> str:
        if len(text) > MOST_TEXT:
            text = f"{text[:MOST_TEXT]}\n... {len(text) - MOST_TEXT} more characters"
        return text if self._fits(text) else "(left out: the page is large enough)"

    def _fits(self, text: str) -> bool:
        self.left -= len(text)
        return self.left >= 0


class _Module:
    """What `graphs.draw` looks at."""

    def __init__(self, graph: Any) -> None:
        self.graph = graph


def _beside(graph: Graph, part: str, ours: float, theirs: float) -> dict[str, Any]:
    longer = max(ours, theirs)
    return {"number": graph.number, "name": graph.name, "part": part or "forward",
            "ours": milliseconds(ours), "eager": milliseconds(theirs),
            "times": f"{theirs / ours:.2f}x", "widths": (ours / longer, theirs / longer)}


def _bar(made: Made, widest: float) -> dict[str, Any]:
    parts = [{"hue": HUES[name], "width": seconds / widest,
              "said": f"{name}: {milliseconds(seconds)}"}
             for name, seconds in made.seconds.items() if seconds > 0.002 * widest]
    return {"title": made.title, "total": milliseconds(made.total), "parts": parts}


def _each_kernel_once(steps: Iterable[Step]) -> list[Step]:
    return list({step.code: step for step in steps if step.code}.values())
