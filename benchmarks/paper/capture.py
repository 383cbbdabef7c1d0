"""Table 1 (the PyTorch 2 paper, 6.1): which ways of capture give a model's results.

A cell says `works`, or how it fails; a result that differs from eager's is a failure. For ours and
for lazy tensors: graphs, breaks (what lazy tensors run in eager between two traces), operations
captured. `inside` is the share of the ATen calls of a run that run inside of our graphs. The other
ways are called as their documents say, with the same keyword arguments.
"""

from __future__ import annotations

import copy
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch

import dynamo
from benchmarks.paper.models import Case, build, every
from benchmarks.paper.report import Row
from benchmarks.paper.table import Run, Table
from benchmarks.small_models import tensors_in
from dynamo import lazy
from dynamo.backends.registry import lookup_backend

GRAPH = "captured graph"
OURS = "dynamo.compile"


def same(found: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor], rtol: float = 1e-3,
         atol: float = 1e-4) -> bool:  # fmt: skip
    return len(found) == len(wanted) and all(
        f.shape == w.shape and torch.allclose(f.double(), w.double(), rtol, atol, equal_nan=True)
        for f, w in zip(found, wanted, strict=True))  # fmt: skip


def verdict(capture: Callable[[], Any], wanted: list[torch.Tensor]) -> str:
    """`works`, `other results`, or the name of what it raised."""
    try:
        return "works" if same(tensors_in(capture()), wanted) else "other results"
    except Exception as error:
        return type(error).__name__


def by_ours(case: Case, wanted: list[torch.Tensor], row: Row) -> None:
    """Graphs, breaks and captured operations, then the share of ATen calls inside of graphs."""
    graphs: list[torch.fx.GraphModule] = []

    def backend(module: torch.fx.GraphModule, example_inputs: list[Any]) -> Any:
        graphs.append(module)
        run = lookup_backend("eager")(module, example_inputs)

        def call(*args: Any) -> Any:
            with torch.profiler.record_function(GRAPH):
                return run(*args)

        return call

    dynamo.counters.clear()
    compiled = dynamo.compile(case.model, backend=backend)
    row[OURS] = verdict(lambda: case.run(compiled), wanted)
    row["graphs"] = len(graphs)
    row["breaks"] = sum(dynamo.counters["graph_break"].values())
    row["operations"] = sum(node.op.startswith("call_") for m in graphs for node in m.graph.nodes)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        case.run(compiled)
    calls = [_ancestors(event) for event in profile.events() if event.name.startswith("aten::")]
    outermost = [names for names in calls if not any(name.startswith("aten::") for name in names)]
    row["inside"] = sum(GRAPH in names for names in outermost) / max(1, len(outermost))


def _ancestors(event: Any) -> list[str]:
    names = []
    while (event := event.cpu_parent) is not None:
        names.append(event.name)
    return names


def by_lazy(case: Case, wanted: list[torch.Tensor], device: str, row: Row) -> None:
    lazy.reset()

    def run() -> Any:
        with lazy.mode(device, backend="eager"):
            return [lazy.eager(t) for t in tensors_in(case.run(case.model))]

    row["lazy"] = verdict(run, wanted)
    metrics = lazy.metrics()
    row["lazy graphs"] = metrics.traces
    row["lazy breaks"] = metrics.fallbacks


@torch.no_grad()
def rows(run: Run) -> list[Row]:
    case = build(run.model, run.size, run.device)
    wanted = tensors_in(case.run(case.model))
    model, args, given = case.model, case.args, dict(case.given)
    row: Row = {"model": run.model}
    is_module = isinstance(model, torch.nn.Module)
    how: dict[str, Any] = {"strict": False, "check_trace": False}  # results are compared here

    def script() -> Any:
        return torch.jit.script(copy.deepcopy(model) if is_module else model)(*args, **given)

    def trace() -> Any:
        if given:
            return torch.jit.trace(model, example_kwarg_inputs=given, **how)(**given)
        return torch.jit.trace(model, args, **how)(*args)

    def export() -> Any:
        module = model if is_module else _Module(model)
        return torch.export.export(module, args, given, strict=False).module()(*args, **given)

    def symbolic() -> Any:
        return torch.fx.symbolic_trace(model, left_out(case))(*args, **given)

    by_ours(case, wanted, row)
    by_lazy(case, wanted, run.device, row)
    for way, capture in {"torch.export": export, "jit.trace": trace, "jit.script": script,
                         "fx.symbolic_trace": symbolic}.items():  # fmt: skip
        row[way] = verdict(capture, wanted)
    return [row]


class _Module(torch.nn.Module):
    """A function for what takes modules only."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


def left_out(case: Case) -> dict[str, None]:
    """The arguments that are not given, as constants of `torch.fx.symbolic_trace`."""
    code = getattr(getattr(type(case.model), "forward", None), "__code__", None)
    names = code.co_varnames[1 + len(case.args) : code.co_argcount] if code is not None else ()
    return {name: None for name in names if name not in case.given}


def notes(rows: Sequence[Row]) -> list[str]:
    found = []
    for suite in (*sorted({row["model"].split(":")[0] for row in rows}), ""):
        those = [row for row in rows if row["model"].startswith(suite)]
        if not those:
            continue
        ways = [way for way in those[0] if any(row.get(way) == "works" for row in rows)]
        counts = [f"{way} {sum(row.get(way) == 'works' for row in those)}" for way in ways]
        found.append(f"{suite or 'all'}: of {len(those)} models work: {', '.join(counts)}")
    if rows:
        whole = sum(row["graphs"] == 1 for row in rows)
        inside = statistics.mean(row["inside"] for row in rows)
        found.append(f"ours: one graph without a break for {whole} of {len(rows)}; "
                     f"{inside:.2%} of ATen calls inside of graphs")  # fmt: skip
    return found


TABLE = Table(
    "Table 1: capture", "Which ways of capture give the results of a model: `works`, or how a way "
    "fails. Inference, float32, small models with random weights. `inside`: the share of a run's "
    "ATen calls that are inside of our graphs. `lazy breaks`: operators that ran in eager between "
    "two traces. Models of text return their key-value caches, as they do unless told otherwise; "
    "some ways have no word for such an object.", every, "small", rows, notes,
    is_timed=False)  # fmt: skip
