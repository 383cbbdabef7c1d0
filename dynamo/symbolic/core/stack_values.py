"""Trackers that only the machine makes: values not looked at, values that can't be modelled, and
what `PUSH_EXC_INFO` leaves on the stack."""

from __future__ import annotations

import enum
import io
import sys
import types
import weakref
from collections.abc import Hashable, Iterable
from dataclasses import replace
from typing import Any

from dynamo.base.errors import Break
from dynamo.guards.sources import Source
from dynamo.symbolic.core.frame import Evaluation, Frame
from dynamo.symbolic.core.lookup import find_in_mro, name_of_class
from dynamo.symbolic.core.var import Var


class UnreadVar(Var):
    """A local of the root frame that nothing has read yet; it costs no guard."""

    def __init__(self, value: Any, source: Source) -> None:
        super().__init__(source)
        self.value = value

    def describe(self) -> str:
        return "unread"


class OpaqueVar(Var):
    """A real value of which only the type is known. It can be passed on; all else breaks."""

    def __init__(self, trace: Evaluation, value: Any, source: Source, reason: Break) -> None:
        super().__init__(source)
        self._trace = trace
        self.value = value
        self.reason = reason

    def describe(self) -> str:
        return f"an object of class {name_of_class(type(self.value))}"

    def python_type(self) -> type:
        self._trace.guard("TYPE", self.source, type(self.value))
        return type(self.value)

    def call(self, tx: Frame, args: list[Var], kwargs: dict[str, Var]) -> Var:
        raise Break("call_of_unknown_value", repr(self))

    def iterate(self, tx: Frame) -> Var:
        if is_its_own_iterator(self.python_type()):
            return self
        raise replace(self.reason)

    def next_item(self, tx: Frame) -> Var:
        raise replace(self.reason)

    def is_same(self, tx: Frame, other: Var) -> bool:
        if self is other:
            return True
        if other.is_constant() and other.as_constant() is None:
            self.python_type()
            return False
        raise replace(self.reason)

    def hash_key(self, tx: Frame) -> Hashable:
        raise replace(self.reason)


def is_its_own_iterator(kind: type) -> bool:
    """Whether `iter(value)` is known to be the value itself: not where it runs code of the program,
    asks what the value refers to or, as of a closed file, raises."""
    return (
        hasattr(kind, "__next__")
        and isinstance(find_in_mro(kind, "__iter__"), types.WrapperDescriptorType)
        and kind.__module__.partition(".")[0] in sys.stdlib_module_names
        and not issubclass(kind, (*weakref.ProxyTypes, io.IOBase))
    )


class HiddenVar(OpaqueVar):
    """A class whose metaclass sees all look-ups, or an instance of one: not even its type is known,
    since what a type has is asked for by look-ups."""

    def python_type(self) -> type:
        raise replace(self.reason)

    def truth(self, tx: Frame) -> bool:
        raise replace(self.reason)


    def hash_key(self, tx: Frame) -> Hashable:
        """That of a member of an enumeration is known: look-ups on a member ask no metaclass."""
        kind = type(self.value)
        found = [find_in_mro(kind, name) for name in ("__eq__", "__hash__")]
        if issubclass(kind, enum.Enum) and found == [object.__eq__, enum.Enum.__hash__]:
            self._trace.guard("ID", self.source, self.value)
            return ("constant", self.value)
        raise replace(self.reason)


class SavedExceptionVar(Var):
    """The slot below a handled exception: `previous` is handled again after POP_EXCEPT.

    current: the exception that is handled meanwhile. active: False once POP_EXCEPT has taken it
    (copies of the slot may still lie on the stack).
    """

    def __init__(self, previous: Var | None, current: Var) -> None:
        super().__init__()
        self.previous = previous
        self.current = current
        self.active = True

    def children(self) -> Iterable[Var]:
        return (self.current,) if self.active else ()
