"""`torch.masked`: what its functions do to plain tensors first is traced in place of torch's own,
which defines a class for masked tensors at each call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.masked import _ops

from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.table import rule
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.python.functions import inline_polyfill
from dynamo.symbolic.tensors.tensor import TensorVar


@rule(_ops._combine_input_and_mask, Var, TensorVar)
def combine(tx: Frame, op: Var, given: TensorVar, mask: Var, *args: Var) -> Var:
    return inline_polyfill(tx, combined, [op, given, mask, *args], {})


def combined(op: Callable[..., Any], given: Any, mask: Any, *args: Any) -> Any:
    """The identity of the reduction where the mask is false."""
    if mask is None:
        return given
    known = _ops._input_mask(given, mask=mask)
    return _ops._where(known, given, _ops._reduction_identity(op.__name__, given, *args))
