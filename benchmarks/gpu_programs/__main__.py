"""Programs of today, each in eager, compiled by us and by torch.compile, and which is behind.

    python -m benchmarks.gpu_programs [NAME ...] [--ways eager dynamo torch] [--processes 14]
        [--device cpu --small] [--seconds 550] [--each 85] [--write FILE] [--list] [--time]

NAME is a regular expression, matched at the start of a program's name or of its module's. Each
pair of program and way is a process. Those of a batch compile side by side; then each is timed
while the others wait (`--time`, which is on for a GPU). What takes longer than `--each` seconds to
compile is left out and said. A program that needs a GPU says so elsewhere. A result is wrong where
a tensor of it is farther from eager's than `TOLERANCE` of its norm and farther than three times
what torch.compile's is. Ratios are ours over the other's: wall time, time in which the GPU works,
peak of memory.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_programs.one import load
from benchmarks.gpu_programs.program import PROGRAMS

TOLERANCE = {"cuda": 2e-2, "cpu": 1e-3}
Row = dict[str, Any]


class Child:
    def __init__(self, name: str, way: str, options: argparse.Namespace, folder: Path) -> None:
        self.name, self.way = name, way
        self.gate = folder / f"{name}-{way}"
        self.results = self.gate.with_suffix(".pt")
        self.log = open(self.gate.with_suffix(".log"), "w+")  # noqa: SIM115
        size = "small" if options.small else "large"
        gate = str(self.gate) if options.time else ""
        command = [sys.executable, "-m", "benchmarks.gpu_programs.one", name, way, options.device,
                   size, str(self.results), gate]  # fmt: skip
        caches = {key: str(folder / f"{key}-{name}-{way}")
                  for key in ("TORCHINDUCTOR_CACHE_DIR", "DYNAMO_CACHE_DIR", "TRITON_CACHE_DIR")}
        threads = {"OMP_NUM_THREADS": "2", "TORCHINDUCTOR_COMPILE_THREADS": "4"}
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", **threads, **caches}
        self.process = subprocess.Popen(command, stdout=self.log, stderr=subprocess.STDOUT,
                                        env=environment, start_new_session=True)  # fmt: skip

    def is_waiting(self) -> bool:
        return self.gate.with_suffix(".ready").exists()

    def is_done(self) -> bool:
        return self.process.poll() is not None

    def kill(self) -> None:
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()

    def row(self) -> Row:
        self.log.seek(0)
        text = self.log.read()
        for line in text.splitlines():
            if line.startswith("ROW "):
                return dict(json.loads(line[4:]))
        return {"program": self.name, "way": self.way, "error": "no result", "trace": text[-1500:]}


def batch(
    jobs: list[tuple[str, str]], options: argparse.Namespace, folder: Path
) -> Iterator[Row]:
    """Compile side by side, then time in turn; the rows in the order of the jobs, each as soon as
    it is known. A process that takes longer than a minute to be timed is stopped."""
    children = [Child(name, way, options, folder) for name, way in jobs]
    end = time.monotonic() + options.each
    while time.monotonic() < end and not all(c.is_done() or c.is_waiting() for c in children):
        time.sleep(0.1)
    late = {id(c) for c in children if not c.is_done() and not c.is_waiting()}
    for child in children:
        if id(child) in late:
            child.kill()
    for child in children:
        if not child.is_done():
            child.gate.with_suffix(".go").touch()
            try:
                child.process.wait(60)
            except subprocess.TimeoutExpired:
                child.kill()
        row = child.row()
        if id(child) in late and "error" in row:
            row["error"] = f"not compiled in {options.each:.0f} s"
        yield row


def difference(ours: Path, eager: Path) -> float | None:
    """The largest, over the tensors of a result, of the distance over the norm; None without."""
    if not ours.exists() or not eager.exists():
        return None
    left, right = torch.load(ours), torch.load(eager)
    if [x.shape for x in left] != [x.shape for x in right]:
        return math.inf
    most = 0.0
    for x, y in zip(left, right, strict=True):
        if x.dtype != y.dtype:
            return math.inf
        x, y = x.double(), y.double()
        if not torch.equal(torch.isfinite(x), torch.isfinite(y)):
            return math.inf
        x, y = x.nan_to_num(0, 0, 0), y.nan_to_num(0, 0, 0)
        most = max(most, float((x - y).norm() / max(float(y.norm()), 1e-12)))
    return most


def line_of(name: str, rows: dict[str, Row], tolerance: float) -> str:
    def number(way: str, key: str) -> str:
        value = rows.get(way, {}).get(key)
        return "-" if value is None else f"{value:g}"

    unfit = next((row["unfit"] for row in rows.values() if "unfit" in row), None)
    if unfit is not None:
        return f"{name:28}  does not apply: {unfit}"
    parts = [f"{name:28}"]
    for key in ("ms", "gpu", "mb", "kernels", "first", "graphs"):
        parts.append(f"{key} " + "/".join(number(way, key) for way in rows))
    ours = rows.get("dynamo", {})
    flags = []
    apart, theirs = ours.get("apart"), rows.get("torch", {}).get("apart")
    if apart is not None:
        parts.append(f"apart {apart:.1e}" + (f"/{theirs:.1e}" if theirs is not None else ""))
        if apart > tolerance and apart > 3 * (theirs or 0):
            flags.append("WRONG")
    for way, row in rows.items():
        if "error" in row:
            flags.append(f"{way.upper()} FAILED: {row['error'][:180]}")
    if ours.get("uncompiled"):
        flags.append(f"UNCOMPILED {ours['uncompiled']}")
    broken = sum(ours.get("breaks", {}).values())
    if broken > sum(rows.get("torch", {}).get("breaks", {}).values()):
        flags.append(f"BREAKS {ours['breaks']}"[:400])
    peer = rows.get("torch" if "ms" in rows.get("torch", {}) else "eager", {})
    for key, most in (("ms", 1.02), ("gpu", 1.02), ("mb", 1.02)):
        if key in ours and key in peer and ours[key] > most * peer[key]:
            flags.append(f"{key} {ours[key] / peer[key]:.2f} of {peer['way']}'s")
    return "  ".join(parts) + ("  << " + "; ".join(flags) if flags else "")


def mean(by_program: dict[str, dict[str, Row]], key: str, peer: str) -> str:
    pairs = [(rows["dynamo"][key], rows[peer][key]) for rows in by_program.values()
             if key in rows.get("dynamo", {}) and rows.get(peer, {}).get(key)]  # fmt: skip
    if not pairs or any(ours <= 0 for ours, _ in pairs):
        return "-"
    return f"{statistics.geometric_mean(a / b for a, b in pairs):.3f} of {len(pairs)}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", default=[""])
    parser.add_argument("--ways", nargs="+", default=["eager", "dynamo", "torch"])
    parser.add_argument("--processes", type=int, default=14)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--time", action="store_true")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--seconds", type=float, default=550)
    parser.add_argument("--each", type=float, default=85)
    parser.add_argument("--write")
    options = parser.parse_args()
    options.time = options.time or options.device == "cuda"
    load()
    names = [name for name, function in PROGRAMS.items() if any(
        re.match(e, name) or re.match(e, function.__module__.rpartition(".")[2])
        for e in options.names)]  # fmt: skip
    if options.list:
        print(*names, sep="\n")
        return
    jobs = [(name, way) for name in names for way in options.ways]
    end = time.monotonic() + options.seconds
    rows: list[Row] = []
    tolerance = TOLERANCE[options.device]
    by_program: dict[str, dict[str, Row]] = {}
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        each = max(len(options.ways), options.processes // len(options.ways) * len(options.ways))
        for first in range(0, len(jobs), each):
            if time.monotonic() > end - options.each - 15:
                left = sorted({name for name, _ in jobs[first:]})
                print(f"no time for {len(left)}: {' '.join(left)}")
                break
            for row in batch(jobs[first : first + each], options, folder):
                name = row["program"]
                eager = folder / f"{name}-eager.pt"
                row["apart"] = difference(folder / f"{name}-{row['way']}.pt", eager)
                rows.append(row)
                by_program.setdefault(name, {})[row["way"]] = row
                if len(by_program[name]) == len(options.ways):
                    print(line_of(name, by_program[name], tolerance), flush=True)
                if options.write:  # what is known, should this process be stopped
                    Path(options.write).write_text(json.dumps(rows, indent=1, default=str))
    for peer in options.ways:
        if peer != "dynamo":
            means = [f"{key} {mean(by_program, key, peer)}" for key in ("ms", "gpu", "mb")]
            print(f"ours over {peer}'s, geometric means:", *means)


if __name__ == "__main__":
    main()
