"""Numbers that eager reads out of tensors (step counters, learning rates); they stay in the graph.

A `HeldNumber` is a tensor of no dimension in double precision, as Python's floats are; what is
computed of such numbers alone is one again. Beside a tensor of no dimension it takes that one's
dtype, as Python's numbers do.
"""

from __future__ import annotations

from typing import Any

import torch

from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.python.lists import SequenceVar
from dynamo.symbolic.shapes.numbers import is_number
from dynamo.symbolic.tensors.tensor import TensorVar

ARITHMETIC = frozenset(
    """add sub mul truediv div pow neg radd rsub rmul rtruediv rdiv rpow sqrt gt ge lt le eq ne
    clamp""".split()
)


class HeldNumber(TensorVar):
    """See the module."""

    @staticmethod
    def of(var: TensorVar) -> HeldNumber:
        return HeldNumber(var.node, var.fake)


def held_numbers(args: list[Var], kwargs: dict[str, Var]) -> bool:
    """True where one of the arguments is a held number, or a list with one."""
    return any(
        isinstance(arg, HeldNumber)
        or isinstance(arg, SequenceVar) and any(isinstance(item, HeldNumber) for item in arg.items)
        for arg in (*args, *kwargs.values())
    )


def gives_number(function: Any, args: list[Var]) -> bool:
    """True where the result of a function of held numbers is one."""
    tensors = [arg for arg in args if isinstance(arg, TensorVar)]
    name = getattr(function, "__name__", "").strip("_")
    return name in ARITHMETIC and all(isinstance(arg, HeldNumber) for arg in tensors)


def with_dtypes(tx: Frame, args: list[Var]) -> list[Var]:
    """The arguments, held numbers in the dtype of the tensor of no dimension beside them."""
    if any(isinstance(arg, SequenceVar) for arg in args):
        return _lists_with_dtypes(tx, args)
    beside = [arg for arg in args if isinstance(arg, TensorVar) and not isinstance(arg, HeldNumber)]
    if not beside or any(arg.fake.dim() for arg in beside):
        return args
    return [in_dtype_of(tx, arg, beside[0]) for arg in args]


def _lists_with_dtypes(tx: Frame, args: list[Var]) -> list[Var]:
    first = args[0]
    if not isinstance(first, SequenceVar):
        return args
    made: list[Var] = []
    for arg in args:
        if isinstance(arg, SequenceVar) and len(arg.items) == len(first.items):
            pairs = zip(arg.items, first.items, strict=True)
            arg = arg.clone([in_dtype_of(tx, item, other) for item, other in pairs])
        made.append(arg)
    return made


def in_dtype_of(tx: Frame, var: Var, other: Var) -> Var:
    """A held number in the dtype of a tensor of no dimension; anything else as it is."""
    if not isinstance(var, HeldNumber) or isinstance(other, HeldNumber) or (
        var.fake.dtype is torch.bool
    ):
        return var
    if not isinstance(other, TensorVar) or other.fake.dim():
        return var
    dtype = other.fake.dtype if other.fake.dtype.is_floating_point else torch.get_default_dtype()
    return tx.trace.call(tx, torch.Tensor.to, var, tx.trace.constant(dtype))


def extreme(tx: Frame, name: str, args: tuple[Var, ...]) -> Var | None:
    """`max(1, counter)` and `min(counter, 1)`; None for anything else."""
    held = [arg for arg in args if isinstance(arg, HeldNumber)]
    bounds = [arg for arg in args if is_number(arg)]
    if len(args) != 2 or len(held) != 1 or len(bounds) != 1:
        return None
    limit = {"max": "min", "min": "max"}[name]
    return tx.trace.call_real(tx, torch.Tensor.clamp, list(held), {limit: bounds[0]})
