"""Image models of timm on a GPU: right against float64, graphs, seconds to compile, speed.

    python benchmarks/timm_gpu.py [--only resnet50 ...] [--batch 32] [--no-peer]
                                  [--what eval train] [--mode NAME] [--out FILE] [--profile 12]

Each model runs in a process of its own, for inference and for one training step (forward, loss,
backward): as eager, as `dynamo.compile` (default backend) and as `torch.compile`. All compile side
by side, then one after the other is timed: seconds to compile are those of a busy machine. An
error is |x - x64| / |x64| over the output (inference) or all gradients (training), x64 from eager
in float64; ours must not be more than three times eager's. Graphs are counted with a backend that
runs the graph. With --profile the kernels that take most time are listed.
"""

from __future__ import annotations

import argparse
import copy
import fcntl
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1]))

import dynamo  # noqa: E402
from benchmarks.gpu import norm_distance, per_call, training  # noqa: E402
from dynamo.testing import assert_compiled  # noqa: E402

MODELS = {
    "resnet50": "resnet50", "vit_base": "vit_base_patch16_224", "convnext_tiny": "convnext_tiny",
    "efficientnet_b0": "efficientnet_b0", "mobilenetv3": "mobilenetv3_large_100",
    "swin_tiny": "swin_tiny_patch4_window7_224", "deit_small": "deit_small_patch16_224",
    "regnet": "regnety_008", "densenet": "densenet121", "mixer": "mixer_b16_224",
    "beit": "beit_base_patch16_224", "cait": "cait_s24_224",
}  # fmt: skip
KINDS = ("eval", "train")
ROUNDS, CALLS, CHECKED = 5, 5, 4
LONGEST_WAIT = 90  # seconds for slower processes
Step = Callable[[torch.Tensor], Any]


