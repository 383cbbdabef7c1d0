"""Captured graphs: kept with their inputs, cut after a node, run and compared.

In: a backend and the graphs that it is given. Out: for a graph and real inputs, whether what the
backend makes of it, or of a part of it, does what the graph does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from dynamo.base.config import config
from dynamo.base.fallbacks import line_of
from dynamo.base.graph_copies import copy_module
from dynamo.diagnose.compare import Difference, compare
from dynamo.diagnose.copies import Copier
from dynamo.diagnose.outcome import Outcome, run_once

Backend = Callable[..., Callable[..., Any]]


def user_line(node: fx.Node) -> str:
    """The innermost line of an operation that is not torch's own, with its text."""
    return line_of([node])


def name_of(node: fx.Node) -> str:
    """The operator as a user would write it."""
    if isinstance(node.target, str):
        return node.target
    if isinstance(node.target, torch._ops.OpOverload):
        return str(node.target)
    return getattr(node.target, "__name__", str(node.target))


@dataclass
class Graph:
    """A captured graph and the inputs of its first call. module: a copy that no backend changes."""

    module: fx.GraphModule
    inputs: list[Any]
    grad: bool = True


@dataclass
class Tap:
    """A backend that keeps graphs and inputs, and hands on to another one."""

    backend: Backend
    extra: dict[str, Any] = field(default_factory=dict)
    graphs: list[Graph] = field(default_factory=list)
    modules: list[fx.GraphModule] = field(default_factory=list)

    def __call__(self, module: fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        copy = copy_module(module)
        self.modules.append(copy)
        compiled = self.backend(module, inputs, **self.extra)
        seen: list[bool] = []

        def call(*given: Any) -> Any:
            if not seen:
                seen.append(True)
                copies = Copier(lambda tensor: False).tree(list(given))
                self.graphs.append(Graph(copy, copies, torch.is_grad_enabled()))
            return compiled(*given)

        return call


def operations(module: fx.GraphModule) -> list[fx.Node]:
    return [node for node in module.graph.nodes if node.op.startswith("call_")]


def is_tensor(node: fx.Node) -> bool:
    """True where a node gives a tensor, or several."""
    value = node.meta.get("example_value", node.meta.get("val"))
    values = value if isinstance(value, (list, tuple)) else (value,)
    return bool(values) and all(isinstance(item, torch.Tensor) for item in values)


def writes(node: fx.Node) -> bool:
    """True where a node may write into what it is given."""
    name = name_of(node).partition(".")[0]
    return name.endswith("_") and not name.endswith("__") or "__set" in name or name.startswith(
        "setitem") or "out" in node.kwargs


def prefix(module: fx.GraphModule, last: int) -> fx.GraphModule:
    """The graph up to its operation of that number, which it returns, with what that one writes."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    wanted: list[fx.Node] = []
    for node in module.graph.nodes:
        if node.op == "output":
            break
        copies[node] = graph.node_copy(node, copies.__getitem__)
        if node.op.startswith("call_"):
            wanted = [node] if is_tensor(node) else []
            if writes(node):
                wanted += [given for given in node.all_input_nodes
                           if is_tensor(given) and given.op != "placeholder"]
            if not last:
                break
            last -= 1
    graph.output(tuple(copies[node] for node in dict.fromkeys(wanted)))
    copy = fx.GraphModule(module, graph)
    copy.meta.update(module.meta)
    return copy


@dataclass
class Check:
    """Compares what a backend makes of graphs with the graphs; counts the compiles. graph_error:
    what the last graph has raised itself, so that nothing was compared."""

    backend: Backend
    extra: dict[str, Any] = field(default_factory=dict)
    compiles: int = 0
    graph_error: BaseException | None = None

    def __call__(self, graph: Graph, module: fx.GraphModule) -> tuple[Difference, ...]:
        """The differences of a module on a graph's inputs."""
        with torch.set_grad_enabled(graph.grad):
            eager = self._run(module.forward, module, graph)
            self.graph_error = eager.error
            if eager.error is not None:
                return ()
            wide = self._run(module.forward, module, graph, wide=True)
            self.compiles += 1
            try:
                with config.patch(suppress_errors=False):
                    given = Copier(lambda tensor: False).tree(graph.inputs)
                    compiled = self.backend(copy_module(module), given, **self.extra)
                    other = self._run(compiled, module, graph)
            except Exception as error:
                other = Outcome(error=error)
        return compare(eager, other, wide)

    def _run(
        self, call: Callable[..., Any], module: fx.GraphModule, graph: Graph, wide: bool = False
    ) -> Outcome:
        roots = [("graph", module)] if any(True for _ in module.buffers()) else []
        names = tuple(n.name for n in module.graph.nodes if n.op == "placeholder")
        return run_once(_as_tuple(call), tuple(graph.inputs), {}, roots, names, wide)


def _as_tuple(call: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *inputs: tuple(call(*inputs))


def first_wrong(graph: Graph, check: Check) -> tuple[int, tuple[Difference, ...]] | None:
    """The first operation with which the compiled prefix is wrong, and how; None where no prefix
    shows the difference. Bisection: a prefix that is right lies before it."""
    nodes = operations(graph.module)
    low, high = -1, len(nodes) - 1
    differences = check(graph, prefix(graph.module, high)) if nodes else ()
    if not differences:
        return _one_by_one(graph, check)
    while high - low > 1:
        middle = (low + high) // 2
        wrong = check(graph, prefix(graph.module, middle))
        if wrong:
            high, differences = middle, wrong
        else:
            low = middle
    return high, differences


def _one_by_one(graph: Graph, check: Check) -> tuple[int, tuple[Difference, ...]] | None:
    """As above where the end of the graph is right: prefix by prefix."""
    for number in range(len(operations(graph.module))):
        differences = check(graph, prefix(graph.module, number))
        if differences:
            return number, differences
    return None
