"""`x[i] = v` where tensors without dimensions stand among the indices: eager reads the numbers and
writes into a view of `x`.

The graph writes at an index of one element instead, without reading. Where the program would catch
the error of a number out of range, the graph breaks. Of what is written and what is read, the
operator takes no two tensors in one memory, other than eager's copy.
"""

from __future__ import annotations

from typing import Any

import torch

from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.graph import storage_of
from dynamo.symbolic.core.table import rule
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.python.handlers import catches
from dynamo.symbolic.python.lists import TupleVar
from dynamo.symbolic.shapes.numbers import SymbolicNumber
from dynamo.symbolic.tensors.memory import guard_apart
from dynamo.symbolic.tensors.picking import as_known, is_number, note_put_back, with_numbers_first
from dynamo.symbolic.tensors.state import tensor_state
from dynamo.symbolic.tensors.tensor import TensorVar
from dynamo.symbolic.tensors.torch_functions import in_transform, put_in_graph

NONE = ConstVar(None)


@rule(torch.Tensor.__setitem__, TensorVar, (TensorVar, TupleVar))
def place(tx: Frame, var: TensorVar, key: Var, value: Var) -> Var | None:
    keys = key.items if isinstance(key, TupleVar) else [key]
    items = [item if in_transform() else as_known(tx, item) for item in keys]
    if items != keys:
        key = TupleVar(items) if isinstance(key, TupleVar) else items[0]
        return tx.trace.call(tx, torch.Tensor.__setitem__, var, key, value)
    if not can_place(tx, var, items) or any(map(catches, tx.trace.frames)):
        return None
    numbers = [item for item in items if isinstance(item, TensorVar)]
    target, given = with_numbers_first(tx, var, items), value
    if isinstance(value, TensorVar):
        if not fits(value.fake, target.as_fake(), len(numbers)):
            return None
        if not are_apart(tx, var, value):
            return None
        value = tx.trace.call(tx, torch.Tensor.to, value, ConstVar(var.fake.dtype))
    elif not isinstance(value, ConstVar | SymbolicNumber) or (
        value.python_type() not in (bool, int, float)
    ):
        return None
    rows = [tx.trace.call(tx, torch.Tensor.reshape, item, ConstVar(1)) for item in numbers]
    put_in_graph(tx, torch.Tensor.__setitem__, [target, TupleVar(rows), value], {})
    note_put_back(tx.trace, var, key, given)
    return NONE


def can_place(tx: Frame, var: TensorVar, items: list[Var]) -> bool:
    """True where the keys are numbers and slices, and the tensor can be written to."""
    fake, numbers = var.fake, [item for item in items if isinstance(item, TensorVar)]
    if not numbers or not all(map(is_number, numbers)) or len(items) > fake.dim():
        return False
    if any(item.python_type() not in (int, slice) for item in items if item not in numbers):
        return False
    if in_transform() or (fake.requires_grad and fake.is_leaf and torch.is_grad_enabled()):
        return False
    if any(stride == 0 for stride in fake.stride()):  # eager refuses to write there
        return False
    if fake.dtype is torch.int64 and not all(are_apart(tx, var, item) for item in numbers):
        return False
    return all(item.fake.device == fake.device for item in numbers)


def are_apart(tx: Frame, var: TensorVar, other: TensorVar) -> bool:
    """Whether two tensors share no memory. Guarded for those that come from outside."""
    storages = {storage_of(var.fake), storage_of(other.fake)}
    outside = [item for item in (var, other) if item.source is not None]
    given = [item for item in dict.fromkeys((*tensor_state(tx.trace).tensor_inputs, *outside))
             if storage_of(item.fake) in storages]
    if len(storages) < 2 or len({storage_of(item.fake) for item in given}) < 2:
        return len(storages) == 2
    return guard_apart(tx.trace, given)



def fits(value: Any, target: Any, count: int) -> bool:
    """True for a value that is converted and spread without a warning or an error.

    count: how many of the target's first dimensions the numbers are for.
    """
    is_known = value.device == target.device and value.layout == target.layout == torch.strided
    if not is_known or value.dtype.is_complex != target.dtype.is_complex:
        return False
    wanted = target.shape[count:]
    return value.dim() <= len(wanted) and all(
        mine in (1, other)
        for mine, other in zip(reversed(value.shape), reversed(wanted), strict=False))
