"""Lazy tensors (the LazyTensor paper) beside eager, `dynamo.compile` and `torch._lazy`.

Small models: is a step right, how many traces and compiles the first three steps make, how many
later ones, how much of a step is followed without Python, and the time of a step over eager's.
`chain`: what it costs to record an operation and find the trace (a hit). `long`: steps of large
operations beside `dynamo.compile`.
"""

from __future__ import annotations

import contextlib
import copy
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch

import dynamo
from benchmarks.paper import hf
from benchmarks.paper.judge import widened_case
from benchmarks.paper.models import (
    INFERENCE,
    MICRO_NAMES,
    SMALL_TIMM,
    TIMM,
    TRAINING,
    VISION,
    Case,
    build,
    kinds_of,
    named,
)
from benchmarks.paper.report import Row
from benchmarks.paper.table import Run, Table
from benchmarks.paper.theirs import torch_lazy
from benchmarks.paper.timing import medians, turn
from benchmarks.small_models import tensors_in
from dynamo import lazy

CHAIN, LONG = "chain of 300 operations", "8 layers, 512 x 768"
STEPS = 3
# How much further from float64 than eager's, beside a share of the largest element: rounding.
TIMES, SHARE = 10.0, 2e-5
# Rounding may take an activation across the corner of a ReLU, from where results go other ways;
# then the steps are done again in float64, where they must be as near as that.
EXACT = 1e-9


def models() -> list[str]:
    return [*named("hf", list(hf.MODELS)), *named("vision", VISION),
            *named("micro", MICRO_NAMES), *named("timm", [*SMALL_TIMM, *TIMM]),
            CHAIN, LONG]  # fmt: skip


def kinds(name: str) -> tuple[str, ...]:
    return (INFERENCE,) if name in (CHAIN, LONG) else kinds_of(name)


def step_of(case: Case, call: Any, training: bool) -> Callable[[], list[torch.Tensor]]:
    """One step: the results of inference, or the loss of forward, backward and optimizer."""
    if not training:
        def infer() -> list[torch.Tensor]:
            with torch.no_grad():
                return tensors_in(case.run(call))
        return infer
    optimizer = torch.optim.SGD(case.model.parameters(), lr=0.01)

    def train() -> list[torch.Tensor]:
        parts = [t for t in tensors_in(case.run(call)) if t.requires_grad]
        loss = torch.stack([part.square().mean() for part in parts]).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return [loss.detach()]

    return train


def lazily(step: Callable[[], list[torch.Tensor]], device: str) -> Callable[[], Any]:
    def call() -> list[torch.Tensor]:
        with lazy.mode(device):
            return [lazy.eager(tensor) for tensor in step()]
    return call


def rows(run: Run) -> list[Row]:
    if run.model == CHAIN:
        return [hit_cost(run)]
    return [long_steps(run) if run.model == LONG else of_model(run)]


def state_of(case: Case) -> list[torch.Tensor]:
    """Parameters and buffers, which steps write."""
    return list(case.model.state_dict().values()) if isinstance(case.model, torch.nn.Module) else []


def errors(
    found: Sequence[torch.Tensor], eager: Sequence[torch.Tensor], exact: Sequence[torch.Tensor]
) -> tuple[float, float, bool]:
    """The largest error of ours and of eager's against float64, over the largest element of the
    tensor, and whether ours is rounding in each tensor."""
    worst = worst_of_eager = 0.0
    right = len(found) == len(eager) == len(exact)
    for mine, theirs, wanted in zip(found, eager, exact, strict=False):
        if mine.shape != wanted.shape or mine.dtype != theirs.dtype:
            return float("inf"), worst_of_eager, False
        if not wanted.numel():
            continue
        wide = wanted.detach().double()
        scale = max(float(wide.abs().max()), 1e-6)
        error = float((mine.detach().double() - wide).abs().max()) / scale
        own = float((theirs.detach().double() - wide).abs().max()) / scale
        right = right and error <= max(TIMES * own, SHARE)
        worst, worst_of_eager = max(worst, error), max(worst_of_eager, own)
    return worst, worst_of_eager, right


