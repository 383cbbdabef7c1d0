"""torch's `out_dtype`: an operator whose result has a dtype that the caller names.

Traced as what it does to tensors: their operator in a dtype that holds operands and result, and for
a GEMM of int8 into int32 on a GPU the library's own. What it refuses breaks the graph.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from dynamo.base.subclasses import is_wrapper
from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.table import late_rule
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.python.functions import BuiltinVar, inline_polyfill
from dynamo.symbolic.tensors.tensor import TensorVar

aten = torch.ops.aten
# Of those that torch allows, the ones whose operands are tensors alone.
OPERATORS = (aten.mm.default, aten.linear.default)
HAS_GEMM_OF_INT8 = ("cuda", "xpu")  # as torch decides


@late_rule("out_dtype", "OutDtypeOperator.__call__")
def out_dtype(tx: Frame, operator: Var, op: Var, dtype: Var, *args: Var) -> Var | None:
    """None for what its own code has to say something about."""
    tensors = [arg for arg in args if isinstance(arg, TensorVar)]
    if not isinstance(op, BuiltinVar) or op.value not in OPERATORS or len(tensors) != len(args):
        return None
    fakes = [arg.fake for arg in tensors]
    if any(x.requires_grad or x.dim() == 0 or is_wrapper(x) for x in fakes):
        return None
    return inline_polyfill(tx, in_dtype, [op, dtype, *args], {})


def in_dtype(op: Any, dtype: torch.dtype, *args: torch.Tensor) -> torch.Tensor:
    """The operator's result in a dtype."""
    of_bytes = all(arg.dtype is torch.int8 and arg.device.type in HAS_GEMM_OF_INT8 for arg in args)
    if op is aten.mm.default and dtype is torch.int32 and of_bytes:
        return torch._int_mm(*args)
    held = functools.reduce(torch.promote_types, [arg.dtype for arg in args], dtype)
    result: torch.Tensor = op(*[arg.to(held) for arg in args])
    return result.to(dtype)
