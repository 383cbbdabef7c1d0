"""What `torch.autograd.detect_anomaly` asks of a compiled backward: an error where a gradient is
NaN, with the line of the operation whose backward has made it so.

Autograd looks at what its nodes give, and a compiled graph is one node. So the graph runs again,
operator by operator, where one of its gradients is NaN. A NaN that no gradient shows is not found.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from dynamo.base.failing_lines import note_stack

is_looking = torch.is_anomaly_enabled


def copies_of(given: Sequence[Any]) -> list[Any]:
    """The arguments of a backward, which may write into its own."""
    return [value.clone() if isinstance(value, torch.Tensor) else value for value in given]


def check_gradients(gradients: Sequence[Any], module: fx.GraphModule, given: list[Any]) -> None:
    """Errors: RuntimeError as autograd raises it, about the operation that made the first NaN."""
    if not torch.is_anomaly_check_nan_enabled():
        return
    wrong = next((at for at, grad in enumerate(gradients) if _has_nan(grad)), None)
    if wrong is None:
        return
    text = f"Function 'CompiledBackward' returned nan values in its {wrong}th output."
    error = RuntimeError(text)
    finder = _Finder(module)
    with torch.no_grad():
        finder.run(*given)
    note_stack(error, finder.stack)
    raise error


def _has_nan(value: Any) -> bool:
    return (isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())
            and bool(value.isnan().any()))


class _Finder(fx.Interpreter):
    """stack: of the first operation that gives a NaN where it was given none; "" for none."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module, garbage_collect_values=False)
        self.stack = ""

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        if n.op == "call_function" and not self.stack:
            values = value if isinstance(value, (list, tuple)) else (value,)
            if any(map(_has_nan, values)):
                self.stack = str(n.meta.get("stack_trace") or "")
        return value
