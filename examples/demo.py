"""`make demo`: compiles five programs and prints what happened.

Each program runs in two fresh processes, with an empty and with a filled cache folder. Columns:
graphs, breaks, operations captured, kernels generated, seconds to compile (cold and warm),
milliseconds of eager and compiled (medians of calls in turn), speedup, largest error relative to
float64 eager (compiled, and eager for comparison).
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

import torch

import dynamo
from dynamo.testing import CompileCounter
from examples.models import MODELS
from inductor import metrics


def tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    items = (
        value.values()
        if isinstance(value, dict)
        else value
        if isinstance(value, (list, tuple))
        else ()
    )
    return [t for item in items for t in tensors(item)]


def error(got: Any, want: Any) -> float:
    """Largest difference over the largest value, over all tensors."""
    pairs = list(zip(tensors(got), tensors(want), strict=True))
    return max(
        ((a.double() - b).abs().max() / b.abs().max().clamp(min=1e-12)).item() for a, b in pairs
    )


def double(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.double() if value.is_floating_point() else value
    return value


def seconds(call: Any) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def measure(name: str, backend: str, budget: float) -> dict[str, Any]:
    """Compiles and times one program in this process."""
    torch.manual_seed(0)
    model, args, kwargs = MODELS[name]()
    counter = CompileCounter(backend)
    compiled = dynamo.compile(model, backend=counter)
    with torch.no_grad():
        eager = lambda: model(*args, **kwargs)  # noqa: E731
        fast = lambda: compiled(*args, **kwargs)  # noqa: E731
        eager()
        first = seconds(fast)
        if name == "branch":
            compiled(*args[::-1])
        fast()
        steady = seconds(fast)
        times: list[tuple[float, float]] = []
        start = time.perf_counter()
        while len(times) < 5 or time.perf_counter() - start < budget:
            times.append((seconds(eager), seconds(fast)))
        slow, quick = (statistics.median(column) for column in zip(*times, strict=True))
        reference = copy.deepcopy(model).double() if isinstance(model, torch.nn.Module) else model
        want = reference(*map(double, args), **{k: double(v) for k, v in kwargs.items()})
        return dict(
            name=name,
            graphs=counter.frame_count,
            ops=counter.op_count,
            kernels=metrics.snapshot()["kernels"],
            breaks=dict(dynamo.counters["graph_break"]),
            not_compiled=dict(dynamo.counters["not_compiled"]),
            compile=first - steady,
            eager=1e3 * slow,
            ms=1e3 * quick,
            error=error(fast(), want),
            eager_error=error(eager(), want),
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="inductor")
    parser.add_argument("--budget", type=float, default=3.0, help="seconds of timing per program")
    parser.add_argument("--only", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        print(json.dumps(measure(options.only, options.backend, options.budget)))
        return 0
    print(
        f"{'program':18}{'graphs':>7}{'breaks':>7}{'ops':>6}{'kernels':>8}"
        f"{'cold s':>8}{'warm s':>8}{'eager ms':>10}"
        f"{'ms':>10}{'speedup':>9}{'error':>10}{'eager':>10}"
    )
    reasons: dict[str, Any] = {}
    wrong = 0
    for name in MODELS:
        with tempfile.TemporaryDirectory() as cache:
            runs = []
            for _ in range(2):
                command = [
                    sys.executable,
                    "-m",
                    "examples.demo",
                    "--only",
                    name,
                    "--backend",
                    options.backend,
                    "--budget",
                    str(options.budget),
                ]
                done = subprocess.run(
                    command,
                    env=dict(os.environ, DYNAMO_CACHE_DIR=cache, HF_HUB_OFFLINE="1"),
                    stdout=subprocess.PIPE,
                    text=True,
                )
                if done.returncode:
                    return done.returncode
                runs.append(json.loads(done.stdout.splitlines()[-1]))
        cold, warm = runs
        reasons[name] = cold["breaks"] | {
            f"not compiled: {why}": count for why, count in cold["not_compiled"].items()
        }
        correct = cold["error"] <= max(1e-4, 3 * cold["eager_error"])
        wrong += not correct or bool(cold["not_compiled"])
        print(
            f"{name:18}{cold['graphs']:7}{sum(cold['breaks'].values()):7}{cold['ops']:6}{cold['kernels']:8}"
            f"{cold['compile']:8.2f}{warm['compile']:8.2f}{cold['eager']:10.3f}{cold['ms']:10.3f}"
            f"{cold['eager'] / cold['ms']:8.2f}x"
            f"{cold['error']:10.1e}{cold['eager_error']:10.1e}{'' if correct else '  WRONG'}",
            flush=True,
        )
    for name, breaks in reasons.items():
        for reason, count in breaks.items():
            print(f"{name}: {count} x {reason}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
