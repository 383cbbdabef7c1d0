"""The program's source, each line with what became of it.

In: a `Report`. Out: `SourceFile`s: the functions that the compiler met, line by line. A line is

    break     the graph ended there, and the line itself ran as plain Python
    aten      it was captured, but not compiled: PyTorch's operators run it
    graph     its tensor operations are in graphs
    skipped   its function ran as it is
    traced    of a compiled function, without a tensor operation: evaluated while compiling, or
              never reached
    ""        anything else
"""

from __future__ import annotations

import ast
import linecache
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from dynamo.base.user_lines import TORCH
from dynamo.reporting.facts import Break, Place, Recompile, Report, Skipped

MOST_LINES = 6_000
AROUND = 2  # lines that are shown around one outside of functions


@dataclass
class Line:
    """graphs: number -> operations. kernels: (graph, title)."""

    number: int
    text: str
    graphs: dict[int, int] = field(default_factory=dict)
    kernels: list[str] = field(default_factory=list)
    breaks: list[Break] = field(default_factory=list)
    recompiles: list[Recompile] = field(default_factory=list)
    skipped: Skipped | None = None
    not_compiled: list[str] = field(default_factory=list)
    is_traced: bool = False

    @property
    def state(self) -> str:
        states = {"break": self.breaks, "aten": self.not_compiled, "graph": self.graphs,
                  "skipped": self.skipped, "traced": self.is_traced and self.text.strip()}
        return next((name for name, here in states.items() if here), "")


@dataclass
class SourceFile:
    """parts: runs of lines; between two, lines are left out."""

    name: str
    parts: list[list[Line]]

    def lines(self) -> Iterator[Line]:
        for part in self.parts:
            yield from part


def sources(report: Report) -> list[SourceFile]:
    """The files of the program in which something was met; those with a break first."""
    files = {name: _File(name) for name in _names(report) if not name.startswith(TORCH)}
    for file in files.values():
        file.read()
    for graph in report.graphs:
        if graph.file in files:
            files[graph.file].trace(graph.line)
        for name, line, count in graph.lines:
            if name in files and graph.number is not None:
                files[name].at(line).graphs[graph.number] = count
                files[name].trace(line)
    for skipped in report.skipped:
        if skipped.place[0] in files:
            files[skipped.place[0]].skip(skipped)
    for found in report.breaks:
        for name, line in dict(found.places).items():  # in each file the innermost
            if name in files:
                files[name].at(line).breaks.append(found)
    for recompile in report.recompiles:
        if recompile.place and recompile.place[0] in files:
            files[recompile.place[0]].at(recompile.place[1]).recompiles.append(recompile)
    for part in report.parts():
        for step in part.steps:
            for name, line in step.lines:
                if name in files and step.title not in files[name].at(line).kernels:
                    files[name].at(line).kernels.append(step.title)
    for refused in report.not_compiled:
        place = _place(refused.place)
        if place and place[0] in files:
            files[place[0]].at(place[1]).not_compiled.append(f"{refused.what}: {refused.reason}")
    made = [SourceFile(file.name, parts) for file in files.values() if (parts := file.parts())]
    return sorted(made, key=lambda file: not any(line.breaks for line in file.lines()))


def _names(report: Report) -> Iterable[str]:
    found = [graph.file for graph in report.graphs if graph.operations or graph.ends_in_break]
    found += [name for graph in report.graphs for name, _, _ in graph.lines]
    found += [name for row in report.breaks for name, _ in row.places]
    found += [row.place[0] for row in report.skipped]
    return dict.fromkeys(found)


def _place(text: str) -> Place | None:
    """The pair in `file:line in f`."""
    found = re.match(r"(.+):(\d+) in ", text)
    return (found[1], int(found[2])) if found else None


class _File:
    def __init__(self, name: str) -> None:
        self.name = name
        self.lines: list[Line] = []
        self.functions: list[tuple[int, int]] = []
        self.touched: set[int] = set()

    def read(self) -> None:
        texts = linecache.getlines(self.name)
        self.lines = [Line(n, text.rstrip("\n")) for n, text in enumerate(texts, 1)]
        try:
            tree = ast.parse("".join(texts))
        except (SyntaxError, ValueError):  # a cell with magic, a file that has changed
            return
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
        for node in ast.walk(tree):
            if isinstance(node, kinds):
                decorators = getattr(node, "decorator_list", [])
                begin = min([node.lineno, *(each.lineno for each in decorators)])
                self.functions.append((begin, node.end_lineno or node.lineno))

    def at(self, number: int) -> Line:
        """The line; one that the file lacks by now is nowhere shown."""
        self.touched.add(number)
        return self.lines[number - 1] if number <= len(self.lines) else Line(number, "")

    def around(self, number: int) -> tuple[int, int]:
        """First and last line of the innermost function there."""
        inside = [span for span in self.functions if span[0] <= number <= span[1]]
        if inside:
            return max(inside)
        return max(1, number - AROUND), min(len(self.lines), number + AROUND)

    def trace(self, number: int) -> None:
        """The function there was compiled."""
        first, last = self.around(number)
        self.touched.add(number)
        for line in self.lines[first - 1:last]:
            line.is_traced = True

    def skip(self, skipped: Skipped) -> None:
        first, last = self.around(skipped.place[1])
        self.touched.add(skipped.place[1])
        for line in self.lines[first - 1:last]:
            line.skipped = skipped

    def parts(self) -> list[list[Line]]:
        shown: set[int] = set()
        for number in self.touched:
            if number <= len(self.lines):
                first, last = self.around(number)
                shown.update(range(first, last + 1))
        runs: list[list[Line]] = []
        for number in sorted(shown)[:MOST_LINES]:
            if not runs or runs[-1][-1].number != number - 1:
                runs.append([])
            runs[-1].append(self.lines[number - 1])
        return runs
