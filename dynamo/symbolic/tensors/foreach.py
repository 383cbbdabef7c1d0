"""Lists of tensors, as `clip_grad_norm_` and the optimizers group them for `torch._foreach_*`."""

from __future__ import annotations

import torch

from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.table import rule
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.python.dicts import DictVar
from dynamo.symbolic.python.lists import ListVar, TupleVar
from dynamo.symbolic.tensors.tensor import TensorVar


@rule(torch._C._group_tensors_by_device_and_dtype)
def group_tensors(
    tx: Frame, lists: Var, with_indices: Var = ConstVar(False)  # noqa: B008
) -> Var | None:
    """One group of all tensors where their device and dtype agree; torch's own order of several
    groups is not known."""
    columns = [column.unpack(tx) for column in lists.unpack(tx)]
    tensors = [var for var in columns[0] if isinstance(var, TensorVar)] if columns else []
    kinds = {(var.fake.device, var.fake.dtype) for var in tensors}
    if len(kinds) != 1 or len(tensors) != len(columns[0]):
        return None
    count = len(tensors) if with_indices.truth(tx) else 0
    members = ListVar([ListVar(list(column)) for column in columns])
    group = TupleVar([members, ListVar([tx.trace.constant(index) for index in range(count)])])
    return DictVar.from_pairs(tx, [(tx.trace.constant(kinds.pop()), group)])
