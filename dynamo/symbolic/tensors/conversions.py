"""Built-in functions of tensors: `int`, `float`, `complex`, `str`, `format`, `min` and `max`."""

from __future__ import annotations

import torch

from dynamo.base.errors import Break
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.table import first_rule
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.shapes.numbers import is_number
from dynamo.symbolic.shapes.open_text import UnreadText
from dynamo.symbolic.tensors import held
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
    raise Break("item", repr(var))


@first_rule([format], TensorVar)
def format_tensor(tx: Frame, tensor: Var, spec: Var = ConstVar("")) -> Var | None:  # noqa: B008
    plain = tensor.python_type() is torch.Tensor and tensor.fake.device.type != "meta"  # type: ignore[attr-defined]
    if not plain or torch._C._functorch.get_dynamic_layer_stack_depth():
        return None
    if not spec.is_constant() or spec.as_constant() != "":
        return None
    return UnreadText(tx.step_at_start, repr(tensor))


@first_rule([min])
def min_of_held(tx: Frame, /, *args: Var, **kwargs: Var) -> Var | None:
    return None if kwargs else extreme(tx, "min", args)


@first_rule([max])
def max_of_held(tx: Frame, /, *args: Var, **kwargs: Var) -> Var | None:
    return None if kwargs else extreme(tx, "max", args)


def extreme(tx: Frame, name: str, args: tuple[Var, ...]) -> Var | None:
    """`min(a, b)` and `max(a, b)` of a tensor of no dimension; None where Python decides.

    Python compares, and gives one of the two objects. Where a graph break is an error, the value
    of that is computed in the graph: a tensor, also where a number wins.
    """
    found = held.extreme(tx, name, args)
    if found is not None or len(args) != 2 or not tx.trace.context.settings.fullgraph:
        return found
    tensors = [arg for arg in args if isinstance(arg, TensorVar)]
    if not tensors or not all(isinstance(arg, TensorVar) or is_number(arg) for arg in args):
        return None
    if len({arg.fake.dtype for arg in tensors}) > 1 or any(
        arg.fake.dim() or not arg.fake.dtype.is_floating_point for arg in tensors
    ):
        return None
    first, second = args
    if isinstance(second, TensorVar):
        compare, pair = {"max": torch.gt, "min": torch.lt}[name], [second, first]
    else:  # a number comes last
        compare, pair = {"max": torch.lt, "min": torch.gt}[name], [first, second]
    wins = tx.trace.call_real(tx, compare, pair, {})
    return tx.trace.call_real(tx, torch.where, [wins, second, first], {})
