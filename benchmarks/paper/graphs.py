"""Tools on graphs (the torch.fx paper): symbolic tracing, folding of batch norms, int8.

For each model: does `torch.fx.symbolic_trace` give its results, and does `dynamo.export`, as one
graph. Then the paper's case studies: ResNet-50 with batch norms folded into its convolutions, and a
quantized recommender.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch

import dynamo
from benchmarks.paper.capture import left_out, verdict
from benchmarks.paper.models import build, every
from benchmarks.paper.report import Row
from benchmarks.paper.table import Run, Table
from benchmarks.paper.timing import medians, turn
from benchmarks.small_models import tensors_in
from dynamo import graphs
from examples.recommender import Recommender, inputs, quantized

FOLDED, INT8 = "folding:resnet50", "int8:recommender"
BATCH = 512
OURS, THEIRS = "dynamo.export", "fx.symbolic_trace"


@torch.no_grad()
def rows(run: Run) -> list[Row]:
    studies = {FOLDED: folding, INT8: recommender}
    if run.model in studies:
        return [studies[run.model](run)]
    case = build(run.model, run.size, run.device)
    parts = case.model.modules() if isinstance(case.model, torch.nn.Module) else ()
    configs: list[Any] = [getattr(part, "config", None) for part in parts]
    for config in configs:
        if hasattr(config, "use_cache"):
            config.use_cache = False  # a cache is an object of the program, which no graph returns
    wanted = tensors_in(case.run(case.model))
    row: Row = {"model": run.model}
    sizes: list[int] = []

    def exported() -> Any:
        graph, _ = dynamo.export(case.model, *case.args, **case.given)
        sizes.append(len(graph.graph.nodes))
        return case.run(graph)

    def traced() -> Any:
        return case.run(torch.fx.symbolic_trace(case.model, left_out(case)))

    row[OURS] = verdict(exported, wanted)
    row["nodes"] = sizes[0] if sizes else None
    row[THEIRS] = verdict(traced, wanted)
    return [row]


def folding(run: Run) -> Row:
    """In eager: the captured graph beside the folded one; errors against float64."""
    case = build("vision:resnet50", "real", run.device)
    exact = copy.deepcopy(case.model).double()(case.args[0].double())
    graph, _ = dynamo.export(case.model, *case.args)
    folded = graphs.fold_batch_norms(graph)
    calls: dict[str, Callable[[], Any]] = {
        "before": lambda: case.run(graph), "after": lambda: case.run(folded)}
    return {"model": FOLDED, **_figures(run, calls, exact)}


def recommender(run: Run) -> Row:
    """Both compiled; errors against the model in float64. int8 products are those of the CPU."""
    torch.manual_seed(0)
    model = Recommender().eval()
    given = inputs(BATCH)
    exact = copy.deepcopy(model).double()(given[0].double(), given[1])
    whole, small = dynamo.compile(model), dynamo.compile(quantized(model, BATCH))
    calls = {"before": lambda: whole(*given), "after": lambda: small(*given)}
    return {"model": INT8, **_figures(run, calls, exact)}


def _figures(run: Run, calls: dict[str, Callable[[], Any]], exact: torch.Tensor) -> Row:
    scale = float(exact.abs().max())
    errors = {name: float((call().double() - exact).abs().max()) / scale
              for name, call in calls.items()}  # fmt: skip
    for call in calls.values():
        call()
    with turn(run):
        times = medians(calls, run.seconds, run.cuda)
    return {"ms before": 1e3 * times["before"], "ms after": 1e3 * times["after"],
            "speed": times["before"] / times["after"], "error before": errors["before"],
            "error after": errors["after"], "spread": times.spread}  # fmt: skip


def notes(rows: Sequence[Row]) -> list[str]:
    models = [row for row in rows if OURS in row]
    found = [f"{way}: {sum(row[way] == 'works' for row in models)} of {len(models)} models"
             for way in (OURS, THEIRS) if models]  # fmt: skip
    for row in rows:
        if "speed" in row:
            found.append(f"{row['model']}: {row['speed']:.2f} times as fast, error "
                         f"{row['error before']:.1e} before, {row['error after']:.1e} after "
                         f"(of the largest result, against float64)")  # fmt: skip
    return found


def models() -> list[str]:
    return [FOLDED, INT8, *every()]


TABLE = Table(
    "Tools on graphs", "Which small models with random weights are traced with the same results, "
    "by `dynamo.export` (one graph, no break) and by `torch.fx.symbolic_trace`. `folding`: the "
    "captured ResNet-50 (batch 4, in eager) before and after its batch norms became part of its "
    "convolutions. `int8`: a recommender (`examples/recommender.py`, batch 512), compiled, float32 "
    "and int8.", models, "small", rows, notes)  # fmt: skip
