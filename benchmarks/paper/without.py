"""Table 4 (the PyTorch 2 paper, 6.4): speed over eager without one optimization at a time.

Each row of the table is a setting of `inductor`; see `inductor.config.STAGES`.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

import dynamo
from benchmarks.paper.judge import judge_of
from benchmarks.paper.models import (
    OF_STAGES,
    TRAINING,
    build,
    kinds_of,
    named,
    step_of,
    timed,
)
from benchmarks.paper.report import Row
from benchmarks.paper.speed import dtype_of
from benchmarks.paper.table import Run, Table
from benchmarks.paper.timing import medians, turn

ALL = "all"
SETTINGS: dict[str, dict[str, Any]] = {
    "layout": {"leave_out": "layout"},
    "templates": {"leave_out": "templates"},
    "attention": {"leave_out": "attention"},
    "library choice": {"library_kernels": "default"},
    "freezing": {"freezing": False},
    "patterns": {"leave_out": "patterns"},
    "decompositions": {"leave_out": "decompositions"},
    "fusion": {"leave_out": "fusion"},
    "inlining": {"leave_out": "inlining"},
    "fusion, inlining": {"leave_out": "fusion, inlining"},
}
# Why a stage stays that the models of a run do not need; told where leaving it out costs nothing.
REASONS = {
    "layout": "it is for convolutions; models without them gain nothing",
    "templates": "they are for shapes where the library is slower; elsewhere the library is taken",
    "attention": "it is for attention that the library does slower (masks, few queries, GPUs); of "
    "a model that has none, a difference is noise",
    "library choice": "it is for products and convolutions where the usual library is the slower",
    "freezing": "it is for weights that a library would put in order at each call",
    "patterns": "it is for attention that is written out, and products with biases; models that "
    "call scaled_dot_product_attention have nothing to be found",
    "decompositions": "it is for operators without a lowering: all those of these models have one",
    "fusion": "alone it is made good by inlining where each tensor is read once",
    "inlining": "alone it is made good by fusion, which keeps a tensor in a register",
}
COSTS = -0.02  # of the geometric mean: less is noise
ON_CPU = ("library choice", "freezing")
GRAPHS = "with CUDA graphs"  # an addition: the default has none


def settings(cuda: bool) -> dict[str, dict[str, Any]]:
    """What each column sets; the first is all optimizations."""
    if not cuda:
        return {ALL: {}, **SETTINGS}
    chosen = {name: each for name, each in SETTINGS.items() if name not in ON_CPU}
    return {ALL: {}, **chosen, GRAPHS: {"cudagraphs": True}}


def models() -> list[str]:
    """Those of all timed tables, after programs that have what some stages are for."""
    return [*named("micro", list(OF_STAGES)), *timed()]


def rows(run: Run) -> list[Row]:
    training = run.kind == TRAINING
    dtype = dtype_of(run, training)
    case = build(run.model, run.size, run.device, dtype, training)
    row: Row = {"model": run.model, "kind": run.kind}
    judge = judge_of(case, training, dtype)
    steps: dict[str, Callable[[], Any]] = {"eager": step_of(case, case.model, training)}
    cells: dict[str, str] = {}
    for name, options in settings(run.cuda).items():
        if not run.wants(name):
            continue
        if not run.has_time(0.75):
            cells[name] = "no time"
            continue
        try:
            step = step_of(case, dynamo.compile(case.model, options=options), training)
            found = [step() for _ in range(3)][-1]
        except Exception as error:
            cells[name] = type(error).__name__
            continue
        if judge.accepts(found):
            steps[name] = step
        else:
            cells[name] = "other results"
    with turn(run):
        times = medians(steps, run.seconds, run.cuda)
    row["eager ms"] = 1e3 * times["eager"]
    for name in filter(run.wants, settings(run.cuda)):
        row[name] = times["eager"] / times[name] if name in times else cells.get(name)
    row["spread"] = times.spread
    return [row]


def notes(rows: Sequence[Row]) -> list[str]:
    """The paper's table: geometric means, and the difference from all optimizations, each over the
    models for which both are there."""
    found = []
    names = [name for name in dict.fromkeys((*settings(False), *settings(True)))
             if any(name in row for row in rows)]  # fmt: skip
    for kind in ("inference", "training"):
        those = [row for row in rows if row["kind"] == kind]
        for name in names:
            both = [(row[ALL], row[name]) for row in those
                    if isinstance(row.get(name), float) and isinstance(row.get(ALL), float)]
            if not both:
                continue
            whole, part = (statistics.geometric_mean(column) for column in zip(*both, strict=True))
            title = {ALL: "all optimizations", GRAPHS: GRAPHS}.get(name, f"without {name}")
            why = REASONS.get(name, "") if part - whole > COSTS else ""
            found.append(f"{kind}, {title}: {part:.2f}"
                         + ("" if name == ALL else f" ({part - whole:+.2f})")
                         + (f"; {why}" if why else ""))  # fmt: skip
    return found


TABLE = Table(
    "Table 4: what each optimization is worth", "Eager's time over ours with all optimizations, "
    "and without what the column names. `layout`, `templates`, `patterns`, `decompositions`, "
    "`fusion`, `inlining`, `attention` are left out by `options={\"leave_out\": ..}` (see "
    "`inductor.config.STAGES`), `freezing` is an option of its own, `library choice` is "
    "`library_kernels=\"default\"`. CUDA graphs are added by `mode=\"reduce-overhead\"`. "
    "Below: geometric means, and the difference from all, each over the models that have both.",
    models, "real", rows, notes, kinds_of)  # fmt: skip
