"""Tables of the papers, measured here: written as Markdown and JSON into `docs/results/`.

    python -m benchmarks.paper table1 [NAME ...] [--each 240] [--processes 1]
    python -m benchmarks.paper table2 [NAME ...]

table1 (PyTorch 2 paper, 6.1): which ways of capture give a model's results. A cell says `works`,
or how it fails. For ours: graphs, graph breaks, operations captured, and the share of ATen calls of
an eager run that run inside of graphs. Ways: `dynamo.compile` and lazy tensors of this project;
`torch.jit.trace`, `torch.jit.script`, `torch.fx.symbolic_trace` and `torch.export`, called as their
documents say, with the same keyword arguments.

table2 (6.2): what capture costs when the captured graph is only run: time over eager's with the
backend "eager", in inference and training, and with lazy tensors whose traces run operator by
operator. Medians of alternating calls; run it on a quiet machine.

Models are small ones of transformers (`benchmarks/small_models.py`), each in a process of its own.
"""

from __future__ import annotations

import argparse
import copy
import json
import platform
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import nn

import dynamo
import lazy
from benchmarks.small_models import Arguments, CannotBuild, build, tensors_in
from dynamo.backends.registry import lookup_backend

RESULT = "RESULT "
RESULTS = Path(__file__).parents[1] / "docs" / "results"
MODELS = """albert bart bert big_bird blenderbot clip convbert convnext deberta-v2 distilbert
electra ernie fnet gemma2 gpt2 gpt_neo layoutlm llama longformer mamba mbart megatron-bert mistral
mixtral mobilebert modernbert opt pegasus phi3 qwen2 reformer roberta roformer swin t5 vit wav2vec2
whisper xlm-roberta xlnet""".split()
ROUNDS = 15
GRAPH = "captured graph"
Row = dict[str, Any]