@contextmanager
def alone(meeting: Path, name: str, processes: int) -> Iterator[None]:
    """All processes have compiled (or took too long), and no other one measures meanwhile."""
    (meeting / name).touch()
    end = time.monotonic() + LONGEST_WAIT
    while len(list(meeting.iterdir())) < processes and time.monotonic() < end:
        time.sleep(0.1)
    with open(meeting.with_suffix(".lock"), "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def inference(call: Step) -> Step:
    def step(x: torch.Tensor) -> list[torch.Tensor]:
        with torch.no_grad():
            return [call(x)]

    return step


def graphs_of(compile_with: Callable[..., Step], model: nn.Module, x: torch.Tensor) -> int:
    count = 0

    def backend(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Any:
        nonlocal count
        count += 1
        return gm.forward

    with torch.no_grad():
        compile_with(model, backend=backend)(x)
    return count


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """One row: a model for inference and for training."""
    import timm

    torch.manual_seed(0)
    base = timm.create_model(MODELS[name]).cuda()
    x = torch.randn(options.batch, 3, 224, 224, device="cuda")
    compilers = {"ours": dynamo.compile} | ({} if options.no_peer else {"peer": torch.compile})
    row: dict[str, Any] = {"name": name}
    for kind, compile_with in compilers.items():
        row[f"{kind}_graphs"] = graphs_of(compile_with, copy.deepcopy(base).eval(), x[:CHECKED])
        dynamo.reset()
    prepared: dict[str, dict[str, Step]] = {}
    for what in options.what:
        steps: dict[str, Step] = {}
        for kind in ("exact", "eager", *compilers):
            model = copy.deepcopy(base).train(what == "train")
            call: Step = model.double() if kind == "exact" else model
            if kind in compilers:
                extra = {"backend": "inductor"} if kind == "ours" else {}
                call = compilers[kind](model, dynamic=False, mode=options.mode, **extra)
            steps[kind] = inference(call) if what == "eval" else training(call, model)
        row[what] = check_steps(steps, x)
        prepared[what] = steps
    assert_compiled()
    with alone(Path(options.meeting), name, options.processes):
        for what, steps in prepared.items():
            row[what] |= time_steps(steps, x)
            if options.profile:
                row[what]["profile"] = profile(steps, x, options.profile)
    return row


def check_steps(steps: dict[str, Step], x: torch.Tensor) -> dict[str, float]:
    """Errors, and seconds of the first calls."""
    found: dict[str, float] = {}
    exact = steps.pop("exact")(x.double())
    for kind, step in steps.items():
        torch.cuda.synchronize()
        start = time.perf_counter()
        result = step(x)
        torch.cuda.synchronize()
        found[f"{kind}_seconds"] = time.perf_counter() - start
        found[f"{kind}_error"] = norm_distance(result, exact)
        del result
    return found


def time_steps(steps: dict[str, Step], x: torch.Tensor) -> dict[str, float]:
    times: dict[str, list[float]] = {kind: [] for kind in steps}
    for round_ in range(ROUNDS + 1):
        for kind, step in steps.items():
            took = per_call(step, (x,), CALLS) / 1000
            if round_:
                times[kind].append(took)
    return {f"{kind}_ms": statistics.median(values) for kind, values in times.items()}


def profile(steps: dict[str, Step], x: torch.Tensor, count: int) -> list[str]:
    """The kernels that take most of a call's time, in each way to run it."""
    lines = []
    for kind, step in steps.items():
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
            for _ in range(CALLS):
                step(x)
            torch.cuda.synchronize()
        events = sorted(found.key_averages(), key=lambda e: -e.self_device_time_total)
        total = sum(event.self_device_time_total for event in events) / CALLS
        launches = sum(event.count for event in events) / CALLS
        lines.append(f"{kind}: {total:.0f} us in {launches:.0f} kernels")
        for event in events[:count]:
            took = event.self_device_time_total / CALLS
            lines.append(f"  {took:8.1f} us {event.count / CALLS:5.0f} x {event.key[:90]}")
    return lines


HEAD = (
    f"{'model':16s} {'':5s} {'':6s} {'graphs':>7s} {'err eager':>9s} {'err ours':>9s} "
    f"{'ms eager':>9s} {'ms ours':>9s} {'ms peer':>9s} {'/eager':>6s} {'/peer':>6s} "
    f"{'s ours':>7s} {'s peer':>7s}"
)


def lines_of(row: dict[str, Any]) -> Iterator[str]:
    for what in (what for what in KINDS if what in row):
        part = row[what]
        nan = float("nan")
        good = part["ours_error"] <= 3 * part["eager_error"] + 1e-6
        peer = part.get("peer_ms", nan)
        yield (
            f"{row['name']:16s} {what:5s} {'ok' if good else 'WRONG':6s} "
            f"{row['ours_graphs']:3d}/{row.get('peer_graphs', -1):3d} "
            f"{part['eager_error']:9.1e} {part['ours_error']:9.1e} "
            f"{part['eager_ms']:9.2f} {part['ours_ms']:9.2f} {peer:9.2f} "
            f"{part['eager_ms'] / part['ours_ms']:6.2f} {peer / part['ours_ms']:6.2f} "
            f"{part['ours_seconds']:7.1f} {part.get('peer_seconds', nan):7.1f}"
        )


def in_a_process(name: str, given: list[str]) -> dict[str, Any] | None:
    command = [sys.executable, __file__, "--worker", name, *given]
    done = subprocess.run(command, capture_output=True, text=True)
    last = (done.stdout.splitlines() or [""])[-1]
    if done.returncode == 0 and last.startswith("{"):
        row: dict[str, Any] = json.loads(last)
        print(*lines_of(row), sep="\n", flush=True)
        for what in (what for what in KINDS if what in row):
            print(*row[what].get("profile", ()), sep="\n", flush=True)
        if os.environ.get("DYNAMO_LOGS"):
            print(done.stderr[-4000:], flush=True)
        return row
    print(f"{name} FAILED\n{done.stderr[-1500:]}", flush=True)
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=list(MODELS))
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--no-peer", action="store_true")
    parser.add_argument("--what", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--mode", default=None)
    parser.add_argument("--out", default="")
    parser.add_argument("--profile", type=int, default=0)
    parser.add_argument("--worker", default="")
    parser.add_argument("--meeting", default="")
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    if options.worker:
        try:
            print(json.dumps(measure(options.worker, options)))
        except Exception:
            traceback.print_exc()
            (Path(options.meeting) / options.worker).touch()
            raise SystemExit(1) from None
        return
    given = ["--batch", str(options.batch), "--what", *options.what]
    given += ["--no-peer"] if options.no_peer else []
    given += ["--mode", options.mode] if options.mode else []
    given += ["--profile", str(options.profile)]
    names = options.only or list(MODELS)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(len(names)) as pool:
        meeting = Path(folder) / "ready"
        meeting.mkdir()
        given += ["--meeting", str(meeting), "--processes", str(len(names))]
        rows = list(pool.map(lambda name: in_a_process(name, given), names))
    made = [row for row in rows if row is not None]
    where = f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
    print(f"\n{where}, batch {options.batch}\n{HEAD}")
    for row in made:
        print(*lines_of(row), sep="\n")
    if options.out:
        Path(options.out).write_text(json.dumps(made))


if __name__ == "__main__":
    main()