def of_model(run: Run) -> Row:
    training = run.kind == TRAINING
    case = build(run.model, run.size, run.device, training=training)
    exact = widened_case(case, torch.float64)
    other, third = copy.deepcopy(case), copy.deepcopy(case)
    lazy.reset()
    expected = step_of(case, case.model, training)
    wide = step_of(exact, exact.model, training)
    found = lazily(step_of(other, other.model, training), run.device)
    last = step_of(third, dynamo.compile(third.model), training) if run.seconds else None
    results: list[list[torch.Tensor]] = [[], [], []]
    first = before = 0
    for _ in range(STEPS):
        before = lazy.metrics().followed
        for step, kept in zip((found, expected, wide), results, strict=True):
            kept += [tensor.clone() for tensor in step()]
        first = first or lazy.metrics().compiles
        if last is not None:
            last()
    metrics = lazy.metrics()
    for part, kept in zip((other, case, exact), results, strict=True):
        kept += state_of(part) if training else []
    error, own, right = errors(*results)
    wide_error = None if right else error_in_float64(run)
    if wide_error is not None:
        right = wide_error <= EXACT
    row: Row = {
        "model": run.model, "kind": run.kind, "lazy": "works" if right else "other results",
        "error": error, "eager's error": own, "error in float64": wide_error,
        "traces": metrics.traces, "compiles, 1st": first, "later": metrics.compiles - first,
        "hits": metrics.hits, "fallbacks": metrics.fallbacks,
        "operations": metrics.operations // STEPS,
        "followed": (metrics.followed - before) / max(1, metrics.operations // STEPS),
    }  # fmt: skip
    if last is not None:
        with turn(run):
            times = medians({"eager": expected, "lazy": found, "compiled": last}, run.seconds,
                            run.cuda)  # fmt: skip
        eager = times["eager"]
        row |= {"eager ms": 1e3 * eager, "eager / lazy": eager / times["lazy"],
                "eager / compiled": eager / times["compiled"],
                "spread": times.spread}  # fmt: skip
    return row


def error_in_float64(run: Run) -> float:
    """The largest error of the same steps of lazy tensors in float64 against eager's."""
    training = run.kind == TRAINING
    case = widened_case(build(run.model, run.size, run.device, training=training), torch.float64)
    other = copy.deepcopy(case)
    steps = (lazily(step_of(other, other.model, training), run.device),
             step_of(case, case.model, training))  # fmt: skip
    results: tuple[list[torch.Tensor], list[torch.Tensor]] = ([], [])
    for _ in range(STEPS):
        for step, kept in zip(steps, results, strict=True):
            kept += [tensor.clone() for tensor in step()]
    found, wanted = results[0] + state_of(other), results[1] + state_of(case)
    return errors(found, wanted, wanted)[0] if len(found) == len(wanted) else float("inf")


def chain(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    for _ in range(100):
        x = torch.relu(x @ w) + 1.5
    return x


def hit_cost(run: Run) -> Row:
    """Microseconds for each of 300 tiny operations: recorded, found in the table, run."""
    x, w = torch.randn(4, 4, device=run.device), torch.randn(4, 4, device=run.device) / 4
    context = lazy.mode(run.device)

    def ours() -> None:
        with context:
            kept = chain(x, w)
            lazy.mark_step()
            del kept

    calls: dict[str, Callable[[], Any]] = {"eager": lambda: chain(x, w), "lazy": ours}
    try:
        if run.cuda:
            raise RuntimeError("theirs is measured on a CPU only")
        own = torch_lazy()
        theirs, their_w = x.to("lazy"), w.to("lazy")

        def torchs() -> None:
            kept = chain(theirs, their_w)
            own.mark_step(wait=True)
            del kept

        torchs()
        calls["torch lazy"] = torchs
    except (ImportError, RuntimeError) as error:
        print(f"without torch's own lazy tensors: {error}", flush=True)
    for _ in range(5):
        for call in calls.values():
            call()
    with turn(run):
        times = medians(calls, run.seconds, run.cuda)
    return {"model": CHAIN, "kind": "inference",
            **{f"{name} µs/op": 1e6 / 300 * value for name, value in times.items()}}  # fmt: skip


def long_steps(run: Run) -> Row:
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[
        torch.nn.Sequential(torch.nn.Linear(768, 768), torch.nn.LayerNorm(768), torch.nn.GELU())
        for _ in range(8)
    ]).to(run.device)  # fmt: skip
    x = torch.randn(512, 768, device=run.device)
    compiled = dynamo.compile(model)

    def plainly(call: Any) -> Callable[[], None]:
        def step() -> None:
            with torch.no_grad(), contextlib.nullcontext():
                call(x)
        return step

    def ours() -> None:
        with torch.no_grad(), lazy.mode(run.device):
            lazy.eager(model(x))

    calls = {"eager": plainly(model), "lazy": ours, "compiled": plainly(compiled)}
    for call in calls.values():
        call()
        call()
    with turn(run):
        times = medians(calls, run.seconds, run.cuda)
    return {"model": LONG, "kind": "inference", "eager ms": 1e3 * times["eager"],
            "eager / lazy": times["eager"] / times["lazy"],
            "eager / compiled": times["eager"] / times["compiled"]}  # fmt: skip


def notes(rows: Sequence[Row]) -> list[str]:
    found = []
    for kind in (INFERENCE, TRAINING):
        those = [row for row in rows if "later" in row and row["kind"] == kind]
        if those:
            right = sum(row["lazy"] == "works" for row in those)
            later = sum(row["later"] for row in those)
            followed = statistics.mean(row["followed"] for row in those)
            found.append(f"{kind}: right in {right} of {len(those)} models; compiles after the "
                         f"first step: {later}; of the third step {followed:.1%} of the operations "
                         "are followed without Python")  # fmt: skip
    for row in rows:
        if "torch lazy µs/op" in row:
            ours = row["lazy µs/op"] - row["eager µs/op"]
            theirs = row["torch lazy µs/op"] - row["eager µs/op"]
            found.append(f"over eager, a hit costs {ours:.1f} µs an operation, that of torch's "
                         f"lazy tensors {theirs:.1f} µs")  # fmt: skip
    return found


TABLE = Table(
    "Lazy tensors", "Small models, whole steps: training is forward, backward and the optimizer. "
    "`error`: the largest of three steps' results, losses, parameters and buffers against float64, "
    "over the largest element; `eager's error` likewise; where ours is more than rounding, `error "
    "in float64` is that of the same steps in float64 (rounding takes activations across corners, "
    "in eager, too). `traces`, `compiles` and `hits` are those of three steps; `followed`: the "
    "share of the third step's operations that needed no Python. Times over eager's: above 1 is "
    "faster. The chain has 300 operations on 16 numbers: nearly all "
    "its time is recording.", models, "small", rows, notes, kinds)  # fmt: skip