def same(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> bool:
    return len(found) == len(wanted) and all(
        f.shape == w.shape and torch.allclose(f.double(), w.double(), 1e-3, 1e-4, equal_nan=True)
        for f, w in zip(found, wanted, strict=True))  # fmt: skip


def verdict(capture: Callable[[], Any], wanted: list[torch.Tensor]) -> str:
    """`works`, `other results`, or the name of what it raised."""
    try:
        return "works" if same(tensors_in(capture()), wanted) else "other results"
    except Exception as error:
        return type(error).__name__


def by_ours(model: nn.Module, given: Arguments, wanted: list[torch.Tensor], row: Row) -> None:
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
    compiled = dynamo.compile(model, backend=backend)
    row["dynamo.compile"] = verdict(lambda: compiled(**given), wanted)
    row["graphs"] = len(graphs)
    row["breaks"] = sum(dynamo.counters["graph_break"].values())
    row["operations"] = sum(node.op.startswith("call_") for m in graphs for node in m.graph.nodes)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        compiled(**given)
    calls = [_ancestors(event) for event in profile.events() if event.name.startswith("aten::")]
    outermost = [names for names in calls if not any(name.startswith("aten::") for name in names)]
    row["inside"] = sum(GRAPH in names for names in outermost) / max(1, len(outermost))


def _ancestors(event: Any) -> list[str]:
    names = []
    while (event := event.cpu_parent) is not None:
        names.append(event.name)
    return names


@torch.no_grad()
def capture_row(name: str) -> Row:
    """table1 of one model."""
    model, given = build(name, "cpu")
    wanted = tensors_in(model(**given))
    row: Row = {"model": name}

    def by_lazy() -> Any:
        with lazy.mode("cpu", backend="eager"):
            return [lazy.eager(t) for t in tensors_in(model(**given))]

    ways: dict[str, Callable[[], Any]] = {
        "lazy": by_lazy,
        "torch.export": lambda: torch.export.export(
            model, (), dict(given), strict=False).module()(**given),
        "jit.trace": lambda: torch.jit.trace(
            model, example_kwarg_inputs=dict(given), strict=False)(**given),
        "jit.script": lambda: torch.jit.script(copy.deepcopy(model))(**given),
        "fx.symbolic_trace": lambda: torch.fx.symbolic_trace(
            model, {key: None for key in _left_out(model, given)})(**given),
    }  # fmt: skip
    by_ours(model, given, wanted, row)
    for way, capture in ways.items():
        row[way] = verdict(capture, wanted)
    return row


def _left_out(model: nn.Module, given: Arguments) -> list[str]:
    """The arguments that are not given, as constants of `torch.fx.symbolic_trace`."""
    code = type(model).forward.__code__ if hasattr(type(model).forward, "__code__") else None
    names = code.co_varnames[1 : code.co_argcount] if code is not None else ()
    return [name for name in names if name not in given]


def overhead_row(name: str) -> Row:
    """table2 of one model."""
    row: Row = {"model": name}
    for kind in ("inference", "training"):
        model, given = build(name, "cpu")
        compiled = dynamo.compile(model, backend="eager")
        steps = [_step(f, given, kind == "training") for f in (model, compiled)]

        def by_lazy(step: Callable[[], Any] = steps[0]) -> None:
            with lazy.mode("cpu", backend="eager"):
                step()

        steps.append(by_lazy)
        for step in steps * 3:
            step()
        times: list[list[float]] = [[] for _ in steps]
        for _ in range(ROUNDS):
            for found, step in zip(times, steps, strict=True):
                start = time.perf_counter()
                step()
                found.append(time.perf_counter() - start)
        eager, ours, lazily = (statistics.median(found) for found in times)
        row |= {f"{kind} ms": 1e3 * eager, f"{kind} dynamo": ours / eager,
                f"{kind} lazy": lazily / eager}  # fmt: skip
    return row


def _step(call: Callable[..., Any], given: Arguments, training: bool) -> Callable[[], Any]:
    def infer() -> Any:
        with torch.no_grad():
            return call(**given)

    def train() -> None:
        parts = [t for t in tensors_in(call(**given)) if t.requires_grad]
        torch.stack([t.square().mean() for t in parts]).sum().backward()

    return train if training else infer


TABLES: dict[str, Callable[[str], Row]] = {"table1": capture_row, "table2": overhead_row}


def one(table: str, name: str) -> None:
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    try:
        row = TABLES[table](name)
    except CannotBuild as error:
        row = {"model": name, "skipped": str(error)[:200]}
    print(RESULT + json.dumps(row), flush=True)


def in_a_process(table: str, name: str, limit: float) -> Row:
    command = [sys.executable, "-m", "benchmarks.paper", table, name, "--one"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return {"model": name, "skipped": f"more than {limit:.0f} s"}
    for line in done.stdout.splitlines():
        if line.startswith(RESULT):
            return dict(json.loads(line.removeprefix(RESULT)))
    return {"model": name, "skipped": done.stderr.strip()[-200:]}


def shown(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def markdown(table: str, rows: list[Row]) -> str:
    """The table, and below it what all rows come to."""
    good = [row for row in rows if "skipped" not in row]
    columns = list(good[0]) if good else ["model"]
    lines = [f"# {table}", "", machine(), "", "| " + " | ".join(columns) + " |",
             "| " + " | ".join("---" for _ in columns) + " |"]  # fmt: skip
    lines += ["| " + " | ".join(shown(row[c]) for c in columns) + " |" for row in good]
    lines += ["", *totals(good, columns)]
    lines += [f"- not run: {row['model']}: {row['skipped']}" for row in rows if "skipped" in row]
    return "\n".join(lines) + "\n"


def totals(rows: list[Row], columns: list[str]) -> list[str]:
    found = []
    for column in columns:
        values = [row[column] for row in rows]
        if "works" in values:
            found.append(f"- {column}: {values.count('works')} of {len(values)} models work")
        elif column == "inside":
            found.append(f"- ATen calls inside of our graphs: {statistics.mean(values):.2%}")
        elif column.endswith((" dynamo", " lazy")):
            mean = statistics.geometric_mean(values)
            found.append(f"- {column}: {mean:.3f} of eager's time (geometric mean)")
    return found


def machine() -> str:
    threads = torch.get_num_threads()
    return (f"{platform.machine()}, {threads} threads, Python {platform.python_version()}, "
            f"torch {torch.__version__}, small models of transformers, float32.")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("table", choices=[*TABLES])
    parser.add_argument("names", nargs="*", default=[])
    parser.add_argument("--each", type=float, default=240.0)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        one(options.table, options.names[0])
        return
    rows: list[Row] = []
    with ThreadPoolExecutor(options.processes) as pool:
        tasks = [pool.submit(in_a_process, options.table, name, options.each)
                 for name in options.names or MODELS]  # fmt: skip
        for task in tasks:
            rows.append(task.result())
            print(" ".join(f"{key}={shown(value)}" for key, value in rows[-1].items()), flush=True)
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{options.table}.json").write_text(json.dumps(rows, indent=1) + "\n")
    (RESULTS / f"{options.table}.md").write_text(markdown(options.table, rows))


if __name__ == "__main__":
    main()
