"""From outcomes to verdicts, and from verdicts to a table that people read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.meaning.plain import difference
from benchmarks.meaning.program import Program

RIGHT, WRONG, ERROR, ENDLESS = "right", "wrong without a word", "error", "no end"
TITLES = {"ours": "dynamo.compile", "torch": "torch.compile"}


@dataclass(frozen=True)
class Row:
    """verdicts: by engine. notes: by engine, what differed or was raised; empty where right."""

    name: str
    what: str
    report: str
    verdicts: dict[str, str]
    notes: dict[str, str]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def judge(programs: Iterable[Program], found: Mapping[str, Mapping[str, Any]]) -> list[Row]:
    """found: for each engine, the outcome of each program."""
    rows = []
    for one in programs:
        expected = found["eager"][one.name]
        verdicts, notes = {}, {}
        for engine in found:
            if engine != "eager":
                got = found[engine].get(one.name, (ENDLESS, ""))
                verdicts[engine], notes[engine] = _verdict(expected, got)
        rows.append(Row(one.name, one.what, one.report, verdicts, notes))
    return rows


def _verdict(expected: tuple[str, Any], got: tuple[str, Any]) -> tuple[str, str]:
    if got[0] == ENDLESS:
        return ENDLESS, ""
    if got[0] == "error":
        if expected[0] == "error" and got[1][0] == expected[1][0]:
            return RIGHT, ""
        return ERROR, f"{got[1][0]}: {got[1][1].splitlines()[0] if got[1][1] else ''}"[:160]
    if expected[0] == "error":
        return WRONG, f"eager raises {expected[1][0]}"
    where = difference(expected[1], got[1])
    return (WRONG, where) if where else (RIGHT, "")


def summary(rows: Sequence[Row]) -> str:
    """A line for each engine."""
    lines = []
    for engine in rows[0].verdicts if rows else ():
        counts = Counter(row.verdicts[engine] for row in rows)
        parts = ", ".join(f"{counts[each]} {each}" for each in (RIGHT, WRONG, ERROR, ENDLESS)
                          if counts[each])
        lines.append(f"{TITLES[engine]}: {parts} (of {len(rows)})")
    return "\n".join(lines)


def markdown(rows: Sequence[Row], backend: str, machine: Mapping[str, str]) -> str:
    engines = list(rows[0].verdicts) if rows else []
    head = ["program", "what was reported", *(TITLES[engine] for engine in engines)]
    lines = ["# Does a compiled program keep its meaning?", "",
             "Small programs, written after public reports about compilers, run by eager and by "
             "two compilers with their", f"default settings (backend `{backend}`). Right: values, "
             "gradients, effects and errors are eager's. Made by", "`python -m benchmarks.meaning "
             f"--publish` with torch {machine['torch']}, Python {machine['python']}, on a CPU.",
             "torch.compile draws eager's random numbers here (`fallback_random`), by default "
             "others.",
             "", *(f"- {line}" for line in summary(rows).splitlines()), "",
             f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]  # fmt: skip
    for row in rows:
        cells = [f"`{row.name}`", f"[{row.what}]({row.report})",
                 *(row.verdicts[engine] for engine in engines)]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "## What was wrong", ""]
    for row in rows:
        for engine in engines:
            if row.verdicts[engine] != RIGHT:
                note = row.notes[engine].replace("`", "'").replace("\n", " ")
                lines.append(f"- `{row.name}`, {TITLES[engine]}: {row.verdicts[engine]}. `{note}`")
    return "\n".join(lines).rstrip() + "\n"
