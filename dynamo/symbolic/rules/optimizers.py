"""Optimizers: their step counters are tensors, whose values eager reads as Python numbers.

Here they stay in the graph, as tensors of no dimension in double precision: eager's Python floats
are doubles too, so that the parameters come out with the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.optimizer import _get_value

from dynamo.base.errors import Break
from dynamo.symbolic.rules.table import rule
from dynamo.symbolic.variables.base import Var
from dynamo.symbolic.variables.constant import ConstVar
from dynamo.symbolic.variables.lists import SequenceVar
from dynamo.symbolic.variables.tensor import TensorVar

if TYPE_CHECKING:
    from dynamo.symbolic.machine import SymbolicFrame


@rule(_get_value, TensorVar)
def counter_value(tx: SymbolicFrame, counter: Var) -> Var | None:
    """`counter.item()` as a tensor."""
    assert isinstance(counter, TensorVar)
    if not counter.fake.dtype.is_floating_point or counter.fake.dim():
        return None
    return tx.trace.call(tx, torch.Tensor.double, tx.trace.call(tx, torch.Tensor.detach, counter))


def _add(
    tx: SymbolicFrame, target: Var, left: Var, right: Var, value: Var, combine: Any
) -> Var | None:
    """`target += combine(value * left, right)`."""
    factor = _factor(tx, target, value)
    if factor is None:
        return None
    scaled = tx.trace.call(tx, torch.Tensor.mul, left, factor)
    return tx.trace.call(tx, torch.Tensor.add_, target, tx.trace.call(tx, combine, scaled, right))


@rule(torch.Tensor.addcdiv_, TensorVar, TensorVar, TensorVar)
def add_quotient(
    tx: SymbolicFrame, target: Var, left: Var, right: Var, *, value: Var = ConstVar(1)  # noqa: B008
) -> Var | None:
    """`target += value * left / right` where value is a tensor that eager would read."""
    return _add(tx, target, left, right, value, torch.Tensor.div)


@rule(torch.Tensor.addcmul_, TensorVar, TensorVar, TensorVar)
def add_product(
    tx: SymbolicFrame, target: Var, left: Var, right: Var, *, value: Var = ConstVar(1)  # noqa: B008
) -> Var | None:
    """`target += value * left * right` where value is a tensor that eager would read."""
    return _add(tx, target, left, right, value, torch.Tensor.mul)


@rule(torch._foreach_addcdiv_, SequenceVar, SequenceVar, SequenceVar, TensorVar)
def add_quotients(tx: SymbolicFrame, *args: Var) -> Var | None:
    return _each(tx, add_quotient, *args)


@rule(torch._foreach_addcmul_, SequenceVar, SequenceVar, SequenceVar, TensorVar)
def add_products(tx: SymbolicFrame, *args: Var) -> Var | None:
    return _each(tx, add_product, *args)


def _each(
    tx: SymbolicFrame, add: Callable[..., Var | None],
    targets: Var, left: Var, right: Var, scalars: Var,
) -> Var | None:
    """`add` for each item of lists, with the numbers of all in one tensor."""
    lists = [targets.unpack(tx), left.unpack(tx), right.unpack(tx)]
    numbers = scalars.unpack(tx)
    if any(len(items) != len(numbers) for items in lists):
        return None
    for *tensors, number in zip(*lists, numbers, strict=True):
        if add(tx, *tensors, value=number) is None:
            raise Break("item", repr(scalars))
    return ConstVar(None)


def _factor(tx: SymbolicFrame, target: Var, value: Var) -> Var | None:
    """The number in a tensor, without its history; None where `value` is no such tensor."""
    if not isinstance(value, TensorVar) or not isinstance(target, TensorVar):
        return None
    plain = value.fake.dim() == 0 and value.fake.dtype.is_floating_point
    if not plain or target.fake.dtype not in (torch.float32, torch.float64):
        return None
    return tx.trace.call(tx, torch.Tensor.detach, value)
