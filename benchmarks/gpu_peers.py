"""Ours beside torch.compile on the models of a suite, one process per model and way, on a GPU.

    python benchmarks/gpu_peers.py SUITES.py [--only hf:BertForMaskedLM ...] [--suites hf timm]
        [--ways inference:default training:default ...] [--size large] [--processes 16]
        [--no-peer] [--write FILE] [--seconds 500]

SUITES.py has `SUITES` (suite -> names) and `build(job) -> (model, args, kwargs, mutates)`.
Inference is float16 under `no_grad`, training (forward, loss, backward) bfloat16 without dropout.
The processes of a batch compile side by side, spread over the GPUs; when all are done, they are
timed one after the other on each GPU, which nothing else uses then: eager, ours and torch.compile
in turns, medians. A result is right within
`TOLERANCE` of eager, or where it is at most three times as far from float64 as eager is. "GPU" is
the time in which kernels run; MiB is the peak of a step with the parameters.
"""

from __future__ import annotations

import argparse
import copy
import fcntl
import importlib.util
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

import dynamo  # noqa: E402

TOLERANCE = {"inference": 1e-2, "training": 6e-2}
DTYPES = {"inference": "float16", "training": "bfloat16"}
MODES = ("default", "reduce-overhead", "max-autotune")
ROUNDS, LEAST_SECONDS = 9, 0.02
Step = Callable[[], Any]
Row = dict[str, Any]


# -- one model in one way -------------------------------------------------------------------------


def tensors_of(value: Any) -> list[torch.Tensor]:
    value = dict(value) if hasattr(value, "items") else value
    leaves = torch.utils._pytree.tree_leaves(value)
    return [x for x in leaves if isinstance(x, torch.Tensor) and x.is_floating_point()]


class Case:
    """A model, its inputs, and how one step of it runs."""

    def __init__(self, suites: Any, name: str, way: str, size: str) -> None:
        self.name, self.way = name, way
        self.what, _, self.mode = way.partition(":")
        suite, _, model = name.partition(":")
        torch.manual_seed(0)
        self.model, self.args, self.kwargs, _ = suites.build({
            "suite": suite, "model": model, "size": size, "mode": self.what,
            "device": "cuda", "dtype": DTYPES[self.what],
        })  # fmt: skip
        self.probes: list[torch.Tensor] | None = None

    def step(self, call: Callable[..., Any], model: Any = None, wide: bool = False) -> list[Any]:
        """The results of inference, or results and gradients of a step."""
        args, kwargs = self.args, self.kwargs
        if wide:
            args, kwargs = torch.utils._pytree.tree_map(in_float64, (args, kwargs))
        if self.what == "inference":
            with torch.no_grad():
                return tensors_of(call(*args, **kwargs))
        parameters = list((model or self.model).parameters())
        for parameter in parameters:
            parameter.grad = None
        result = call(*args, **kwargs)
        loss = getattr(result, "loss", None)
        found = [x for x in tensors_of(result) if x.requires_grad]
        if loss is not None:
            loss.sum().backward()
        else:
            if self.probes is None:
                self.probes = [torch.randn_like(x, requires_grad=False) for x in found]
            probes = [probe.to(x.dtype) for probe, x in zip(self.probes, found, strict=True)]
            torch.autograd.backward(found, probes)
        return [*found, *(p.grad for p in parameters if p.grad is not None)]

    def exact(self) -> list[torch.Tensor]:
        model = copy.deepcopy(self.model).double()
        return [x.detach().cpu() for x in self.step(model, model, wide=True)]


def in_float64(x: Any) -> Any:
    return x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x


def distance(found: list[torch.Tensor], other: list[torch.Tensor]) -> float:
    """The greatest difference over the greatest value, of the worst result."""
    if len(found) != len(other):
        return math.inf
    most = max((x.abs().max().item() for x in other if x.numel()), default=0.0)
    worst = 0.0
    for one, two in zip(found, other, strict=True):
        if not two.numel():
            continue
        two = two.double()
        gap = (one.detach().to(two.device).double() - two).abs().max().item()
        worst = max(worst, gap / max(two.abs().max().item(), 1e-4 * most, 1e-12))
        if gap != gap and not bool((two != two).any()):
            return math.inf
    return worst


