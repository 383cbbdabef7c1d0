"""Inference of three transformers on a CPU, where MKL is fast and where it is not.

    python benchmarks/gemms_cpu.py [--threads 4] [--seconds 5] [--no-torch] [NAME ...]

MKL takes its slow path on processors of other makers; MKL_ENABLE_INSTRUCTIONS=AVX2 stands in for
that on an Intel one. For each model and setting one process calls eager, ours and ours with frozen
weights in turn; one more (stand-in only) eager, torch.compile and that with freezing. Milliseconds
of eager are medians; speedups are medians over eager's, then fastest call over eager's fastest.
Ends with what computes each class of GEMMs (m, n, k up to a power of two, bias, weight stored as
[k, n], frozen).
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

sys.path.insert(0, str(Path(__file__).parents[1]))

NAMES = ("BertForMaskedLM", "GPT2LMHeadModel", "LlamaForCausalLM")
STAND_IN = {"MKL_ENABLE_INSTRUCTIONS": "AVX2"}


def seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def measure(name: str, threads: int, budget: float, by_torch: bool) -> None:
    """Compile twice and time with eager in turn; prints JSON."""
    import torch

    from examples.models import MODELS

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model, args, kwargs = MODELS[name]()
    if by_torch:
        compile = torch.compile
    else:
        import dynamo
        from dynamo.testing import assert_compiled

        compile = dynamo.compile
    with torch.no_grad():
        # Compiled anew: an entry of the first would serve both.
        twin, _, _ = MODELS[name]()
        twin.load_state_dict(model.state_dict())
        functions = [model, compile(model), compile(twin, options={"freezing": True})]
        calls = [lambda f=f: f(*args, **kwargs) for f in functions]
        cold = [seconds(call) for call in calls]
        for call in calls * 2:
            call()
        times: list[list[float]] = [[] for _ in calls]
        start = time.perf_counter()
        while len(times[0]) < 5 or time.perf_counter() - start < budget:
            for column, call in zip(times, calls, strict=True):
                column.append(1e3 * seconds(call))
    if not by_torch:
        assert_compiled()
    middle, best = ([f(column) for column in times] for f in (statistics.median, min))
    print(json.dumps({"cold": cold, "middle": middle, "best": best}))


def row(options: argparse.Namespace, name: str, label: str, more: dict[str, str]) -> None:
    """One process; prints one line."""
    command = [sys.executable, "-W", "ignore", __file__, "--one", name]
    command += ["--threads", str(options.threads), "--seconds", str(options.seconds)]
    command += ["--by-torch"] if label == "torch.compile" else []
    environment = dict(os.environ, HF_HUB_OFFLINE="1", **more)
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        print(f"{name:18}{label:15}failed", flush=True)
        return
    found = json.loads(done.stdout.splitlines()[-1])
    middle, best, cold = found["middle"], found["best"], found["cold"]
    ratios = [times[0] / times[number] for number in (1, 2) for times in (middle, best)]
    columns = [f"{ratio:9.2f}" for ratio in ratios]
    slow = "AVX2" if more.get("MKL_ENABLE_INSTRUCTIONS") else "-"
    print(f"{name:18}{label:15}{slow:6}{middle[0]:9.2f}{''.join(columns)}"
          f"{cold[1]:8.1f}{cold[2]:8.1f}", flush=True)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--no-torch", action="store_true")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--by-torch", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        measure(options.one, options.threads, options.seconds, options.by_torch)
        return 0
    print(f"{'model':18}{'compiler':15}{'MKL':6}{'eager ms':>9}{'speedup':>9}{'fastest':>9}"
          f"{'frozen':>9}{'fastest':>9}{'cold s':>8}{'frozen':>8}", flush=True)  # fmt: skip
    for more in (STAND_IN, {}):
        with tempfile.TemporaryDirectory() as cache:
            folders = dict(DYNAMO_CACHE_DIR=cache, TORCHINDUCTOR_CACHE_DIR=f"{cache}/torch")
            for name in options.names or NAMES:
                row(options, name, "dynamo", folders | more)
                if more and not options.no_torch:
                    row(options, name, "torch.compile", folders | more)
            for file in Path(cache).glob("gemms/*/*.json"):
                print(f"gemms, MKL {'AVX2' if more else '-'}: {file.read_text()}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
