"""Backends of the program's own, for graphs whose sizes or numbers are symbolic.

The guards leave such a size open, so the backend must, too: it gets fakes with torch's symbols, and
what it assumes of these (by `int(x.shape[0])`, a comparison, an operation that it traces) becomes
guards. A backend that can't do with fakes gets the real inputs, for which all is guarded then.

In: the module, its inputs and where they come from. Out: the backend's function, and the guards.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from dynamo.backends.registry import is_own
from dynamo.base import logs
from dynamo.base.errors import DynamoError, Signal
from dynamo.base.examples import examples_given
from dynamo.base.graph_copies import copy_graph
from dynamo.base.signals import is_of_signal
from dynamo.guards.records import Guard, UserLine
from dynamo.guards.shape_code import Fact, ShapeFacts
from dynamo.guards.sources import Source

Compile = Callable[[fx.GraphModule, list[Any]], Callable[..., Any]]
NUMBERS = (int, float)


def takes_symbolic(backend: Callable[..., Any]) -> bool:
    """True for a backend that gets what is open as symbols: for all but our own."""
    inner = getattr(backend, "backend", None)  # of one that counts
    return not is_own(backend) or callable(inner) and not is_own(inner)


def has_symbolic(module: fx.GraphModule) -> bool:
    """True where a size or a number among the inputs of a graph is open."""
    return any(
        is_symbolic(node.meta.get("example_value"))
        for node in module.graph.find_nodes(op="placeholder"))


def is_symbolic(shown: Any) -> bool:
    if isinstance(shown, torch.Tensor):
        return any(type(size) is torch.SymInt for size in (*shown.shape, *shown.stride()))
    return type(shown) in (*NUMBERS, torch.SymInt, torch.SymFloat)


class Opened:
    """One compile of a graph with open inputs. inputs: the real ones; sources: where these are;
    line: the user's, for the guards."""

    def __init__(
        self, module: fx.GraphModule, inputs: list[Any], sources: Sequence[Source], line: UserLine
    ) -> None:
        self.module, self.inputs, self.sources, self.line = module, inputs, sources, line
        self.shown = [
            node.meta.get("example_value") for node in module.graph.find_nodes(op="placeholder")]
        self.guards: list[Guard] = []

    def compile(self, backend: Compile) -> Callable[..., Any]:
        """The backend's function. Errors: the backend's, of the real inputs."""
        graph = copy_graph(self.module.graph)
        opened = importlib.import_module("dynamo.shapes.symbolic_inputs")
        try:
            symbolic = opened.SymbolicInputs(self.shown, self.inputs)
            with examples_given(self.inputs, symbolic.values):
                compiled = backend(self.module, symbolic.values)
            self._guard_assumptions(symbolic)
            return compiled
        except Exception as error:
            if is_of_signal(error) or isinstance(error, DynamoError) and (
                    not isinstance(error, Signal)):
                raise
            reason = f"{type(error).__name__}: {error}"
        logs.log("dynamic").emit(
            f"the backend takes no symbolic sizes, so that they are fixed: {reason}")
        self.module.graph = graph
        self._fix_all()
        return backend(self.module, self.inputs)

    def _guard_assumptions(self, symbolic: Any) -> None:
        texts, fixed = symbolic.assumptions()
        facts = {
            name: Fact(self.sources[index], what, dim)
            for name, (index, what, dim) in symbolic.places.items()}
        for text in texts:
            names = re.findall(r"\bs\d+\b", text)
            self._guard("SHAPE", None, ShapeFacts(text, {name: facts[name] for name in names}))
        for name in fixed:
            index, what, dim = symbolic.places[name]
            self._fix(index, what, dim)

    def _fix_all(self) -> None:
        for index, shown in enumerate(self.shown):
            if not isinstance(shown, torch.Tensor):
                if type(self.inputs[index]) in NUMBERS:
                    self._fix(index, "value", 0)
                continue
            for what, numbers in (("size", shown.shape), ("stride", shown.stride())):
                for dim, number in enumerate(numbers):
                    if type(number) is torch.SymInt:
                        self._fix(index, what, dim)

    def _fix(self, index: int, what: str, dim: int) -> None:
        source, real = self.sources[index], self.inputs[index]
        if what == "value":
            self._guard("CONST", source, real)
            return
        value = real.shape[dim] if what == "size" else real.stride(dim)
        self._guard("SHAPE", None, ShapeFacts(f"(s0 == {value})", {"s0": Fact(source, what, dim)}))

    def _guard(self, kind: str, source: Source | None, payload: Any) -> None:
        self.guards.append(Guard(kind, source, payload, self.line))
        logs.log("dynamic").emit(lambda: f"the backend assumes {kind}: {payload}")
