"""See the package. One process collects the rows, one for each model and kind makes them."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

import dynamo
from benchmarks.paper import capture, graphs, lazily, overhead, slots, speed, without
from benchmarks.paper.batches import NO_TIME, RESULT, collect, skipped
from benchmarks.paper.models import CannotBuild
from benchmarks.paper.report import PUBLISHED, RESULTS, Row, known_rows, shown, write
from benchmarks.paper.table import Run, Table

TABLES: dict[str, Table] = {
    "table1": capture.TABLE, "table2": overhead.TABLE, "table3": speed.TABLE,
    "table4": without.TABLE, "fx": graphs.TABLE, "lazy": lazily.TABLE,
}  # fmt: skip
PARTS = ("models", "suites", "kinds", "ways")  # options after which a run is no whole table


def work(table: str, run: Run) -> None:
    """The rows of one model, printed one by one: what comes after one may take too long."""
    warnings.simplefilter("ignore")
    run = replace(run, began=time.perf_counter(), ways=tuple(run.ways))
    try:
        for row in TABLES[table].rows(run):
            print(RESULT + json.dumps(row), flush=True)
    except CannotBuild as error:
        print(RESULT + json.dumps(skipped(run, str(error)[:200])), flush=True)
    os._exit(0)  # engines may hang at the end


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.paper", description="The papers' tables, measured here.")
    parser.add_argument("table", choices=[*TABLES])
    parser.add_argument("models", nargs="*", help="suite:model, default: those of the table")
    parser.add_argument("--cuda", action="store_true", help="models on a GPU")
    parser.add_argument("--size", default="", help="small, real or large")
    parser.add_argument("--suites", nargs="*", default=[], help="only hf, vision, timm, micro")
    parser.add_argument("--kinds", nargs="*", default=[], help="only inference or training")
    parser.add_argument("--ways", nargs="*", default=[], help="columns or rows that are wanted")
    parser.add_argument("--each", type=float, default=300.0,
                        help="seconds until a model is ready to be timed")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="for all")
    parser.add_argument("--timing", type=float, default=15.0, help="seconds of timing, for a row")
    parser.add_argument("--processes", type=int, default=1, help="models prepared side by side")
    parser.add_argument("--slots", type=int, default=0,
                        help="models that run at once, each alone on two cores of its own")
    parser.add_argument("--timed", type=int, default=0,
                        help="slots that are timed at once, while others compile (0: all)")
    parser.add_argument("--here", action="store_true",
                        help="in this process, one after the other: imports and compilers start "
                        "once; one that hangs is not ended")
    parser.add_argument("--hold", default="", help="a command that keeps the machine to us")
    parser.add_argument("--keep", action="store_true",
                        help="rows of other models, measured here before, stay")
    parser.add_argument("--resume", action="store_true",
                        help="only models that have no row yet; the others stay")
    parser.add_argument("--out", type=Path, default=None,
                        help=f"folder of the results, default: {RESULTS}")
    parser.add_argument("--publish", action="store_true",
                        help="then replace the page in docs/results: a whole table only")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    return parser


def publish(name: str, rows: Sequence[Row], write_into: Callable[[Path], str]) -> str:
    """Replaces the published page, unless the time was over before all was measured."""
    late = sorted({row["model"] for row in rows if row.get("skipped") == NO_TIME})
    if late:
        raise SystemExit(f"{name} is not published: no time was left for {', '.join(late)}")
    return write_into(PUBLISHED)


def size_of(options: argparse.Namespace) -> str:
    size = TABLES[options.table].size
    return options.size or ("large" if options.cuda and size == "real" else size)


def name_of(table: str, size: str) -> str:
    """Of the files: small models have files of their own where the table is of others, and others
    where it is of small ones."""
    own = TABLES[table].size
    return f"{table}-{size}" if size != own and "small" in (size, own) else table


def runs_of(options: argparse.Namespace) -> list[Run]:
    """All that is asked for: kind by kind, so that a run that is cut has one of them whole."""
    table = TABLES[options.table]
    names = options.models or [
        name for name in table.models()
        if not options.suites or name.partition(":")[0] in options.suites]  # fmt: skip
    pairs = [(place, name, kind) for name in names for place, kind in enumerate(table.kinds(name))
             if not options.kinds or kind in options.kinds]  # fmt: skip
    pairs.sort(key=lambda pair: pair[0])
    timing = options.timing if table.is_timed else 0.0
    return [Run(name, size_of(options), options.cuda, kind, timing, options.hold,
                tuple(options.ways), options.each) for _, name, kind in pairs]  # fmt: skip


def here(table: Table, runs: Sequence[Run], limit: float) -> Iterator[list[Row]]:
    """The rows of all, one after the other in this process; what is not begun is a row."""
    warnings.simplefilter("ignore")
    until = time.perf_counter() + limit
    for run in runs:
        if time.perf_counter() > until:
            yield [skipped(run, NO_TIME)]
            continue
        dynamo.reset()
        dynamo.counters.clear()
        try:
            yield list(table.rows(replace(run, began=time.perf_counter())))
        except Exception as error:
            yield [skipped(run, f"{type(error).__name__}: {error}"[:200])]


def results_of(options: argparse.Namespace, runs: Sequence[Run]) -> Iterator[list[Row]]:
    if options.here:
        return here(TABLES[options.table], runs, options.seconds)
    if options.slots:
        server = [*command_of(options.table), "--serve"]
        return slots.collect(server, runs, options.seconds, options.slots, options.timed)
    return collect(options.table, runs, options.seconds, options.processes)


def command_of(table: str) -> list[str]:
    return [sys.executable, "-m", "benchmarks.paper", table]


def named(row: Row) -> tuple[str, str]:
    return row["model"], row.get("kind", "")


def known(options: argparse.Namespace, name: str, folder: Path) -> list[Row]:
    """Rows that were measured here before: those of the folder, then those that are published."""
    found: dict[tuple[str, str], list[Row]] = {}
    for place in (folder, PUBLISHED)[: 1 + options.publish]:
        rows = known_rows(name, options.cuda, size_of(options), place, options.slots)
        new = {named(row) for row in rows}.difference(found)
        for row in rows:
            if named(row) in new:
                found.setdefault(named(row), []).append(row)
    return [row for rows in found.values() for row in rows]


def check_publishing(options: argparse.Namespace, name: str) -> None:
    """Errors: SystemExit where a part of a table would replace the published page, all rows."""
    parts = [part for part in PARTS if getattr(options, part)]
    if not options.publish or not parts:
        return
    keeps = options.keep or options.resume
    if not keeps or not known_rows(
            name, options.cuda, size_of(options), PUBLISHED, options.slots):
        raise SystemExit(
            f"--publish: with {', '.join(parts)} given this is no whole table; --keep leaves the "
            "other rows where they were measured here, --out FOLDER writes it elsewhere")


def measure(options: argparse.Namespace, runs: Sequence[Run]) -> str:
    """Runs them and writes the table after each; gives the Markdown."""
    table, size = TABLES[options.table], size_of(options)
    keeps = options.keep or options.resume
    name, folder = name_of(options.table, size), options.out or RESULTS
    rows = known(options, name, folder) if keeps else []
    check_publishing(options, name)
    done = {named(row) for row in rows if "skipped" not in row}
    if options.resume:
        runs = [run for run in runs if run.name not in done]
    command = f"python -m benchmarks.paper {options.table} --size {size}"
    command += " --cuda" if options.cuda else ""
    command += f" --slots {options.slots}" if options.slots else ""
    command += f" --timed {options.timed}" if options.timed else ""
    asked = {run.name for run in runs}
    rows = [row for row in rows if named(row) not in asked]

    def written(into: Path = folder) -> str:
        good = [row for row in rows if "skipped" not in row]
        return write(name, table.title, table.about, rows, table.notes(good), options.cuda,
                     command, into, size, options.slots)  # fmt: skip

    for found in results_of(options, runs):
        for row in found:
            print(" ".join(f"{key}={shown(value)}" for key, value in row.items()), flush=True)
        rows += found
        written()
    print(f"{name} is in {folder.absolute()}", file=sys.stderr)
    return publish(name, rows, written) if options.publish else written()


def main() -> None:
    options = arguments().parse_intermixed_args()  # models may stand behind options
    if options.work:
        work(options.table, Run(**json.loads(options.work)))
    if options.serve:
        slots.serve(partial(work, options.table), [*command_of(options.table), "--work"])
        return
    if options.cuda and not torch.cuda.is_available():
        raise SystemExit("--cuda: no GPU is found")
    print(measure(options, runs_of(options)))


if __name__ == "__main__":
    main()
