"""A training while its graphs are compiled in the background, against eager.

    python -m benchmarks.background                    # BERT, 4 layers, hidden 768
    python -m benchmarks.background --size small --how process thread foreground

Each run is a new process with an empty cache. Shown: the seconds of the first 20 steps over eager's
(with tracing and all that the program's thread does; imports apart), the step from which compiled
code runs, milliseconds of a step behind it, eager's, and the largest relative difference of a loss.
The step of the program is forward, backward and SGD; one in eager comes before all others.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

import torch

from benchmarks.warm_start import SHAPES, build

FIRST = 20
BEHIND = 10
HOW = ("eager", "process", "thread", "measured", "foreground")
IN_BACKGROUND = ("process", "thread", "measured")
PATIENCE = 120.0


def steps_of(model: Any, call: Any, given: dict[str, Any]) -> Any:
    """A function that runs one step, and gives the loss."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step() -> float:
        loss = call(**given).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return float(loss)

    return step


def measure(how: str, size: str) -> dict[str, Any]:
    """One process."""
    model, _, given = build("bert", size, True)
    call = model
    if how != "eager":
        import dynamo

        dynamo.config.background_processes = int(how == "process")
        measures = {"library_kernels": "measure"} if how == "measured" else {}
        options = {"background": how in IN_BACKGROUND, **measures}
        call = dynamo.compile(model, options=options)
    step = steps_of(model, call, given)
    steps_of(model, model, given)()  # what all need once: threads, imports of the optimizer
    losses, times = [], []
    is_waiting = how in IN_BACKGROUND
    number, ready = 0, 0.0
    start = time.perf_counter()
    while len(times) < FIRST or (is_waiting and time.perf_counter() - start < PATIENCE):
        begun = time.perf_counter()
        losses.append(step())
        times.append(time.perf_counter() - begun)
        if is_waiting and not dynamo.background.pending():
            is_waiting, number, ready = False, len(times), time.perf_counter() - start
    first = sum(times[:FIRST])
    behind = []
    for _ in range(BEHIND):
        begun = time.perf_counter()
        losses.append(step())
        behind.append(time.perf_counter() - begun)
    stages = {} if how == "eager" else dynamo.compile_times()
    return {"first": first, "stages": stages, "times": times, "ready": [number, ready],
            "losses": losses, "behind": statistics.median(behind)}  # fmt: skip


def in_process(how: str, size: str, threads: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "DYNAMO_CACHE_DIR": folder, "OMP_NUM_THREADS": str(threads)}
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.background", "--one", how, "--size", size],
            env=env, capture_output=True, text=True, check=True)  # fmt: skip
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def line_of(how: str, run: dict[str, Any], eager: dict[str, Any]) -> str:
    apart = max(abs(a - b) / abs(b) for a, b in zip(run["losses"], eager["losses"], strict=False))
    number, ready = run["ready"]
    return (f"{how:12}{run['first']:9.2f}{run['first'] / eager['first']:7.2f}"
            f"{1000 * run['times'][0]:10.0f}{number:7}{ready:8.1f}{1000 * run['behind']:9.1f}"
            f"{apart:12.1e}")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--size", default="real", choices=tuple(SHAPES))
    parser.add_argument("--how", nargs="+", default=("process", "thread"), choices=HOW)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))
        print(json.dumps(measure(options.one, options.size)))
        return
    print(f"{'':12}{'20 steps':>9}{'eager':>7}{'1st, ms':>10}{'ready':>7}{'after s':>8}"
          f"{'step, ms':>9}{'losses':>12}")
    eager = in_process("eager", options.size, options.threads)
    print(line_of("eager", eager, eager), flush=True)
    for how in options.how:
        print(line_of(how, in_process(how, options.size, options.threads), eager), flush=True)


if __name__ == "__main__":
    main()
