"""See the package. One process collects the rows, one for each model makes them."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

import torch

from benchmarks.paper import capture, graphs, lazily, overhead, speed, without
from benchmarks.paper.models import CannotBuild
from benchmarks.paper.report import RESULTS, Row, shown, with_kept, write
from benchmarks.paper.table import Run, Table

RESULT = "RESULT "
ROOT = Path(__file__).parents[2]
TABLES: dict[str, Table] = {
    "table1": capture.TABLE, "table2": overhead.TABLE, "table3": speed.TABLE,
    "table4": without.TABLE, "fx": graphs.TABLE, "lazy": lazily.TABLE,
}  # fmt: skip
LEAST = 20.0  # seconds that are worth starting a model for


def work(table: str, run: Run) -> None:
    """The rows of one model, printed one by one: what comes after one may take too long."""
    warnings.simplefilter("ignore")
    try:
        for row in TABLES[table].rows(run):
            print(RESULT + json.dumps(row), flush=True)
    except CannotBuild as error:
        print(RESULT + json.dumps({"model": run.model, "skipped": str(error)[:200]}), flush=True)
    os._exit(0)  # engines may hang at the end


def in_a_process(table: str, run: Run) -> list[Row]:
    """The rows of one model; what goes wrong with the process is a row, too."""
    facts = {**asdict(run), "began": 0.0}
    command = [sys.executable, "-m", "benchmarks.paper", table, "--work", json.dumps(facts)]
    why = ""
    with tempfile.TemporaryFile("w+") as said, tempfile.TemporaryFile("w+") as complained:
        child = subprocess.Popen(
            command, stdout=said, stderr=complained, cwd=ROOT, start_new_session=True)
        try:
            child.wait(run.limit)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)  # its compilers as well
            child.wait()
            why = f"more than {run.limit:.0f} s"
        said.seek(0)
        complained.seek(0)
        rows = [json.loads(line.removeprefix(RESULT)) for line in said if line.startswith(RESULT)]
        lines = complained.read().strip().splitlines()
    if child.returncode and not why:
        why = lines[-1][:200] if lines else f"the process ended with {child.returncode}"
    return [*rows, {"model": run.model, "skipped": why}] if why else rows


def collect(table: str, runs: Sequence[Run], limit: float, processes: int) -> list[Row]:
    """The rows of all models, until `limit` seconds are over."""
    began = time.perf_counter()

    def one(run: Run) -> list[Row]:
        left = limit - (time.perf_counter() - began)
        if left < LEAST:
            return [{"model": run.model, "skipped": "no time was left"}]
        rows = in_a_process(table, Run(**{**asdict(run), "limit": min(run.limit, left)}))
        for row in rows:
            print(" ".join(f"{key}={shown(value)}" for key, value in row.items()), flush=True)
        return rows

    with ThreadPoolExecutor(processes) as pool:
        return [row for rows in pool.map(one, runs) for row in rows]


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.paper", description="The papers' tables, measured here.")
    parser.add_argument("table", choices=[*TABLES])
    parser.add_argument("models", nargs="*", help="suite:model, default: those of the table")
    parser.add_argument("--cuda", action="store_true", help="models on a GPU")
    parser.add_argument("--size", default="", help="small, real or large")
    parser.add_argument("--ways", nargs="*", default=[], help="columns or rows that are wanted")
    parser.add_argument("--each", type=float, default=300.0, help="seconds for a model")
    parser.add_argument("--limit", type=float, default=float("inf"), help="seconds for all")
    parser.add_argument("--seconds", type=float, default=15.0, help="of timing, for a model")
    parser.add_argument("--processes", type=int, default=1, help="models at the same time")
    parser.add_argument("--hold", default="", help="a command that keeps the machine to us")
    parser.add_argument("--keep", action="store_true",
                        help="rows of other models, measured here before, stay")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    return parser


def main() -> None:
    options = arguments().parse_intermixed_args()  # models may stand behind options
    if options.work:
        facts = json.loads(options.work)
        facts.update(began=time.perf_counter(), ways=tuple(facts["ways"]))
        work(options.table, Run(**facts))
    table = TABLES[options.table]
    if options.cuda and not torch.cuda.is_available():
        raise SystemExit("--cuda: no GPU is found")
    size = options.size or ("large" if options.cuda and table.size == "real" else table.size)
    runs = [Run(name, size, options.cuda, options.seconds, options.hold, tuple(options.ways),
                options.each) for name in options.models or table.models()]  # fmt: skip
    rows = collect(options.table, runs, options.limit, options.processes)
    if options.keep:
        rows = with_kept(rows, options.table, options.cuda, options.out)
    good = [row for row in rows if "skipped" not in row]
    shown_as = f"python -m benchmarks.paper {options.table} --size {size}"
    shown_as += " --cuda" if options.cuda else ""
    print(write(options.table, table.title, table.about, rows, table.notes(good), options.cuda,
                shown_as, options.out))  # fmt: skip


if __name__ == "__main__":
    main()
