"""Inference mode in traces: fakes know none of it, so a trace sees it as no-grad mode.

In the graph it is entered and left for real. A mode that is on when the frame starts is left while
tracing (`outside_inference_mode`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from dynamo.base.errors import Break
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Evaluation, Frame
from dynamo.symbolic.core.table import rule
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.tensors.contexts import GraphContextVar
from dynamo.symbolic.tensors.state import tensor_state
from dynamo.symbolic.tensors.tensor import TensorVar


@contextlib.contextmanager
def outside_inference_mode() -> Iterator[None]:
    """No-grad mode where inference mode is on."""
    if not torch.is_inference_mode_enabled():
        yield
        return
    with torch.inference_mode(False), torch.no_grad():
        yield


class InferenceModeVar(GraphContextVar):
    """`torch._C._InferenceMode(mode)`, made in the trace."""

    def __init__(self, mode: bool) -> None:
        super().__init__("inference_mode", (mode,), in_trace=False)
        self._before = (False, True)

    def python_type(self) -> type:
        return torch._C._InferenceMode  # type: ignore[no-any-return]

    def on_enter(self, trace: Evaluation) -> None:
        self._before = tensor_state(trace).inference_mode, torch.is_grad_enabled()
        tensor_state(trace).set_inference_mode(self.args[0])
        torch._C._set_grad_enabled(not self.args[0])

    def on_exit(self, trace: Evaluation) -> None:
        tensor_state(trace).set_inference_mode(self._before[0])
        torch._C._set_grad_enabled(self._before[1])


@rule(torch._C._InferenceMode)
def make_context(tx: Frame, mode: Var) -> Var:
    return InferenceModeVar(mode.truth(tx))


@rule(torch.is_inference_mode_enabled)
def is_enabled(tx: Frame) -> Var:
    return ConstVar(tensor_state(tx.trace).inference_mode)


@rule([torch.Tensor.is_inference, torch.is_inference])
def is_inference(tx: Frame, var: Var) -> Var:
    """Known of tensors from outside, and where no inference mode was ever on."""
    if isinstance(var, TensorVar) and var.real is not None:
        tensor_state(tx.trace).guard_tensor(var)
        return ConstVar(var.real.is_inference())
    if tensor_state(tx.trace).saw_inference_mode:
        raise Break("attribute_unknown", f"is_inference of {var!r}")
    return ConstVar(False)
