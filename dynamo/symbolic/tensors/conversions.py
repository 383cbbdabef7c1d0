"""Built-in functions of tensors: `int`, `float`, `complex`, `str`, `format`, `min` and `max`."""

from __future__ import annotations

import torch

from dynamo.base.errors import Break
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.table import first_rule
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.shapes.symbolic_text import UnreadText
from dynamo.symbolic.tensors import held
from dynamo.symbolic.tensors.min_max import extreme
from dynamo.symbolic.tensors.tensor import TensorVar


@first_rule([int], TensorVar)
def int_of_tensor(tx: Frame, var: Var) -> Var:
    return tx.trace.call(tx, torch.Tensor.__int__, var)


@first_rule([float], TensorVar)
def float_of_tensor(tx: Frame, var: Var) -> Var:
    return tx.trace.call(tx, torch.Tensor.__float__, var)


@first_rule([complex], TensorVar)
def complex_of_tensor(tx: Frame, var: Var, *rest: Var) -> Var:
    raise Break("item", repr(var))


@first_rule([int, float, complex])
def number(tx: Frame, /, *args: Var, **kwargs: Var) -> Var | None:
    if len(args) > 1 and any(isinstance(arg, TensorVar) for arg in args):
        raise Break("item", repr(args[0]))
    return None


@first_rule([str, repr, format], TensorVar)
def text(tx: Frame, var: Var, *rest: Var) -> Var:
    raise Break("text_of_tensor", repr(var))


@first_rule([format], TensorVar)
def format_tensor(tx: Frame, tensor: Var, spec: Var = ConstVar("")) -> Var | None:  # noqa: B008
    plain = tensor.python_type() is torch.Tensor and tensor.fake.device.type != "meta"  # type: ignore[attr-defined]
    if not plain or torch._C._functorch.get_dynamic_layer_stack_depth():
        return None
    if not spec.is_constant() or spec.as_constant() != "":
        return None
    return UnreadText(tx.step_at_start, repr(tensor))


@first_rule([min])
def min_of_tensor(tx: Frame, /, *args: Var, **kwargs: Var) -> Var | None:
    return None if kwargs else held.extreme(tx, "min", args) or extreme(tx, "min", args)


@first_rule([max])
def max_of_tensor(tx: Frame, /, *args: Var, **kwargs: Var) -> Var | None:
    return None if kwargs else held.extreme(tx, "max", args) or extreme(tx, "max", args)
