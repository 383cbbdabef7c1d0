"""For tests: backends that count or keep what they compile; whether all was compiled.

    >>> counter = CompileCounter()
    >>> counter.frame_count, counter.op_count
    (0, 0)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from dynamo.backends.registry import lookup_backend
from dynamo.base.counters import counters


class CompileCounter:
    """Counts graphs (`frame_count`) and operations (`op_count`), then hands on to a backend."""

    def __init__(self, backend: str | Callable[..., Any] = "eager") -> None:
        self.backend = backend
        self.clear()

    def __call__(self, module: torch.fx.GraphModule, example_inputs: list[Any]) -> Any:
        self.frame_count += 1
        self.op_count += sum(node.op.startswith("call_") for node in module.graph.nodes)
        self.graphs.append(module)
        return lookup_backend(self.backend)(module, example_inputs)

    def clear(self) -> None:
        self.frame_count = self.op_count = 0
        self.graphs: list[torch.fx.GraphModule] = []


def assert_compiled() -> None:
    """Errors: AssertionError where something was not compiled since the last `reset`.

    >>> assert_compiled()
    """
    found = counters["not_compiled"]
    if found:
        listed = "\n".join(f"  {count} x {reason}" for reason, count in found.items())
        raise AssertionError(f"not all was compiled:\n{listed}")
