"""References that keep nothing alive: what an entry remembers of classes, functions and modules.

In: an object that a guard is about. Out: a `Weak` in its place, if Python can refer to it weakly.
An entry lives no longer than these objects (its program dies with the first of them).
"""

from __future__ import annotations

import types
import weakref
from typing import Any

from dynamo.base.instances import class_name, is_class, is_referable

NAMED = type | types.FunctionType  # objects that tell their names without code of the program
HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: a class that may die, and have Python methods


class Weak:
    """Stands for an object that may die; its text stays."""

    __slots__ = ("reference", "text")

    def __init__(self, value: Any) -> None:
        self.reference = weakref.ref(value)
        tells_name = issubclass(type(value), NAMED)
        self.text = value.__qualname__ if tells_name else class_name(type(value))

    def __repr__(self) -> str:
        return f"<{self.text}>" if self.reference() is not None else f"<{self.text}, which is gone>"


def weakly(value: Any) -> Any:
    """A `Weak` for what can be referred to weakly and may die, else the value itself.

    >>> weakly(int), weakly(3)
    (<class 'int'>, 3)
    """
    if is_class(value) and not value.__flags__ & HEAP_TYPE:
        return value
    if issubclass(type(value), NAMED) or is_referable(value):
        return Weak(value)
    return value


def strongly(value: Any) -> Any:
    """The object that `weakly` was given; None once it is dead."""
    return value.reference() if isinstance(value, Weak) else value
