"""See the package. Each engine runs its programs in a process of its own, with a limit for each."""

from __future__ import annotations

import argparse
import json
import os
import pickle
import platform
import random
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.meaning import programs  # noqa: F401 (registers them)
from benchmarks.meaning.engines import Engine, engine_of
from benchmarks.meaning.plain import plain
from benchmarks.meaning.program import PROGRAMS, Program
from benchmarks.meaning.table import Row, judge, markdown, summary

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"


class TookTooLong(BaseException):
    """No program catches it."""


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.meaning",
        description="Programs after public reports, run by eager, ours and torch.compile.")
    parser.add_argument("topics", nargs="*", help="default: all")
    parser.add_argument("--engines", nargs="*", default=["ours", "torch"])
    parser.add_argument("--backend", default="inductor", help="of both compilers")
    parser.add_argument("--seconds", type=int, default=170, help="for a program")
    parser.add_argument("--publish", action="store_true",
                        help="write docs/results/meaning.md and .json; all topics and engines only")
    parser.add_argument("--outcomes", type=Path, help="folder where outcomes stay: a run that was "
                        "ended goes on from there")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    return parser


def chosen(topics: list[str]) -> list[Program]:
    unknown = [topic for topic in topics if all(one.topic != topic for one in PROGRAMS.values())]
    if unknown:
        names = ", ".join(sorted({one.topic for one in PROGRAMS.values()}))
        sys.exit(f"no topic {', '.join(unknown)}; there are {names}")
    return [one for one in PROGRAMS.values() if not topics or one.topic in topics]


def outcome(one: Program, engine: Engine, seconds: int) -> tuple[str, Any]:
    """("value", what it returned), ("error", class and text) or ("no end", "")."""
    engine.reset()
    torch.manual_seed(0)
    random.seed(0)
    signal.alarm(seconds)
    try:
        return "value", plain(one.run(engine, one.variant))
    except TookTooLong:
        return "no end", ""
    except Exception as error:
        return "error", [type(error).__name__, str(error)[:400]]
    finally:
        signal.alarm(0)
        torch.set_grad_enabled(True)


def work(name: str, options: argparse.Namespace) -> None:
    """Runs all chosen programs with one engine; each outcome is appended to the file `--work`."""

    def stop(*_: Any) -> None:
        raise TookTooLong

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    signal.signal(signal.SIGALRM, stop)
    engine = engine_of(name, options.backend)
    path = Path(options.work)
    known = {key for key, _ in outcomes(path)}
    with path.open("ab") as file:
        for one in chosen(options.topics):
            if one.name in known:
                continue
            pickle.dump((one.name, ("no end", "")), file)  # stays where the process dies
            file.flush()
            pickle.dump((one.name, outcome(one, engine, options.seconds)), file)
            file.flush()
            print(f"{name}: {one.name}", file=sys.stderr, flush=True)
    os._exit(0)


def outcomes(path: Path) -> Iterator[tuple[str, Any]]:
    if not path.exists():
        return
    with path.open("rb") as file:
        while True:
            try:
                yield pickle.load(file)
            except EOFError:
                return


def run_engine(name: str, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """The outcomes of one engine; a process that dies is followed by one for the rest."""
    path = folder / f"{name}.pickle"
    command = [sys.executable, "-m", "benchmarks.meaning", *options.topics, "--engines", name,
               "--backend", options.backend, "--seconds", str(options.seconds),
               "--work", str(path)]  # fmt: skip
    for _ in range(5):
        if subprocess.run(command).returncode == 0:
            break
    return dict(outcomes(path))


def machine() -> dict[str, str]:
    return {"torch": torch.__version__, "python": platform.python_version()}


def main() -> None:
    options = arguments().parse_args()
    if options.work:
        work(options.engines[0], options)
    partial = options.topics or set(options.engines) != {"ours", "torch"}
    if options.publish and partial:
        sys.exit("--publish writes the whole table: leave the topics and --engines out")
    with tempfile.TemporaryDirectory() as passing:
        folder = options.outcomes or Path(passing)
        folder.mkdir(parents=True, exist_ok=True)
        found = {name: run_engine(name, folder, options)
                 for name in ("eager", *options.engines)}
    rows: list[Row] = judge(chosen(options.topics), found)
    text = markdown(rows, options.backend, machine())
    print(text)
    print(summary(rows))
    if options.publish:
        (RESULTS / "meaning.md").write_text(text)
        record = {"machine": machine(), "backend": options.backend,
                  "rows": [row.as_dict() for row in rows]}
        (RESULTS / "meaning.json").write_text(json.dumps(record, indent=1) + "\n")
        print(f"written: {RESULTS / 'meaning.md'} and meaning.json")


if __name__ == "__main__":
    main()
