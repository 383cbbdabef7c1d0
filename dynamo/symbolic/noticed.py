"""Values that tell when they die: generators (`finally` runs then), and objects with `__del__`.

A continuation is given such values by a frame that no longer holds them: where the traced program
lets go of one, the trace ends, and the new code lets go of it before the rest runs.

In: the locals of a continuation. Out: `Noticed.dropped`, asked before each instruction.
"""

from __future__ import annotations

import sys
import types
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dynamo.symbolic.stack_values import OpaqueVar, UnreadVar
from dynamo.symbolic.variables.base import Var
from dynamo.symbolic.variables.objects import ObjectVar

if TYPE_CHECKING:
    from dynamo.symbolic.trace import Trace

# References to a Var that only the trace's table of known objects holds, while it is counted.
UNUSED = 3


def is_noticed(var: Var) -> bool:
    """True for a real value that tells when it dies."""
    if isinstance(var, ObjectVar):
        return var.source is not None and _tells(var.cls)
    return isinstance(var, UnreadVar | OpaqueVar) and _tells(type(var.value))


def _tells(kind: type) -> bool:
    return kind is types.GeneratorType or any("__del__" in base.__dict__ for base in kind.__mro__)


class Noticed:
    """Those among the locals that a trace begins with."""

    def __init__(self, locals_: Mapping[str, Var]) -> None:
        self._unread: dict[int, tuple[Any, list[weakref.ref[Var]]]] = {}
        for var in locals_.values():
            if isinstance(var, UnreadVar) and is_noticed(var):
                places = self._unread.setdefault(id(var.value), (var.value, []))[1]
                places.append(weakref.ref(var))

    def __bool__(self) -> bool:
        return bool(self._unread)

    def dropped(self, trace: Trace) -> bool:
        """True where the program has let go of one since the last call."""
        gone = [key for key in self._unread if self._is_gone(trace, key)]
        for key in gone:
            del self._unread[key]
        return bool(gone)

    def _is_gone(self, trace: Trace, key: int) -> bool:
        value, places = self._unread[key]
        if any(place() is not None for place in places):
            return False
        known = trace.known_var(value)
        return known is None or sys.getrefcount(known) <= UNUSED
