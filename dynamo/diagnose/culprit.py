"""From "the results differ" to one operator: bisection over stages, then over the graph.

In: how to run the function in eager and compiled by any backend. Out: a `Culprit`. Stages are the
backends `eager` (capture alone), `aot_eager` (functional graphs, no kernels) and the one that was
asked for: the first that differs from eager has the defect.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.overrides import TorchFunctionMode

from dynamo.backends.registry import lookup_backend
from dynamo.base.user_lines import TORCH
from dynamo.diagnose.compare import Difference, compare, values_differ
from dynamo.diagnose.graphs import (
    Check,
    Graph,
    Tap,
    first_wrong,
    is_tensor,
    name_of,
    operations,
    user_line,
)
from dynamo.diagnose.outcome import Outcome

STAGES = ("eager", "aot_eager")
OWN = ("aot_eager", "inductor")
GUARDS = "guards"
CAPTURE = "capture"
BLAME = {
    GUARDS: "code that was compiled for other values has run: a guard is missing",
    CAPTURE: "the capture (backend \"eager\") is wrong",
    "aot_eager": "the functional graph (backend \"aot_eager\") is wrong, its capture is right",
    "inductor": "the generated code (backend \"inductor\") is wrong, \"aot_eager\" is right",
}


@dataclass(frozen=True)
class Culprit:
    """stage: the first that differs; operator, line: of the first operation that differs, "" where
    none does (an effect, say); differences: what is wrong behind that operation; graph, number:
    the graph and the place of the operation in it."""

    stage: str
    operator: str = ""
    line: str = ""
    differences: tuple[Difference, ...] = ()
    graph: Graph | None = None
    number: int = -1

    def sentence(self) -> str:
        blame = BLAME.get(self.stage, f"the backend {self.stage!r} is wrong, the capture is right")
        if not self.operator:
            return f"{blame}; no single operator shows it"
        return f"{blame}; the first operator that differs is {self.operator!r}"


@dataclass
class Runs:
    """How to run the function. eager: once more, recorded if asked; compiled: freshly compiled by a
    backend, with the tap on it."""

    eager: Callable[[TorchFunctionMode | None], Outcome]
    compiled: Callable[[Tap], Outcome]
    backend: Callable[..., Any]
    backend_name: str
    extra: dict[str, Any]


def find_culprit(
    runs: Runs, right: Outcome, wide: Outcome, stale: list[fx.GraphModule] | None = None
) -> Culprit:
    """right, wide: eager's run, also in double precision; stale: the graphs of compiled code that
    was there before and gave the difference, None where it was compiled for this call."""
    for name, backend, extra in _stages(runs):
        tap = Tap(backend, extra)
        found = compare(right, runs.compiled(tap), wide)
        if found and name == "eager":
            return _in_capture(runs, tap, found)
        if found:
            return _in_graphs(Check(backend, extra), tap.graphs, name, found)
    if stale is None:
        return Culprit(runs.backend_name)
    return _in_guards(stale, tap.modules)


def _stages(runs: Runs) -> list[tuple[str, Callable[..., Any], dict[str, Any]]]:
    names = STAGES if runs.backend_name in OWN else STAGES[:1]
    stages: list[tuple[str, Callable[..., Any], dict[str, Any]]] = [
        (name, lookup_backend(name), {}) for name in names if name != runs.backend_name]
    return [*stages, (runs.backend_name, runs.backend, runs.extra)]


def _in_graphs(
    check: Check, graphs: list[Graph], stage: str, found: tuple[Difference, ...]
) -> Culprit:
    """The first graph that is wrong on its own inputs, and the first operation in it."""
    for graph in graphs:
        whole = check(graph, graph.module)
        place = first_wrong(graph, check)
        if place is None and not whole:
            continue
        if place is None:
            return Culprit(stage, "", user_line(operations(graph.module)[-1]), whole, graph)
        number, differences = place
        node = operations(graph.module)[number]
        return Culprit(stage, name_of(node), user_line(node), differences, graph, number)
    return Culprit(stage, differences=found)


def _in_guards(stale: list[fx.GraphModule], fresh: list[fx.GraphModule]) -> Culprit:
    """The first operation of the old code that is not that of code made for this call."""
    for old, new in zip(stale, fresh, strict=False):
        ours, wanted = operations(old), operations(new)
        for one, two in zip(ours, wanted, strict=False):
            same = _text(one) == _text(two)
            if not same:
                return Culprit(GUARDS, name_of(two), user_line(two))
        rest = wanted[len(ours):] or ours[len(wanted):]
        if rest:
            return Culprit(GUARDS, name_of(rest[0]), user_line(rest[0]))
    return Culprit(GUARDS)


def _text(node: fx.Node) -> tuple[str, str]:
    value = node.meta.get("example_value")
    facts = (value.dtype, tuple(value.shape)) if isinstance(value, torch.Tensor) else ()
    return name_of(node), f"{node.args} {node.kwargs} {facts}"


# -- capture -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Seen:
    """An operation of eager, with a copy of its result."""

    name: str
    line: str
    value: torch.Tensor

    @property
    def place(self) -> str:
        return self.line.partition("\n")[0]


class Watch(TorchFunctionMode):
    """Keeps each operation that the program calls, with the line that calls it."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Seen] = []

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", str(func))
        if name != "__get__" and isinstance(result, torch.Tensor):
            self.seen.append(Seen(name, _line_now(), result.detach().clone()))
        return result


def _line_now() -> str:
    for frame in reversed(traceback.extract_stack()[:-2]):
        if not frame.filename.startswith(TORCH):
            return f"{frame.filename}:{frame.lineno} in {frame.name}\n    {frame.line}"
    return ""


def _in_capture(runs: Runs, tap: Tap, differences: tuple[Difference, ...]) -> Culprit:
    """The first operation of eager whose result is in no captured graph, though the graph has an
    operation of that line; or that no graph has."""
    watch = Watch()
    runs.eager(watch)
    captured: list[tuple[fx.Node, torch.Tensor]] = []
    for graph in tap.graphs:
        captured += _values(graph)
    lines = {user_line(node).partition("\n")[0] for node, _ in captured}
    missing = [seen for seen in watch.seen if not any(_matches(seen, v) for _, v in captured)]
    for seen in missing:
        if seen.place in lines:
            return Culprit(CAPTURE, seen.name, seen.line, differences)
    if missing:
        return Culprit(CAPTURE, missing[0].name, missing[0].line, differences)
    return Culprit(CAPTURE, differences=differences)


def _matches(seen: Seen, value: torch.Tensor) -> bool:
    one = seen.value
    return (one.dtype is value.dtype and one.shape == value.shape
            and not values_differ(one, value, None, "graph"))


def _values(graph: Graph) -> list[tuple[fx.Node, torch.Tensor]]:
    """The value of each operation of a graph on its inputs."""
    found: list[tuple[fx.Node, torch.Tensor]] = []

    class Keep(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Any:
            result = super().run_node(n)
            if is_tensor(n) and isinstance(result, torch.Tensor) and n.op.startswith("call_"):
                found.append((n, result.detach().clone()))
            return result

    with torch.set_grad_enabled(graph.grad):
        Keep(graph.module).run(*graph.inputs)
    return found
