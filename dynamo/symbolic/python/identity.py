"""Identity as a value: `id(x)`, which only serves as a key or for comparison, and `object()`."""

from __future__ import annotations

import operator
from collections.abc import Hashable, Iterable
from typing import Any

import torch

from dynamo.base.errors import Break
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.identities import Identities
from dynamo.symbolic.core.table import first_rule, rule
from dynamo.symbolic.core.unguarded import Unguarded
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.python.objects import ObjectVar

SINGLETONS = (type(None), bool)


class IdVar(Var):
    """`id(target)`: its number is unknown until the program runs; equal only to the same id."""

    def __init__(self, target: Var) -> None:
        super().__init__()
        self.target = target

    def describe(self) -> str:
        return f"the id of {self.target!r}"

    def python_type(self) -> type:
        return int

    def children(self) -> Iterable[Var]:
        return (self.target,)

    def truth(self, tx: Frame) -> bool:
        return True

    def number(self, tx: Frame) -> int | None:
        """The id of a module from outside, which is guarded to be the same one; None for others."""
        target = self.target
        if not isinstance(target, ObjectVar) or not issubclass(target.cls, torch.nn.Module):
            return None
        if target.real is None or target.source is None:
            return None
        tx.trace.guard("ID", target.source, target.real)
        tx.trace.state(Unguarded).refuse("it knows the id() of a module")
        return id(target.real)

    def hash_key(self, tx: Frame) -> Hashable:
        number = self.number(tx)
        if number is not None:
            return ("constant", number)
        tx.trace.state(Identities).note_key("id")
        if isinstance(self.target, ConstVar) and type(self.target.value) in SINGLETONS:
            return ("id", "constant", self.target.value)
        if isinstance(self.target, ConstVar):
            return ("id", ConstantId(self.target))
        return ("id", self.target)


class ConstantId:
    """The id of a constant as a key. Equal constants in two places may be one object or not."""

    __slots__ = ("target",)

    def __init__(self, target: ConstVar) -> None:
        self.target = target

    def __hash__(self) -> int:
        return hash(likeness(self.target.value))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ConstantId):
            return False
        if self.target is other.target:
            return True
        mine, theirs = self.target.value, other.target.value
        if type(mine) is type(theirs) and likeness(mine) == likeness(theirs):
            raise Break("identity_of_constant", f"{self.target!r} in two places")
        return False


def likeness(value: Any) -> Any:
    """What two constants share that may be one object: the text, which Python does not write of
    every int."""
    return value if type(value) is int else repr(value)


@rule(id)
def identity_of(tx: Frame, target: Var) -> Var | None:
    """`id(target)`."""
    tx.trace.state(Identities).takes_ids = True
    if isinstance(target, ConstVar):
        return IdVar(target)
    mutable = issubclass(target.python_type(), set)  # each evaluation makes another
    if target.is_constant() and target.source is None and not mutable:
        raise Break("identity_of_constant", repr(target))
    if target.source is not None:
        tx.trace.state(Identities).guard_id(target)
    return IdVar(target)


@first_rule(operator.eq, IdVar, IdVar)
def same_identity(tx: Frame, left: IdVar, right: IdVar) -> Var | None:
    """`id(a) == id(b)`."""
    return tx.trace.call(tx, operator.is_, left.target, right.target)


@first_rule(operator.ne, IdVar, IdVar)
def other_identity(tx: Frame, left: IdVar, right: IdVar) -> Var | None:
    """`id(a) != id(b)`."""
    return tx.trace.call(tx, operator.is_not, left.target, right.target)


@first_rule(operator.eq, IdVar, ConstVar)
def is_number(tx: Frame, left: IdVar, right: ConstVar) -> Var | None:
    """`id(module) == number`."""
    number = left.number(tx)
    return None if number is None else ConstVar(number == right.value)


@first_rule(operator.eq, ConstVar, IdVar)
def number_is(tx: Frame, left: ConstVar, right: IdVar) -> Var | None:
    return is_number(tx, right, left)


@first_rule(operator.ne, IdVar, ConstVar)
def is_other_number(tx: Frame, left: IdVar, right: ConstVar) -> Var | None:
    """`id(module) != number`."""
    number = left.number(tx)
    return None if number is None else ConstVar(number != right.value)


@first_rule(operator.ne, ConstVar, IdVar)
def number_is_not(tx: Frame, left: ConstVar, right: IdVar) -> Var | None:
    return is_other_number(tx, right, left)


@rule(object)
def new_object(tx: Frame) -> Var | None:
    """`object()`."""
    return ObjectVar(object)
