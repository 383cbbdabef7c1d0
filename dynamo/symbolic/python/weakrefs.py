"""Weak references that existed before, and those that the program makes.

A reference answers its object as long as the trace can tell that it is alive: an object from
outside while nothing outside was changed, and any while something of the program refers to it.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Iterable
from typing import Any

from dynamo.base.errors import Break
from dynamo.guards.sources import LocalSource, Source, WeakRefSource
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Evaluation, Frame
from dynamo.symbolic.core.lookup import name_in_c
from dynamo.symbolic.core.stack_values import UnreadVar
from dynamo.symbolic.core.table import NONE, rule
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.core.wrapping import wraps
from dynamo.symbolic.python.sameness import same


class WeakRefVar(Var):
    """An existing `weakref.ref`; like the real one it does not keep its object."""

    def __init__(
        self, trace: Evaluation, value: weakref.ref[Any] | None, source: Source | None
    ) -> None:
        super().__init__(source)
        self._trace, self._value = trace, value

    @property
    def target(self) -> Var | None:
        """Its object, None where that has died."""
        assert self._value is not None
        value = self._value()
        if value is None:
            return None
        assert self.source is not None
        return self._trace.wrap(value, WeakRefSource(self.source))

    def describe(self) -> str:
        return f"a weak reference to {self.target!r}"

    def python_type(self) -> type:
        return weakref.ref

    def truth(self, tx: Frame) -> bool:
        return True

    def call(self, tx: Frame, args: list[Var], kwargs: dict[str, Var]) -> Var:
        if args or kwargs:
            raise Break("argument_mismatch", "weakref.ref takes no arguments")
        if self.target is None:
            return ConstVar(None)
        if not self.is_alive(tx, self.target):
            raise Break("call_of_unknown_value", f"{self!r}, whose object may have died")
        return self.target

    def is_alive(self, tx: Frame, target: Var) -> bool:
        """True where something certainly refers to the object."""
        work = [var for frame in tx.trace.frames for var in frame.alive()]
        value = None if self._value is None else self._value()
        # A local that the program has let go of may have been all that held the object.
        lone = value is not None and tx.trace.was_observed_local(value)
        if target.source is not None and not lone and not tx.trace.effects.has_outside():
            root = target.source.root()
            if not isinstance(root, LocalSource) or any(var.source == root for var in work):
                return True
        reached: set[Var] = set()
        while work:
            var = work.pop()
            if var is target or lone and isinstance(var, UnreadVar) and var.value is value:
                return True
            if var not in reached and not isinstance(var, WeakRefVar):
                reached.add(var)
                work.extend(var.children())
        return False

    def hash_key(self, tx: Frame) -> Hashable:
        if self.target is None:
            raise Break("hash_unknown", repr(self))
        return ("weakref", self.target.hash_key(tx))

    def get_attr(self, tx: Frame, name: str) -> Var:
        raise Break("attribute_unknown", f"{name} of {self!r}")


    def is_same(self, tx: Frame, other: Var) -> bool:
        if self is not other and isinstance(other, MadeWeakRefVar):
            raise Break("value_unknown", f"{self!r} may be {other!r}")
        return self is other


class MadeWeakRefVar(WeakRefVar):
    """One that the trace has made. There is one without a callback for each object."""

    def __init__(self, trace: Evaluation, target: Var) -> None:
        super().__init__(trace, None, None)
        self._target = target

    @property
    def target(self) -> Var:
        return self._target

    def children(self) -> Iterable[Var]:
        return (self._target,)  # what makes it again needs the object

    def is_same(self, tx: Frame, other: Var) -> bool:
        if isinstance(other, MadeWeakRefVar):
            return same(tx, self._target, other.target)
        return isinstance(other, WeakRefVar) and other.is_same(tx, self)


@rule(weakref.ref)
def make_weakref(tx: Frame, target: Var, callback: Var = NONE) -> Var:
    kind = target.python_type()
    if callback.python_type() is not type(None):
        raise Break("call_of_unknown_function", "weakref.ref with a callback")
    if not kind.__weakrefoffset__:
        message = f"cannot create weak reference to '{name_in_c(kind)}' object"
        tx.trace.raise_exception(TypeError, message)
    return MadeWeakRefVar(tx.trace, target)


@wraps(weakref.ref)
def wrap_weakref(trace: Evaluation, value: Any, source: Source | None) -> Var:
    """An existing reference."""
    assert source is not None
    trace.guard("TYPE", source, weakref.ref)
    trace.guard("WEAKREF_ALIVE", source, value() is not None)
    return WeakRefVar(trace, value, source)
