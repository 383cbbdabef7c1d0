"""Meshes of devices and placements of `torch.distributed.tensor`: constants of the program.

`==` says all of one, so it is guarded once, when something of it is looked at; what its methods and
attributes give is computed while tracing.
"""

from __future__ import annotations

import inspect
from collections.abc import Hashable
from typing import Any

import torch

from dynamo.base.errors import Break
from dynamo.guards.sources import EqualSource, ObjectSource, SameAs, Source
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Evaluation, Frame
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.core.wrapping import wraps_if
from dynamo.symbolic.python.construction import Construction
from dynamo.symbolic.tensors.constant_objects import (
    GROUPS,
    held,
    is_fixed,
    is_of_distributed,
)
from dynamo.symbolic.tensors.masked_partials import is_masked


class ValueVar(Var):
    """A constant that fx can't write down; operations hold it."""

    is_value = True

    def __init__(self, trace: Evaluation, value: Any, source: Source | None) -> None:
        super().__init__(source)
        self._trace = trace
        self._value = value
        self._guarded = source is None

    @property
    def value(self) -> Any:
        """The object; reading it guards that it is equal to this one."""
        if not self._guarded:
            self._guarded = True
            assert self.source is not None
            self._trace.guard("CONST", EqualSource(self.source, SameAs(self._value)), True)
        return self._value

    def describe(self) -> str:
        return f"an object of class {type(self._value).__qualname__}"

    def python_type(self) -> type:
        return type(self.value)

    def truth(self, tx: Frame) -> bool:
        return bool(self.value)

    def hash_key(self, tx: Frame) -> Hashable:
        return ("value", self.value)

    def is_same(self, tx: Frame, other: Var) -> bool:
        if self is other:
            return True
        if isinstance(other, ValueVar):
            raise Break("identity_of_constant", self.describe())
        return False

    def get_attr(self, tx: Frame, name: str) -> Var:
        found = tx.trace.run_real(lambda: getattr(self.value, name))
        if inspect.ismethod(found) or inspect.isbuiltin(found):
            return ValueMethodVar(self, name)
        return answer(tx, found, f"{name} of {self!r}")

    def call_method(
        self, tx: Frame, name: str, args: list[Var], kwargs: dict[str, Var]
    ) -> Var:
        given = [held(tx.trace, arg) for arg in args]
        named = {key: held(tx.trace, arg) for key, arg in kwargs.items()}
        found = tx.trace.run_real(lambda: getattr(self.value, name)(*given, **named))
        return answer(tx, found, f"{name} of {self!r}")

    def length(self, tx: Frame) -> Var:
        return ConstVar(len(self.value))

    def get_item(self, tx: Frame, key: Var) -> Var:
        return self.call_method(tx, "__getitem__", [key], {})


class ValueMethodVar(Var):
    """A method of such a constant."""

    def __init__(self, receiver: ValueVar, name: str) -> None:
        super().__init__()
        self.receiver, self.name = receiver, name

    def describe(self) -> str:
        return f"the method {self.name} of {self.receiver!r}"

    def python_type(self) -> type:
        return type(getattr(self.receiver.value, self.name))

    def truth(self, tx: Frame) -> bool:
        return True

    def call(self, tx: Frame, args: list[Var], kwargs: dict[str, Var]) -> Var:
        return self.receiver.call_method(tx, self.name, args, kwargs)


def answer(tx: Frame, value: Any, what: str) -> Var:
    """What a constant says of itself."""
    if is_of_distributed(value) or is_masked(value):
        return ValueVar(tx.trace, value, None)
    if is_fixed(value) or isinstance(value, torch.dtype):
        return tx.trace.constant(value)
    if type(value) is tuple:
        return tx.trace.make.tuple([answer(tx, item, what) for item in value])
    if isinstance(value, GROUPS):
        return tx.trace.wrap(value, ObjectSource(value, "group"))
    raise Break("attribute_unknown", what)


@wraps_if(8, lambda value: is_of_distributed(value))
def wrap_constant(trace: Evaluation, value: Any, source: Source | None) -> Var:
    """A mesh or a placement from outside."""
    return ValueVar(trace, value, source)


def make(tx: Frame, cls: type, args: list[Var], kwargs: dict[str, Var]) -> Var | None:
    """`Shard(0)`: a placement that the program makes. None for other classes."""
    if not any(part.__name__ == "Placement" and part.__module__.startswith("torch.distributed.")
               for part in cls.__mro__):
        return None
    given = [held(tx.trace, arg) for arg in args]
    named = {key: held(tx.trace, arg) for key, arg in kwargs.items()}
    return answer(tx, tx.trace.run_real(lambda: cls(*given, **named)), cls.__qualname__)


Construction.make_constant = staticmethod(make)
