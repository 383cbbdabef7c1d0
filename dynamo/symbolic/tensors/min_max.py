"""`max(x, 0.5)` and `min` of a tensor without dimensions and a number: Python gives one of the two
objects, as the values tell.

The graph goes on with a `Extreme`, which knows both. Beside a tensor (`t * max(x, 0.5)`) its value
is all that counts: a choice in the graph. Where the program asks which object it is, or keeps it,
the trace begins again with a break in that place.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, NoReturn

import torch

from dynamo.base.errors import Break, RestartTrace
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.table import first_rule
from dynamo.symbolic.core.var import ObservedException, Var
from dynamo.symbolic.tensors.held import HeldNumber
from dynamo.symbolic.tensors.tensor import TensorVar
from dynamo.symbolic.tensors.torch_functions import in_transform

FLOATS = (torch.float32, torch.float64)
MOST = 2**53  # ints up to here are the same in double precision
FIRST = {"max": operator.gt, "min": operator.lt}  # whether a later one is better
# Of numbers alone they give numbers; all are the same of a number and of a tensor with its value.
ARITHMETIC = [operator.add, operator.sub, operator.mul, operator.truediv]
IN_PLACE = [operator.iadd, operator.isub, operator.imul, operator.itruediv]
COMPARISONS = [operator.gt, operator.ge, operator.lt, operator.le, operator.eq, operator.ne]
NAMES = "add sub mul div true_divide clamp clamp_min clamp_max".split()
FUNCTIONS = [getattr(owner, name) for owner in (torch, torch.Tensor) for name in NAMES]
METHODS = [getattr(torch.Tensor, name) for name in "add_ sub_ mul_ div_ clamp_".split()]


@dataclass(eq=False)
class Parts:
    """condition: a tensor of one bool, whether it is the tensor. made_at: the step that made it."""

    condition: Var
    tensor: TensorVar
    number: ConstVar
    made_at: int


class Extreme(Var):
    """One of a tensor and a number; see the module."""

    hides_identity = True

    def __init__(self, parts: Parts) -> None:
        super().__init__()
        self.parts = parts

    def describe(self) -> str:
        return f"{self.parts.tensor!r} or {self.parts.number!r}"

    def look(self) -> NoReturn:
        """Errors: RestartTrace, always: which of the two it is shows behind a break only."""
        reason = Break("data_dependent_branch", repr(self.parts.condition))
        raise RestartTrace(self.parts.made_at, reason)

    def python_type(self) -> type:
        self.look()

    def as_constant(self) -> Any:
        self.look()

    def as_proxy(self) -> Any:
        self.look()

    def as_fake(self) -> Any:
        self.look()

    def truth(self, tx: Frame) -> bool:
        self.look()

    def get_attr(self, tx: Frame, name: str) -> Var:
        self.look()

    def set_attr(self, tx: Frame, name: str, value: Var) -> None:
        self.look()

    def del_attr(self, tx: Frame, name: str) -> None:
        self.look()

    def call(self, tx: Frame, args: list[Var], kwargs: dict[str, Var]) -> Var:
        self.look()

    def call_method(self, tx: Frame, name: str, args: list[Var], kwargs: dict[str, Var]) -> Var:
        self.look()

    def iterate(self, tx: Frame) -> Var:
        self.look()

    def next_item(self, tx: Frame) -> Var:
        self.look()

    def hash_key(self, tx: Frame) -> Hashable:
        self.look()

    def is_same(self, tx: Frame, other: Var) -> bool:
        if self is other:
            return True
        if isinstance(other, ConstVar) and other.python_type() not in (int, float):
            return False
        self.look()


def extreme(tx: Frame, name: str, args: tuple[Var, ...]) -> Extreme | None:
    """`min(a, b)` or `max(a, b)`; None where they are not a tensor and a number."""
    if len(args) != 2 or in_transform():
        return None
    left, right = args
    tensor, number = (left, right) if isinstance(left, TensorVar) else (right, left)
    if not _is_plain(tx, tensor) or not _is_plain_number(number):
        return None
    assert isinstance(tensor, TensorVar) and isinstance(number, ConstVar)
    condition = tx.trace.call(tx, FIRST[name], right, left)
    if tensor is left:
        condition = tx.trace.call(tx, torch.logical_not, condition)
    return Extreme(Parts(condition, tensor, number, tx.step_at_start))


def _is_plain(tx: Frame, var: Var) -> bool:
    """A tensor of one float, whose value the trace does not know."""
    if not isinstance(var, TensorVar) or isinstance(var, HeldNumber):
        return False
    if var.fake.dim() or var.fake.dtype not in FLOATS or var.fake.requires_grad:
        return False
    is_known = tx.trace.world.constant_of(var.fake) is not None
    return var.python_type() is torch.Tensor and not is_known


def _is_plain_number(var: Var) -> bool:
    if type(var) is not ConstVar or var.python_type() not in (int, float):
        return False
    return var.python_type() is float or abs(var.as_constant()) <= MOST


def beside(tx: Frame, function: Any, args: list[Var], kwargs: dict[str, Var]) -> Var | None:
    """A function of two arguments, one of them an extreme; None where none is."""
    given = [*args, *kwargs.values()]
    found = [arg for arg in given if isinstance(arg, Extreme)]
    if not found:
        return None
    others = [arg for arg in given if not isinstance(arg, Extreme)]
    if len(found) != 1 or len(others) != 1:
        found[0].look()
    if _is_plain_number(others[0]):
        return _with_number(tx, function, args, found[0])
    value = _value_beside(tx, found[0], others[0])
    return tx.trace.call_real(
        tx, function, [value if arg is found[0] else arg for arg in args],
        {name: value if arg is found[0] else arg for name, arg in kwargs.items()})  # fmt: skip


def _with_number(tx: Frame, function: Any, args: list[Var], extreme: Extreme) -> Var:
    """Again one of a tensor and a number."""
    parts = extreme.parts
    if function not in ARITHMETIC or parts.tensor.fake.requires_grad:
        extreme.look()

    def of(value: Var) -> Var:
        given = [value if arg is extreme else arg for arg in args]
        return tx.trace.call_real(tx, function, given, {})

    try:
        number = of(parts.number)
    except ObservedException:  # a division by zero, where it is the number
        extreme.look()
    tensor = of(parts.tensor)
    if not isinstance(tensor, TensorVar) or not _is_plain_number(number):
        extreme.look()
    assert isinstance(number, ConstVar)
    return Extreme(Parts(parts.condition, tensor, number, parts.made_at))


def _value_beside(tx: Frame, extreme: Extreme, other: Var) -> Var:
    """The value as a tensor, where results beside `other` do not tell it from the number: they have
    the dtype of `other`, and no gradient goes to the extreme."""
    tensor, trace = extreme.parts.tensor, tx.trace
    if not isinstance(other, TensorVar) or isinstance(other, HeldNumber) or in_transform():
        extreme.look()
    is_float = other.fake.dtype in FLOATS and other.fake.device == tensor.fake.device
    is_alike = other.fake.dtype is tensor.fake.dtype
    if not is_float or tensor.fake.requires_grad or not (is_alike or other.fake.dim()):
        extreme.look()
    if other.python_type() not in (torch.Tensor, torch.nn.Parameter):
        extreme.look()
    if not is_alike:
        tensor = trace.call(tx, torch.Tensor.to, tensor, trace.constant(torch.float64))  # type: ignore[assignment]
    return trace.call(tx, torch.where, extreme.parts.condition, tensor, extreme.parts.number)


def _register(function: Callable[..., Any], *kinds: type[Var]) -> None:
    @first_rule(function, *kinds)
    def of_extreme(tx: Frame, *args: Var, **kwargs: Var) -> Var | None:
        return beside(tx, function, list(args), kwargs)


for _function in (*ARITHMETIC, *COMPARISONS):
    _register(_function, Extreme, Var)
    _register(_function, Var, Extreme)
for _function in IN_PLACE:  # of a tensor; `w *= 2` writes into one if it is one
    _register(_function, TensorVar, Extreme)
for _function in (*FUNCTIONS, *METHODS):
    _register(_function, TensorVar)