def first_calls(case: Case, call: Callable[..., Any]) -> tuple[Step, Row]:
    """The step, and its seconds until the fourth call ended, errors apart."""

    def step() -> list[Any]:
        torch.compiler.cudagraph_mark_step_begin()
        return case.step(call)

    start = time.perf_counter()
    for _ in range(4):
        step()
        torch.cuda.synchronize()
    return step, {"seconds": time.perf_counter() - start}


def peak_of(step: Step, held: int) -> float:
    """The peak of a step in MiB, without the bytes that others hold."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - held) / 2**20


def prepare(case: Case, peer: bool) -> tuple[dict[str, Step], Row]:
    """The steps of each kind, compiled and compared."""
    row: Row = {"name": case.name, "way": case.way}
    steps: dict[str, Step] = {"eager": lambda: case.step(case.model)}
    want = [x.detach().clone() for x in steps["eager"]()]
    mode = None if case.mode == "default" else case.mode
    makers = {"ours": lambda: dynamo.compile(case.model, mode=mode)}
    if peer:
        makers["peer"] = lambda: torch.compile(case.model, mode=mode)
    case.model.zero_grad(set_to_none=True)
    base = torch.cuda.memory_allocated()
    row["eager"] = {"memory": peak_of(steps["eager"], base - bytes_of(case))}
    for kind, make in makers.items():
        case.model.zero_grad(set_to_none=True)
        torch._C._cuda_clearCublasWorkspaces()  # recording frees them, too
        held = torch.cuda.memory_allocated() - bytes_of(case)
        try:
            steps[kind], row[kind] = first_calls(case, make())
            row[kind]["memory"] = peak_of(steps[kind], held)
            row[kind]["error"] = distance(steps[kind](), want)
        except Exception as error:
            row[kind] = {"failed": f"{type(error).__name__}: {str(error)[:200]}"}
            steps.pop(kind, None)
            traceback.print_exc()
    row["left"] = {str(key): count for key, count in dynamo.counters["not_compiled"].items()}
    row["breaks"] = sum(dynamo.counters["graph_break"].values())
    if peer:
        row["peer_breaks"] = sum(torch._dynamo.utils.counters["graph_break"].values())
    if row["ours"].get("error", 0.0) > TOLERANCE[case.what]:
        exact = case.exact()
        row["eager"]["exact"] = distance(want, exact)
        for kind in makers:
            if kind in steps:
                row[kind]["exact"] = distance(steps[kind](), exact)
    return steps, row


def bytes_of(case: Case) -> int:
    """Bytes of the model and its inputs."""
    tensors = [*case.model.parameters(), *case.model.buffers()]
    tensors += tensors_of((case.args, case.kwargs))
    return sum(x.numel() * x.element_size() for x in tensors)


def timed(steps: dict[str, Step]) -> dict[str, float]:
    """Milliseconds of a step of each kind; they take turns."""
    calls = {}
    for kind, step in steps.items():
        step()
        torch.cuda.synchronize()
        start = time.perf_counter()
        step()
        torch.cuda.synchronize()
        calls[kind] = max(1, round(LEAST_SECONDS / max(time.perf_counter() - start, 1e-5)))
    times: dict[str, list[float]] = {kind: [] for kind in steps}
    for _ in range(ROUNDS):
        for kind, step in steps.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(calls[kind]):
                step()
            torch.cuda.synchronize()
            times[kind].append((time.perf_counter() - start) / calls[kind] * 1000)
    return {kind: statistics.median(found) for kind, found in times.items()}


def busy(step: Step, calls: int = 4) -> float:
    """Milliseconds of a step in which kernels run."""
    kinds = [torch.profiler.ProfilerActivity.CUDA]
    step()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=kinds) as profile:
        for _ in range(calls):
            step()
        torch.cuda.synchronize()
    return sum(e.self_device_time_total for e in profile.key_averages()) / 1000 / calls


def work(options: argparse.Namespace) -> None:
    """One process: compiles, says so, waits for its turn, is timed."""
    suites = load(options.file)
    name, way = options.worker.split("|")
    case = Case(suites, name, way, options.size)
    steps, row = prepare(case, not options.no_peer)
    folder = Path(options.folder)
    (folder / f"done-{options.number}").touch()
    while not (folder / "go").exists():
        time.sleep(0.05)
    with open(folder / f"lock-{options.gpu}", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        for kind, took in timed(steps).items():
            row[kind]["ms"] = took
        for kind, step in steps.items():
            row[kind]["busy"] = busy(step)
    print("ROW " + json.dumps(row), flush=True)


def load(path: str) -> Any:
    spec = importlib.util.spec_from_file_location("suites", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# -- all of them ----------------------------------------------------------------------------------


def run_batch(jobs: list[str], options: argparse.Namespace, until: float) -> list[Row]:
    """Compiles the jobs side by side, then lets them be timed one by one."""
    with tempfile.TemporaryDirectory() as folder:
        running = []
        for number, job in enumerate(jobs):
            command = [sys.executable, __file__, options.file, "--worker", job, "--folder", folder]
            gpu = str(number % options.gpus)
            command += ["--number", str(number), "--size", options.size, "--gpu", gpu]
            command += ["--no-peer"] * options.no_peer
            out = open(Path(folder) / f"out-{number}", "w")  # noqa: SIM115 (the process writes it)
            seen = os.environ | {"CUDA_VISIBLE_DEVICES": gpu}
            running.append(
                subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=seen)
            )
        ready = lambda n: (Path(folder) / f"done-{n}").exists()  # noqa: E731
        while time.monotonic() < until - 2.0 * len(jobs) / options.gpus:
            if all(p.poll() is not None or ready(n) for n, p in enumerate(running)):
                break
            time.sleep(0.1)
        for number, process in enumerate(running):
            if not ready(number):
                process.kill()
        (Path(folder) / "go").touch()
        rows = []
        for number, (job, process) in enumerate(zip(jobs, running, strict=True)):
            try:
                process.wait(max(1.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
            said = (Path(folder) / f"out-{number}").read_text()
            rows.append(row_of(job, said, process.returncode in (None, -signal.SIGKILL)))
            print(line_of(rows[-1]), flush=True)
            if rows[-1].get("left"):
                print(said[-4000:], flush=True)
    return rows


def row_of(job: str, text: str, was_stopped: bool) -> Row:
    for line in text.splitlines():
        if line.startswith("ROW "):
            return json.loads(line[4:])  # type: ignore[no-any-return]
    name, way = job.split("|")
    return {"name": name, "way": way, "failed": "out of time" if was_stopped else text[-600:]}


def is_right(row: Row) -> bool:
    ours, way = row["ours"], row["way"].partition(":")[0]
    if "failed" in ours or row["left"]:
        return False
    bound = TOLERANCE[way]
    return bool(
        ours["error"] <= bound
        or ours.get("exact", math.inf) <= 3 * row["eager"].get("exact", 0.0) + bound / 10
    )


def pair(row: Row, key: str, digits: int = 2) -> str:
    cells = [row.get(kind, {}).get(key) for kind in ("ours", "peer")]
    return " / ".join("-" if x is None else f"{x:.{digits}f}" for x in cells)


def ratio(row: Row, key: str) -> float | None:
    ours, peer = (row.get(kind, {}).get(key) for kind in ("ours", "peer"))
    return ours / peer if ours and peer else None


def line_of(row: Row) -> str:
    if "failed" in row:
        return f"| {row['name']} | {row['way']} | failed: {row['failed'][-300:]!r} |"
    good = "" if is_right(row) else f"WRONG {row['ours']} {row['eager']} {row['left']} "
    parts = [row["name"], pair(row, "ms")]
    parts += [f"{ratio(row, 'ms') or math.nan:.2f}"]
    eager, ours = row["eager"].get("ms"), row["ours"].get("ms")
    parts += [f"{eager / ours:.2f}" if eager and ours else "-"]
    parts += [pair(row, "busy"), f"{ratio(row, 'busy') or math.nan:.2f}", pair(row, "memory", 0)]
    breaks = f"{row['breaks']} breaks ({row.get('peer_breaks', '-')})" if row["breaks"] else ""
    parts += [pair(row, "seconds", 1), good + breaks]
    return f"| {' | '.join(parts)} |"


def mean(values: list[float | None]) -> str:
    found = [x for x in values if x and x > 0]
    return f"{math.exp(statistics.fmean(map(math.log, found))):.3f}" if found else "-"


def page_of(rows: list[Row]) -> str:
    lines = [f"{torch.cuda.get_device_name()}, torch {torch.__version__}", ""]
    for way in dict.fromkeys(row["way"] for row in rows):
        mine = [row for row in rows if row["way"] == way]
        what, _, mode = way.partition(":")
        lines += [f"### {what.capitalize()}, {mode}", ""]
        lines += ["| model | ms, ours / torch.compile | ratio | eager / ours | GPU ms | ratio | MiB"
                  " | s to compile | |", "|" + " --- |" * 9]  # fmt: skip
        lines += [line_of(row) for row in mine]
        for suite in dict.fromkeys(row["name"].partition(":")[0] for row in mine):
            group = [row for row in mine if row["name"].startswith(suite + ":")]
            means = [mean([ratio(row, key) for row in group])
                     for key in ("ms", "busy", "memory", "seconds")]  # fmt: skip
            lines += [f"| **{suite}, geometric mean** | | **{means[0]}** | | | **{means[1]}** |"
                      f" **{means[2]}** | **{means[3]}** | |"]  # fmt: skip
        lines += [""]
    bad = [row for row in rows if "failed" in row or not is_right(row)]
    slow = [f"{row['name']} {row['way']} {ratio(row, 'ms'):.2f}" for row in rows
            if "failed" not in row and (ratio(row, "ms") or 0) > 1.03]  # fmt: skip
    wrong = ", ".join(f"{row['name']} {row['way']}" for row in bad)
    lines += [f"{len(rows)} rows, {len(bad)} failed or wrong: {wrong}"]
    lines += [f"slower than torch.compile by more than 3 %: {', '.join(slow) or 'none'}", ""]
    return "\n".join(lines)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", help="SUITES.py")
    parser.add_argument("--only", nargs="+", default=[], metavar="SUITE:MODEL")
    parser.add_argument("--skip", nargs="+", default=[], metavar="SUITE:MODEL")
    parser.add_argument("--suites", nargs="+", default=["hf", "timm", "vision"])
    parser.add_argument("--ways", nargs="+", default=["inference:default", "training:default"])
    parser.add_argument("--size", default="large")
    parser.add_argument("--processes", type=int, default=16)
    parser.add_argument("--gpus", type=int, default=max(1, torch.cuda.device_count()))
    parser.add_argument("--seconds", type=float, default=500.0)
    parser.add_argument("--no-peer", action="store_true")
    parser.add_argument("--write", default="", help="a file for the rows as JSON, one a line")
    for hidden in ("--worker", "--folder", "--number", "--gpu"):
        parser.add_argument(hidden, default="", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    options = parsed()
    if options.worker:
        work(options)
        return 0
    until = time.monotonic() + options.seconds
    suites = load(options.file)
    names = options.only or [f"{s}:{n}" for s in options.suites for n in suites.SUITES[s]]
    names = [name for name in names if name not in options.skip]
    jobs = [f"{name}|{way}" for way in options.ways for name in names]
    rows: list[Row] = []
    for first in range(0, len(jobs), options.processes):
        if time.monotonic() < until - 20:
            rows += run_batch(jobs[first : first + options.processes], options, until)
            if options.write:
                Path(options.write).write_text("\n".join(map(json.dumps, rows)) + "\n")
    print(page_of(rows))
    return 1 if any("failed" in row or not is_right(row) for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
