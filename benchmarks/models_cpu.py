"""The demo's models on the CPU: eager, ours and torch.compile in turn, in one process each.

    python benchmarks/models_cpu.py [--threads 2] [--seconds 10] [NAME ...]

Cold seconds are those of the first call (the caches are folders of this run). Milliseconds are
medians of calls in turn; the second speedup is by the fastest calls, which a busy machine disturbs
least.
"""

from __future__ import annotations

import argparse
import copy
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))


def seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def measure(name: str, threads: int, budget: float) -> None:
    """Compile with both and time the three in turn; prints one line."""
    import torch

    import dynamo
    from dynamo.testing import assert_compiled
    from examples.models import MODELS

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model, args, kwargs = MODELS[name]()
    other = copy.deepcopy(model)
    with torch.no_grad():
        ours, theirs = dynamo.compile(model), torch.compile(other)
        calls = [lambda f=f: f(*args, **kwargs) for f in (model, ours, theirs)]
        cold = [seconds(call) for call in calls]
        times: list[list[float]] = [[] for _ in calls]
        start = time.perf_counter()
        while len(times[0]) < 5 or time.perf_counter() - start < budget:
            for column, call in zip(times, calls, strict=True):
                column.append(1e3 * seconds(call))
    assert_compiled()
    middle = [statistics.median(column) for column in times[:]]
    best = [min(column) for column in times]
    print(
        f"{name:20}{cold[1]:8.1f}{cold[2]:8.1f}{middle[0]:10.2f}{middle[1]:10.2f}{middle[2]:10.2f}"
        f"{middle[0] / middle[1]:8.2f}{middle[0] / middle[2]:8.2f}"
        f"{best[0] / best[1]:8.2f}{best[0] / best[2]:8.2f}",
        flush=True,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        measure(options.one, options.threads, options.seconds)
        return 0
    from examples.models import MODELS

    print(f"{'model':20}{'cold s':>8}{'torch':>8}{'eager ms':>10}{'ours':>10}{'torch':>10}"
          f"{'speedup':>8}{'torch':>8}{'fastest':>8}{'torch':>8}")  # fmt: skip
    for name in options.names or [name for name in MODELS if name != "branch"]:
        with tempfile.TemporaryDirectory() as cache:
            environment = dict(
                os.environ, DYNAMO_CACHE_DIR=cache, TORCHINDUCTOR_CACHE_DIR=f"{cache}/torch"
            )
            command = [sys.executable, "-W", "ignore", __file__, "--one", name]
            command += ["--threads", str(options.threads), "--seconds", str(options.seconds)]
            subprocess.run(command, env=environment, check=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
