"""For tests: backends that count or keep what they compile; whether all was compiled.

    >>> counter = CompileCounter()
    >>> counter.frame_count, counter.op_count
    (0, 0)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from dynamo.backends.registry import lookup_backend
from dynamo.base.counters import counters
from dynamo.base.graph_copies import copy_graph


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


class CompileCounterWithBackend(CompileCounter):
    """A `CompileCounter` that takes a backend."""

    def __init__(self, backend: str | Callable[..., Any]) -> None:
        super().__init__(backend)


class EagerAndRecordGraphs:
    """Keeps the captured graphs (`graphs`), and runs them as they are."""

    def __init__(self) -> None:
        self.graphs: list[torch.fx.GraphModule] = []

    def __call__(self, module: torch.fx.GraphModule, example_inputs: list[Any]) -> Any:
        self.graphs.append(module)
        return module.forward


class AotEagerAndRecordGraphs(EagerAndRecordGraphs):
    """Keeps the ATen graphs too: `fw_graphs`, and `bw_graphs` from the first backward on."""

    def __init__(self) -> None:
        super().__init__()
        self.fw_graphs: list[torch.fx.GraphModule] = []
        self.bw_graphs: list[torch.fx.GraphModule] = []

    def __call__(self, module: torch.fx.GraphModule, example_inputs: list[Any]) -> Any:
        self.graphs.append(module)
        passes = {"post_grad_custom_post_pass": self._keep}
        options = {"kernels": False, "passes": passes}
        return lookup_backend("inductor")(module, example_inputs, options=options)

    def _keep(self, graph: torch.fx.Graph) -> None:
        owner = graph.owning_module
        assert owner is not None
        backward = bool(owner.meta.get("is_backward"))
        graphs = self.bw_graphs if backward else self.fw_graphs
        graphs.append(torch.fx.GraphModule(owner, copy_graph(graph)))


def same(reference: Any, result: Any, tol: float = 1e-4, equal_nan: bool = False) -> bool:
    """Whether results are equal in structure, and tensors close to each other.

    >>> same([torch.ones(2), 3], [torch.ones(2) + 1e-6, 3])
    True
    """
    wanted, shape = pytree.tree_flatten(reference)
    found, other = pytree.tree_flatten(result)
    return shape == other and all(
        _are_close(one, two, tol, equal_nan) for one, two in zip(wanted, found, strict=True))


def _are_close(one: Any, two: Any, tol: float, equal_nan: bool) -> bool:
    if not isinstance(one, torch.Tensor) or not isinstance(two, torch.Tensor):
        return type(one) is type(two) and bool(one == two)
    return one.shape == two.shape and one.dtype == two.dtype and torch.allclose(
        two, one, rtol=tol, atol=tol, equal_nan=equal_nan)


def assert_compiled(but: str = "") -> None:
    """Errors: AssertionError where something was not compiled since the last `reset`.

    but: a reason that is let pass, or how it begins ("second derivative").

    >>> assert_compiled()
    """
    found = {reason: count for reason, count in counters["not_compiled"].items()
             if not but or not reason.startswith(but)}
    if found:
        listed = "\n".join(f"  {count} x {reason}" for reason, count in found.items())
        raise AssertionError(f"not all was compiled:\n{listed}")
