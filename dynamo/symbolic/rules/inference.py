"""Inference mode in traces: fakes know none of it, so a trace sees it as no-grad mode.

In the graph it is entered and left for real. A mode that is on when the frame starts is left while
tracing (`outside_inference_mode`); one that would be on where a trace ends is entered by Python.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from dynamo.base.errors import Break
from dynamo.symbolic.rules.table import rule
from dynamo.symbolic.variables.base import Var
from dynamo.symbolic.variables.constant import ConstVar
from dynamo.symbolic.variables.tensor import TensorVar

if TYPE_CHECKING:
    from dynamo.symbolic.machine import SymbolicFrame


@contextlib.contextmanager
def outside_inference_mode() -> Iterator[None]:
    """No-grad mode where inference mode is on."""
    if not torch.is_inference_mode_enabled():
        yield
        return
    with torch.inference_mode(False), torch.no_grad():
        yield


def enter(mode: bool) -> Any:
    """Enters inference mode, in a graph; the result is for `leave`."""
    context = torch._C._InferenceMode(mode)
    context.__enter__()
    return context


def leave(context: Any) -> None:
    """Goes back to what was before."""
    context.__exit__(None, None, None)


class InferenceModeVar(Var):
    """`torch._C._InferenceMode(mode)`, made in the trace.

    step: where it was entered, None while it is not.
    """

    def __init__(self, mode: bool) -> None:
        super().__init__()
        self.mode = mode
        self.step: int | None = None
        self._node: fx.Node | None = None
        self._before = (False, True)

    def describe(self) -> str:
        return f"{self.mode}, entered" if self.step is not None else str(self.mode)

    def python_type(self) -> type:
        return torch._C._InferenceMode  # type: ignore[no-any-return]

    def truth(self, tx: SymbolicFrame) -> bool:
        return True

    def call_method(
        self, tx: SymbolicFrame, name: str, args: list[Var], kwargs: dict[str, Var]
    ) -> Var:
        trace = tx.trace
        if name == "__enter__" and self.step is None:
            self._node = trace.graph.operation("call_function", enter, (self.mode,), {}, None)
            trace.effects.tick()
            self._before = trace.inference_mode, torch.is_grad_enabled()
            self.step = tx.step_at_start
            trace.set_inference_mode(self.mode)
            torch._C._set_grad_enabled(not self.mode)
            return self
        if name == "__exit__" and self.step is not None:
            trace.graph.operation("call_function", leave, (self._node,), {}, None)
            trace.effects.tick()
            self.step = None
            trace.set_inference_mode(self._before[0])
            torch._C._set_grad_enabled(self._before[1])
            return ConstVar(None)
        return super().call_method(tx, name, args, kwargs)

    def get_attr(self, tx: SymbolicFrame, name: str) -> Var:
        if name in ("__enter__", "__exit__"):
            return ContextMethodVar(self, name)
        raise Break("attribute_unknown", f"{name} of {self!r}")


class ContextMethodVar(Var):
    """`context.__enter__` or `context.__exit__`, bound."""

    def __init__(self, context: InferenceModeVar, name: str) -> None:
        super().__init__()
        self.context, self.name = context, name

    def children(self) -> Iterable[Var]:
        return (self.context,)

    def call(self, tx: SymbolicFrame, args: list[Var], kwargs: dict[str, Var]) -> Var:
        return self.context.call_method(tx, self.name, args, kwargs)


@rule(torch._C._InferenceMode)
def make_context(tx: SymbolicFrame, mode: Var) -> Var:
    return InferenceModeVar(mode.truth(tx))


@rule(torch.is_inference_mode_enabled)
def is_enabled(tx: SymbolicFrame) -> Var:
    return ConstVar(tx.trace.inference_mode)


@rule([torch.Tensor.is_inference, torch.is_inference])
def is_inference(tx: SymbolicFrame, var: Var) -> Var:
    """Known of tensors from outside, and where no inference mode was ever on."""
    if isinstance(var, TensorVar) and var.real is not None:
        tx.trace.guard_tensor(var)
        return ConstVar(var.real.is_inference())
    if tx.trace.saw_inference_mode:
        raise Break("attribute_unknown", f"is_inference of {var!r}")
    return ConstVar(False)
