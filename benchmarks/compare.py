"""Eager, ours and torch.compile on the demo's programs: steady state and seconds to compile.

    python benchmarks/compare.py [--backend inductor] [--programs branch ResNet50] [--budget 3]

Steady state: one process per program, calls of the three in turn, medians, so that a noisy machine
is noisy to all. Compile seconds: one fresh process with empty caches per program and compiler, in
turn; compiling and the first call minus a later call. Ends with the call overhead of `x + 1` on
16 floats.
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
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

import dynamo  # noqa: E402
from dynamo.testing import assert_compiled  # noqa: E402
from examples.models import MODELS  # noqa: E402

COMPILERS: dict[str, Callable[..., Any]] = {"dynamo": dynamo.compile, "torch": torch.compile}
OVERHEAD = "x+1 (16)"
BATCH = 1000  # calls per measurement of the tiny function


def program(name: str) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    if name == OVERHEAD:
        return (lambda x: x + 1), (torch.randn(16),), {}
    return MODELS[name]()


def seconds(call: Callable[[], Any], repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats


def steady(name: str, backend: str, budget: float) -> dict[str, float]:
    """Median milliseconds of eager and of each compiler, calls in turn."""
    model, args, kwargs = program(name)
    compiled = [compile(model, backend=backend) for compile in COMPILERS.values()]
    calls = [lambda f=f: f(*args, **kwargs) for f in (model, *compiled)]  # type: ignore[misc]
    repeats = BATCH if name == OVERHEAD else 1
    for call in calls * 3:
        call()
    rows: list[list[float]] = []
    start = time.perf_counter()
    while len(rows) < 7 or time.perf_counter() - start < budget:
        rows.append([seconds(call, repeats) for call in calls])
    assert_compiled()
    medians = [1e3 * statistics.median(column) for column in zip(*rows, strict=True)]
    return dict(zip(("eager", *COMPILERS), medians, strict=True))


def first_call(name: str, backend: str, compiler: str) -> dict[str, float]:
    """Seconds of compiling and the first call beyond a later call."""
    model, args, kwargs = program(name)
    model(*args, **kwargs)
    start = time.perf_counter()
    compiled = COMPILERS[compiler](model, backend=backend)
    compiled(*args, **kwargs)
    first = time.perf_counter() - start
    compiled(*args, **kwargs)
    return {compiler: first - seconds(lambda: compiled(*args, **kwargs), 1)}


def child(*arguments: str) -> dict[str, float]:
    """A measurement in a fresh process with empty caches; a failure ends the benchmark."""
    with tempfile.TemporaryDirectory() as cache:
        env = dict(
            os.environ,
            DYNAMO_CACHE_DIR=f"{cache}/dynamo",
            HF_HUB_OFFLINE="1",
            TORCHINDUCTOR_CACHE_DIR=f"{cache}/torch",
        )
        command = [sys.executable, __file__, *arguments]
        done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def main() -> None:
    names = [*MODELS, OVERHEAD]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--backend", default="inductor")
    parser.add_argument("--programs", nargs="*", choices=names, default=names)
    parser.add_argument("--budget", type=float, default=3.0, help="seconds of timing per program")
    parser.add_argument("--one", nargs=2, metavar=("PROGRAM", "WHAT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.manual_seed(0)
    if options.one:
        name, what = options.one
        with torch.no_grad():
            if what == "steady":
                result = steady(name, options.backend, options.budget)
            else:
                result = first_call(name, options.backend, what)
        print(json.dumps(result))
        return
    print(
        f"{'program':18}{'eager ms':>10}{'ours ms':>10}{'torch ms':>10}"
        f"{'vs eager':>9}{'vs torch':>9}"
        f"{'ours s':>8}{'torch s':>8}{'ratio':>7}"
    )
    common = ["--backend", options.backend, "--budget", str(options.budget)]
    for name in options.programs:
        times = child(*common, "--one", name, "steady")
        cold: dict[str, float] = {}
        for compiler in COMPILERS:
            cold |= child(*common, "--one", name, compiler)
        eager, ours, theirs = times["eager"], times["dynamo"], times["torch"]
        print(
            f"{name:18}{eager:10.4f}{ours:10.4f}{theirs:10.4f}"
            f"{eager / ours:8.2f}x{theirs / ours:8.2f}x"
            f"{cold['dynamo']:8.2f}{cold['torch']:8.2f}{cold['dynamo'] / cold['torch']:7.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
