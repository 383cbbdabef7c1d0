"""`torch.overrides.has_torch_function` and its relatives: whether an argument overrides torch's
functions. Tensors and plain values do not; what is an object of the program's says so itself."""

from __future__ import annotations

import torch

from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.lookup import find_in_mro
from dynamo.symbolic.core.table import rule
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.python.classes import ClassVar
from dynamo.symbolic.python.objects import ObjectVar

NAME = "__torch_function__"
PLAIN = (torch.Tensor, torch.nn.Parameter)
TURNED_OFF = torch._C._disabled_torch_function_impl


def overrides(tx: Frame, var: Var) -> bool:
    """True for a value with a `__torch_function__` of its own."""
    if var.is_constant():
        return False
    cls = var.cls if isinstance(var, ClassVar) else var.python_type()
    if cls in PLAIN or find_in_mro(cls, NAME) is TURNED_OFF:
        return False
    return find_in_mro(cls, NAME) is not None if issubclass(cls, torch.Tensor) else (
        isinstance(var, ObjectVar | ClassVar) and var.has_attr(tx, NAME))


def any_overrides(tx: Frame, args: list[Var]) -> Var:
    enabled = torch._C._is_torch_function_enabled()  # guarded with the thread's state
    return ConstVar(enabled and any([overrides(tx, var) for var in args]))


@rule(torch.overrides.has_torch_function)
def has_torch_function(tx: Frame, args: Var) -> Var:
    return any_overrides(tx, args.unpack(tx))


@rule(torch.overrides.has_torch_function_unary)
def has_torch_function_unary(tx: Frame, arg: Var) -> Var:
    return any_overrides(tx, [arg])


@rule(torch.overrides.has_torch_function_variadic)
def has_torch_function_variadic(tx: Frame, *args: Var) -> Var:
    return any_overrides(tx, list(args))
