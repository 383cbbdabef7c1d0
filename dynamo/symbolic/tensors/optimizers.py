"""Optimizers: numbers that eager reads out of their tensors stay in the graph.

Step counters, and learning rates that are tensors, become `HeldNumber`s: in double precision, as
eager's Python floats are, so that the parameters come out with the same bits.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import _get_value

from dynamo.base.errors import Break
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.table import rule
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.python.lists import SequenceVar
from dynamo.symbolic.tensors.held import HeldNumber
from dynamo.symbolic.tensors.tensor import TensorVar

# Torch's optimizers, and what stands in for some of them (`optimizer_steps.py`).
FOLDERS = (os.path.dirname(torch.optim.__file__), os.path.dirname(__file__))


@rule(_get_value)
def counter_value(tx: Frame, value: Var) -> Var | None:
    """`value.item()` of a tensor, as a held number; a number as it is."""
    if not tx.code.co_filename.startswith(FOLDERS):
        return None  # what other programs do with the number is not known
    if not isinstance(value, TensorVar) or isinstance(value, HeldNumber):
        return value
    if not value.fake.dtype.is_floating_point or value.fake.dim():
        return None
    detached = tx.trace.call(tx, torch.Tensor.detach, value)
    made = tx.trace.call(tx, torch.Tensor.double, detached)
    assert isinstance(made, TensorVar)
    return HeldNumber.of(made)


@rule(torch.as_tensor, HeldNumber)
def as_tensor(tx: Frame, /, value: Var, **kwargs: Var) -> Var | None:
    """A number becomes a tensor of the default dtype."""
    if any(name != "device" for name in kwargs):
        return None
    dtype = tx.trace.constant(torch.get_default_dtype())
    return tx.trace.call_real(tx, torch.Tensor.to, [value], {**kwargs, "dtype": dtype})


@rule(torch.full_like, TensorVar, TensorVar)
def full_like(tx: Frame, like: Var, value: Var) -> Var | None:
    """`torch.full_like(x, lr)` where eager would read the learning rate."""
    number = _plain(tx, like, value)
    if number is None:
        return None
    empty = tx.trace.call(tx, torch.empty_like, like)
    return tx.trace.call(tx, torch.Tensor.fill_, empty, number)


# -- operators with a factor that is a tensor ---------------------------------------------------


def _plain(tx: Frame, target: Var, value: Var) -> Var | None:
    """The number in a tensor, without its history; None where `value` is no such tensor."""
    if not isinstance(value, TensorVar) or not isinstance(target, TensorVar):
        return None
    plain = value.fake.dim() == 0 and value.fake.dtype.is_floating_point
    if not plain or target.fake.dtype not in (torch.float32, torch.float64):
        return None
    number = tx.trace.call(tx, torch.Tensor.detach, value)
    if target.fake.dim():
        return number
    return tx.trace.call(tx, torch.Tensor.to, number, tx.trace.constant(target.fake.dtype))


def _scaled(combine: Any) -> Callable[..., Var | None]:
    """`target += combine(value * left, right)`."""

    def handle(
        tx: Frame, target: Var, left: Var, right: Var, *,
        value: Var = ConstVar(1),  # noqa: B008
    ) -> Var | None:
        factor = _plain(tx, target, value)
        if factor is None:
            return None
        scaled = tx.trace.call(tx, torch.Tensor.mul, left, factor)
        combined = tx.trace.call(tx, combine, scaled, right)
        return tx.trace.call(tx, torch.Tensor.add_, target, combined)

    return handle


def _added(real: Any) -> Callable[..., Var | None]:
    """`target + alpha * other`, in place or not."""

    def handle(
        tx: Frame, target: Var, other: Var, *, alpha: Var = ConstVar(1)  # noqa: B008
    ) -> Var | None:
        factor = _plain(tx, target, alpha)
        if factor is None:
            return None
        return tx.trace.call(tx, real, target, tx.trace.call(tx, torch.Tensor.mul, other, factor))

    return handle


SCALED: dict[Any, Callable[..., Var | None]] = {
    torch.Tensor.addcdiv_: _scaled(torch.Tensor.div),
    torch.Tensor.addcmul_: _scaled(torch.Tensor.mul),
}
ADDED: dict[Any, Callable[..., Var | None]] = {
    real: _added(real)
    for real in (torch.Tensor.add_, torch.Tensor.add, torch.Tensor.sub_, torch.Tensor.sub)
}
for operation, handler in SCALED.items():
    rule(operation, TensorVar, TensorVar, TensorVar)(handler)
for operation, handler in ADDED.items():
    rule(operation, TensorVar, TensorVar)(handler)


def _each(
    tx: Frame, add: Callable[..., Var | None], lists: list[Var], name: str, numbers: Var
) -> Var | None:
    """`add` for each item of lists, with one tensor for all, or a tensor or list of numbers."""
    items = [tensors.unpack(tx) for tensors in lists]
    if isinstance(numbers, TensorVar) and not numbers.fake.dim():
        values: list[Var] = [numbers] * len(items[0])
    else:
        values = numbers.unpack(tx)
    if not all(isinstance(value, TensorVar) for value in values):
        return None
    if any(len(tensors) != len(values) for tensors in items):
        return None
    for *tensors, value in zip(*items, values, strict=True):
        if add(tx, *tensors, **{name: value}) is None:
            raise Break("item", repr(numbers))
    return ConstVar(None)


@rule(torch._foreach_addcdiv_, SequenceVar, SequenceVar, SequenceVar, (TensorVar, SequenceVar))
def add_quotients(tx: Frame, *args: Var) -> Var | None:
    return _each(tx, SCALED[torch.Tensor.addcdiv_], list(args[:3]), "value", args[3])


@rule(torch._foreach_addcmul_, SequenceVar, SequenceVar, SequenceVar, (TensorVar, SequenceVar))
def add_products(tx: Frame, *args: Var) -> Var | None:
    return _each(tx, SCALED[torch.Tensor.addcmul_], list(args[:3]), "value", args[3])


@rule(torch._foreach_add_, SequenceVar, SequenceVar)
def add_multiples(tx: Frame, *args: Var, alpha: Var = ConstVar(1)) -> Var | None:  # noqa: B008
    if not isinstance(alpha, TensorVar):
        return None
    return _each(tx, ADDED[torch.Tensor.add_], list(args), "alpha", alpha)
