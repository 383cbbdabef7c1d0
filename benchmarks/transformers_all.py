"""All model types of transformers that a small configuration builds: right, graphs, seconds, speed.

    python benchmarks/transformers_all.py [NAME ...] [--offset 0] [--stride 1] [--count N]
        [--seconds 1500] [--each 180] [--processes N] [--threads 1] [--device cuda]
        [--dtype float32] [--backend inductor] [--training] [--no-peer] [--out FILE]

Each model runs in a process of its own, as eager, as `dynamo.compile` and as `torch.compile`; the
caches of files are empty at first. Errors are distances to eager in float64: of the results, and
with --training of the gradients. Ours may be four times eager's (or 2e-5; more in half
precision). Where eager in float64 fails or is far away (a choice by top-k, say, depends on the last
bits; a mask is filled with the least float32), they are distances to eager itself. Where ours is
more, the compiled float64 model decides: `rounding` says that it agrees with eager's, `WRONG` that
it does not, `differs` that eager has no float64 result. Where ours fails, eager runs once more with
`torch.compiler.is_compiling()` true, which models ask for other ways to the same result: `raises`
says that this fails with the same words, so that the model has the fault.
Graphs are counted with a backend that runs the graph; seconds are those of the first call, on a
machine that is busy with the other processes; milliseconds are of later calls, in turns with eager.
The table ends with the first lines of all failures.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import queue
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1]))

import dynamo  # noqa: E402
from benchmarks.small_models import Arguments, CannotBuild, build, names, tensors_in  # noqa: E402
from benchmarks.transformers_rows import Row, close, lines_of, reasons_of, report  # noqa: E402

RESULT = "RESULT "  # how a process begins the lines that are a row
ROUNDS = 5
# What is allowed in any case; from where on eager's error says nothing about what ours may be.
LIMITS = {"float32": (2e-5, 1e-3), "float16": (2e-3, 5e-2), "bfloat16": (1.5e-2, 0.2)}
Step = Callable[[], list[torch.Tensor]]
Compile = Callable[..., Any]


# -- one model, in a process of its own -----------------------------------------------------------


def inference(model: nn.Module, call: Callable[..., Any], arguments: Arguments) -> Step:
    def step() -> list[torch.Tensor]:
        torch.manual_seed(1)
        with torch.no_grad():
            return tensors_in(call(**arguments))

    return step


def training(model: nn.Module, call: Callable[..., Any], arguments: Arguments) -> Step:
    """Gradients of a bounded function of all results, to all parameters."""

    def step() -> list[torch.Tensor]:
        torch.manual_seed(1)
        model.zero_grad(set_to_none=True)
        parts = [t for t in tensors_in(call(**arguments)) if t.requires_grad]
        torch.stack([t.tanh().square().mean() for t in parts]).sum().backward()
        zero = torch.zeros(())
        return [zero if p.grad is None else p.grad for p in model.parameters()]

    return step


def distance(found: list[torch.Tensor], exact: list[torch.Tensor]) -> float:
    """The worst |x - x64| of a result over its greatest |x64|; inf where sizes or kinds differ."""
    if len(found) != len(exact):
        return float("inf")
    return max((distance_of(*pair) for pair in zip(found, exact, strict=True)), default=0.0)


def distance_of(found: torch.Tensor, exact: torch.Tensor) -> float:
    if found.shape != exact.shape or found.is_floating_point() != exact.is_floating_point():
        return float("inf")
    found, exact = found.detach().cpu().double(), exact.detach().cpu().double()
    good = exact.isfinite()
    if not torch.equal(good, found.isfinite()):
        return float("inf")
    if not good.any():
        return 0.0
    return float((found - exact)[good].abs().max() / exact[good].abs().max().clamp(min=1e-6))


def joined(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Gradients as one tensor: small ones are compared with the greatest of all."""
    return [torch.cat([t.detach().reshape(-1).cpu() for t in tensors])] if tensors else []


MAKERS = {"eval": inference, "train": training}
GATHER: dict[str, Callable[..., Any]] = {"eval": list, "train": joined}


def in_dtype(
    model: nn.Module, arguments: Arguments, dtype: torch.dtype
) -> tuple[nn.Module, Arguments]:
    """A model and its arguments, what is of float32 cast."""
    if dtype is torch.float32:
        return model, arguments
    wide = torch.float32
    cast = {key: t.to(dtype) if t.dtype is wide else t for key, t in arguments.items()}
    return model.to(dtype), cast


