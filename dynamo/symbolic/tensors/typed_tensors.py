"""Constructors named after a type: `torch.FloatTensor([1.5])`, `torch.LongTensor(2, 3)`, and
`torch.Tensor(data)`.

In: sizes, or lists and arrays with numbers. Out: what torch.tensor, torch.from_numpy or torch.empty
give. `torch.Tensor(x)` is another tensor in the memory of the tensor x. Other types, and sizes in a
tuple, are left to Python.
"""

from __future__ import annotations

from typing import Any

import numpy
import torch

from dynamo.guards.sources import CallSource, ObjectSource
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.table import rule
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.python.classes import ClassVar
from dynamo.symbolic.python.lists import ListVar, SizeVar, TupleVar
from dynamo.symbolic.tensors.tensor import TensorVar

TYPES: list[Any] = [
    torch.FloatTensor, torch.DoubleTensor, torch.HalfTensor, torch.BFloat16Tensor,
    torch.LongTensor, torch.IntTensor, torch.ShortTensor, torch.CharTensor, torch.ByteTensor,
    torch.BoolTensor,
]
CPU = "cpu"
DEVICE: Any = torch._C._get_default_device


def register(kind: Any) -> None:
    @rule(kind)
    def typed(tx: Frame, /, *args: Var, **kwargs: Var) -> Var | None:
        return None if kwargs else make(tx, kind.dtype, args)


@rule(torch.Tensor.type, TensorVar)
def change_type(
    tx: Frame, var: TensorVar, dtype: Var = ConstVar(None), *rest: Var, **kwargs: Var  # noqa: B008
) -> Var | None:
    """`x.type(torch.HalfTensor)`: a graph has the name, fx can't print the class."""
    if not isinstance(dtype, ClassVar):
        return None
    name = f"{dtype.cls.__module__}.{dtype.cls.__name__}"
    return tx.trace.call(tx, torch.Tensor.type, var, ConstVar(name), *rest, **kwargs)


@rule(torch.Tensor)
def untyped(tx: Frame, /, *args: Var, **kwargs: Var) -> Var | None:
    """Of the default type, on the default type's device."""
    if kwargs or DEVICE() != CPU:
        return None
    made: Var | None
    if len(args) == 1 and is_plain(args[0]):
        made = tx.trace.call(tx, torch.ops.aten.alias.default, args[0])
    else:
        made = make(tx, torch.get_default_dtype(), args)
    if made is not None:
        asked = ObjectSource(DEVICE, "torch._C._get_default_device")
        tx.trace.guard("CONST", CallSource(asked), CPU)
    return made


def make(tx: Frame, dtype: torch.dtype, args: tuple[Var, ...]) -> Var | None:
    options: dict[str, Var] = {"dtype": ConstVar(dtype), "device": ConstVar(CPU)}
    if all(is_size(arg) for arg in args):
        shape = TupleVar(args or [ConstVar(0)])
        return tx.trace.call(tx, torch.empty, shape, **options)
    if len(args) != 1:
        return None
    if issubclass(args[0].python_type(), numpy.ndarray):
        shared = tx.trace.call(tx, torch.from_numpy, args[0])
        return tx.trace.call(tx, torch.Tensor.to, shared, ConstVar(dtype))
    if isinstance(args[0], ListVar | TupleVar) and not isinstance(args[0], SizeVar):
        return tx.trace.call(tx, torch.tensor, args[0], **options)
    return None


def is_plain(var: Var) -> bool:
    """A tensor of which torch.Tensor takes all as it is, also the dtype."""
    return isinstance(var, TensorVar) and var.fake.device.type == CPU and (
        var.python_type() in (torch.Tensor, torch.nn.Parameter))


def is_size(var: Var) -> bool:
    return var.is_constant() and type(var.as_constant()) is int


for _kind in TYPES:
    register(_kind)
