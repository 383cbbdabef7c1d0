"""Table 3 (the PyTorch 2 paper, 6.3): speed over eager by backend.

All backends but `torch.compile` get the graphs that `dynamo.compile` captures. On a CPU float32, on
a GPU float16 for inference and bfloat16 for training. Wrong results (`judge.py`) are failures.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

import dynamo
from benchmarks.paper.apart import LATE, Apart
from benchmarks.paper.judge import judge_of
from benchmarks.paper.models import TRAINING, build, kinds_of, step_of, timed
from benchmarks.paper.report import Row
from benchmarks.paper.table import Run, Table
from benchmarks.paper.timing import medians, turn

Maker = Callable[[Any], Any]
ENGINES = ("onnxrt", "openvino", "tensorrt", "tvm")


def _ours(backend: str, **more: Any) -> Maker:
    return lambda model: dynamo.compile(model, backend=backend, **more)


CPU: dict[str, Maker] = {
    "inductor": _ours("inductor"),
    "torch.compile": torch.compile,
    "onnxrt": _ours("onnxrt"),
    "openvino": _ours("openvino"),
    "aot_eager": _ours("aot_eager"),
    "eager": _ours("eager"),
}
CUDA: dict[str, Maker] = {
    "inductor": _ours("inductor"),
    "torch.compile": torch.compile,
    "inductor graphs": _ours("inductor", mode="reduce-overhead"),
    "torch graphs": lambda model: torch.compile(model, mode="reduce-overhead"),
    "cudagraphs": _ours("cudagraphs"),
    "tensorrt": _ours("tensorrt"),
    "aot_eager": _ours("aot_eager"),
    "eager": _ours("eager"),
}
USUAL = ("inductor", "torch.compile")  # on a GPU; the others where they are asked for


def dtype_of(run: Run, training: bool) -> torch.dtype:
    if not run.cuda:
        return torch.float32
    return torch.bfloat16 if training else torch.float16


def rows(run: Run) -> list[Row]:
    ways = CUDA if run.cuda else CPU
    wanted = run.ways or (USUAL if run.cuda else tuple(CPU))
    with contextlib.ExitStack() as stack:
        apart: dict[str, Apart] = {}

        def begin() -> None:
            if not run.apart and not apart:
                apart.update({way: stack.enter_context(Apart("table3", run, way))
                              for way in ways if way in ENGINES and way in wanted})  # fmt: skip

        return [_row(run, [way for way in ways if way in wanted], begin, apart)]


def _row(
    run: Run, wanted: Sequence[str], begin: Callable[[], None], apart: Mapping[str, Apart]
) -> Row:
    """begin: starts the processes of engines, which prepare beside the ways behind the first: its
    seconds are told."""
    training = run.kind == TRAINING
    dtype = dtype_of(run, training)
    case = build(run.model, run.size, run.device, dtype, training)
    row: Row = {"model": run.model, "kind": run.kind}
    judge = judge_of(case, training, dtype)
    steps: dict[str, Callable[[], Any]] = {"eager's": step_of(case, case.model, training)}
    cells: dict[str, Any] = {}
    seconds: dict[str, float] = {}
    for way in wanted:
        if way in ENGINES and not run.apart:
            continue
        if not run.has_time():
            cells[way] = LATE
            continue
        start = time.perf_counter()
        try:
            step = step_of(case, (CUDA if run.cuda else CPU)[way](case.model), training)
            found = [step() for _ in range(3)][-1]
            seconds[way] = time.perf_counter() - start
        except Exception as error:
            cells[way] = type(error).__name__
            continue
        finally:
            begin()
        if judge.accepts(found):
            steps[way] = step
        else:
            cells[way] = "other results"
    begin()
    for each in apart.values():
        each.prepared()
    pause = 0.05 if set(ENGINES) & steps.keys() else 0.0
    with turn(run):
        times = medians(steps, run.seconds, run.cuda, pause=pause)
    with turn(replace(run, hold="")):  # each holds the machine itself
        cells |= {way: each.cell() for way, each in apart.items()}
    row["eager's ms"] = 1e3 * times["eager's"]
    for way in wanted:
        row[way] = times["eager's"] / times[way] if way in times else cells.get(way)
    row["compile s"] = seconds.get("inductor")
    row["spread"] = times.spread
    return row


def notes(rows: Sequence[Row]) -> list[str]:
    """Geometric means by suite, and how many models each backend can't do."""
    found = []
    ways = [way for way in (*CPU, *CUDA) if any(way in row for row in rows)]
    for kind in ("inference", "training"):
        for suite in (*sorted({row["model"].split(":")[0] for row in rows}), ""):
            those = [r for r in rows if r["kind"] == kind and r["model"].startswith(suite)]
            cells = []
            for way in dict.fromkeys(ways):
                speeds = [row[way] for row in those if isinstance(row.get(way), float)]
                asked = [row for row in those if row.get(way) is not None]
                if speeds:
                    mean = statistics.geometric_mean(speeds)
                    cells.append(f"{way} {mean:.2f} ({len(speeds)}/{len(asked)})")
                elif asked:
                    cells.append(f"{way} none of {len(asked)}")
            if cells:
                found.append(f"{kind}, {suite or 'all'}: {', '.join(cells)}")
    return found


TABLE = Table(
    "Table 3: speed over eager by backend", "Eager's time over a backend's, medians of blocks of "
    "calls in turn. A word instead of a number says how a backend fails. On a CPU float32; on a "
    "GPU float16 for inference, bfloat16 for training; training is forward and backward. Below: "
    "geometric means, and for how many of the models a backend works.", timed, "real", rows,
    notes, kinds_of)  # fmt: skip