def exactly(arguments: Arguments) -> Arguments:
    return {key: t.double() if t.is_floating_point() else t for key, t in arguments.items()}


def forget(compile_with: Compile) -> None:
    dynamo.reset() if compile_with is dynamo.compile else torch._dynamo.reset()


def as_compiled(step: Step) -> list[torch.Tensor]:
    """Eager's results where the model is told that it is being compiled."""
    with mock.patch.object(torch.compiler, "_is_compiling_flag", True):
        assert torch.compiler.is_compiling()
        return step()


def timed(step: Step, device: str) -> tuple[list[torch.Tensor], float]:
    start = time.perf_counter()
    result = step()
    if device != "cpu":
        torch.cuda.synchronize()
    return result, time.perf_counter() - start


class Measurement:
    """What is known of one model; every step adds to the row, which is printed after each."""

    def __init__(self, name: str, options: argparse.Namespace) -> None:
        self.options = options
        allowed, self.far = LIMITS[options.dtype]
        self.row: Row = {"name": name, "allowed": allowed}
        model, arguments = build(name, options.device)
        self.model, self.arguments = in_dtype(model, arguments, getattr(torch, options.dtype))
        self.exact = copy.deepcopy(self.model).double(), exactly(self.arguments)
        self.compilers: dict[str, Compile] = {"ours": dynamo.compile}
        if not options.no_peer:
            self.compilers["peer"] = torch.compile
        self.references: dict[str, list[torch.Tensor]] = {}
        self.exact_results: dict[str, list[torch.Tensor]] = {}

    def show(self) -> None:
        print(RESULT + json.dumps(self.row), flush=True)

    def run(self) -> None:
        """Ours first: the peer may be cut off."""
        for what in ("eval", "train") if self.options.training else ("eval",):
            self.refer(what)
        for kind, compile_with in self.compilers.items():
            self.row[f"{kind}_graphs"] = self.graphs(compile_with)
            for what in self.references:
                self.compare(kind, what)
                self.show()
        for what in self.references:
            self.refer_compiling(what)
        self.row["done"] = True
        self.show()

    def step(self, kind: str, what: str, exact: bool = False) -> Step:
        model, arguments = self.exact if exact else (self.model, self.arguments)
        call: Callable[..., Any] = model
        if kind in self.compilers:
            backend = {"backend": self.options.backend} if kind == "ours" else {}
            call = self.compilers[kind](model, **backend)
        return MAKERS[what](model, call, arguments)

    def attempt(self, key: str, action: Callable[[], Any]) -> Any:
        """The result of an action; what it raises is noted in the row."""
        try:
            return action()
        except Exception as error:
            lines = f"{type(error).__name__}: {error}".strip().splitlines()
            self.row[f"{key}_fails"] = lines[0][:300]
            traceback.print_exc()
            return None

    def refer(self, what: str) -> None:
        """What eager says, in float64 if it can; without it there is nothing to compare."""
        found = self.attempt(f"{what}_eager", self.step("eager", what))
        if found is None:
            return
        exact = self.attempt(f"{what}_exact", self.step("eager", what, exact=True))
        found = self.references[what] = GATHER[what](found)
        self.row[f"{what}_eager_error"] = 0.0
        if exact is not None:
            exact = self.exact_results[what] = GATHER[what](exact)
            error = distance(found, exact)
            if error <= self.far:
                self.references[what] = exact
                self.row[f"{what}_eager_error"] = error

    def refer_compiling(self, what: str) -> None:
        """What eager says where the model is told that it is being compiled, if ours fails."""
        if f"{what}_ours_fails" in self.row:
            step = self.step("eager", what)
            self.attempt(f"{what}_compiling", lambda: as_compiled(step))

    def graphs(self, compile_with: Compile) -> int:
        count = 0

        def backend(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Any:
            nonlocal count
            count += 1
            return gm.forward

        step = inference(self.model, compile_with(self.model, backend=backend), self.arguments)
        done = self.attempt("graphs", step)
        forget(compile_with)
        return -1 if done is None else count

    def compare(self, kind: str, what: str) -> None:
        """Error, seconds and milliseconds of one kind of step."""
        row, key, device = self.row, f"{what}_{kind}", self.options.device
        eager, step = self.step("eager", what), self.step(kind, what)
        first = self.attempt(key, lambda: timed(step, device))
        second = self.attempt(key, step)
        if first is not None and second is not None:
            row[f"{key}_seconds"] = first[1]
            found = [GATHER[what](one) for one in (first[0], second)]
            row[f"{key}_error"] = max(distance(one, self.references[what]) for one in found)
            row[f"{what}_eager_ms"], row[f"{key}_ms"] = turns((eager, step), device)
            if kind == "ours" and dynamo.counters["not_compiled"]:
                row[f"{what}_not_compiled"] = dict(dynamo.counters["not_compiled"])
            if kind == "ours" and not close(row, what) and what in self.exact_results:
                dynamo.reset()
                again = self.attempt(f"{what}_float64", self.step("ours", what, exact=True))
                again = GATHER[what](again or [])
                row[f"{what}_float64_error"] = distance(again, self.exact_results[what])
        forget(self.compilers[kind])


def turns(steps: Sequence[Step], device: str) -> list[float]:
    times = [[timed(step, device)[1] * 1000 for step in steps] for _ in range(ROUNDS)]
    return [statistics.median(values) for values in zip(*times, strict=True)]


# -- many models, in processes --------------------------------------------------------------------


CACHES = ("DYNAMO_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")


def in_a_process(name: str, given: list[str], limit: float, caches: str) -> Row:
    command = [sys.executable, "-W", "ignore", __file__, "--worker", name, *given]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {key: f"{caches}/{key}" for key in CACHES},
        start_new_session=True,
    )
    try:
        text, said = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # with the compilers it started
        text, said = process.communicate()
    rows = [line.removeprefix(RESULT) for line in text.splitlines() if line.startswith(RESULT)]
    row: Row = json.loads(rows[-1]) if rows else {"name": name}
    if "skip" not in row and not row.get("done"):
        last = (said.strip().splitlines() or [""])[-1][:200]
        killed = process.returncode == -signal.SIGKILL
        row["crash"] = f"cut off after {limit:.0f} s" if killed else last
    return row


def run_all(options: argparse.Namespace, given: list[str], caches: str) -> list[Row]:
    wanted = options.names or names()[options.offset :: options.stride][: options.count]
    end = time.monotonic() + options.seconds
    jobs: queue.Queue[str] = queue.Queue()
    for name in wanted:
        jobs.put(name)
    rows: list[Row] = []

    def work() -> None:
        while (left := end - time.monotonic()) > 5:
            try:
                name = jobs.get_nowait()
            except queue.Empty:
                return
            row = in_a_process(name, given, min(options.each, left), caches)
            rows.append(row)
            for line in (*lines_of(row), *reasons_of(row)):
                print(line, flush=True)

    threads = [threading.Thread(target=work) for _ in range(options.processes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(f"{len(rows)} of {len(wanted)} types tried")
    return rows


def worker(options: argparse.Namespace) -> None:
    torch.set_num_threads(options.threads)
    torch.backends.cudnn.allow_tf32 = False
    try:
        Measurement(options.worker, options).run()
    except CannotBuild as error:
        print(RESULT + json.dumps({"name": options.worker, "skip": str(error)}))


def main() -> None:
    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=style)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--offset", type=int, default=0, help="of the first, by the alphabet")
    parser.add_argument("--stride", type=int, default=1)
    parser.add_argument("--count", type=int, default=None)
    parser.add_argument("--seconds", type=float, default=1500.0, help="for all")
    parser.add_argument("--each", type=float, default=180.0, help="seconds for one")
    parser.add_argument("--processes", type=int, default=max(1, (os.cpu_count() or 2) // 2))
    parser.add_argument("--threads", type=int, default=1, help="of torch, in each process")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", choices=LIMITS)
    parser.add_argument("--backend", default="inductor", help="of dynamo.compile")
    parser.add_argument("--training", action="store_true", help="gradients, too")
    parser.add_argument("--no-peer", action="store_true", help="without torch.compile")
    parser.add_argument("--out", default="", help="a file for the rows, as JSON")
    parser.add_argument("--worker", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options)
        return
    given = ["--device", options.device, "--backend", options.backend]
    given += ["--threads", str(options.threads), "--dtype", options.dtype]
    given += ["--training"] * options.training + ["--no-peer"] * options.no_peer
    with tempfile.TemporaryDirectory() as caches:
        rows = run_all(options, given, caches)
    report(rows)
    if options.out:
        Path(options.out).write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
