"""Instances of subclasses of int, float, complex, str, bytes and tuple.

They are objects whose `content` is the plain value. Where the class overrides nothing that an
operation could ask for, the operation is the plain value's.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dynamo.base.errors import Break
from dynamo.guards.sources import AttrSource, LocalSource, Source
from dynamo.symbolic.stack_values import OpaqueVar
from dynamo.symbolic.variables.base import Var
from dynamo.symbolic.variables.constant import ConstVar
from dynamo.symbolic.variables.lists import NamedTupleVar, TupleVar
from dynamo.symbolic.variables.lookup import find_in_mro, find_owner, is_heap_type
from dynamo.symbolic.variables.objects import HEAP_TYPE, ObjectVar
from dynamo.symbolic.variables.wrapping import wraps_if

if TYPE_CHECKING:
    from dynamo.symbolic.trace import Trace

VALUES = (int, float, complex, str, bytes, tuple)
# How the plain value is read, running no override.
PLAIN: dict[type, Callable[[Any], Any]] = {complex: complex.__pos__, str: str.__str__,
         bytes: lambda value: bytes.__getitem__(value, slice(None))}
# Special methods that say nothing of the value.
HARMLESS = frozenset("__new__ __init__ __getattr__ __setattr__ __delattr__ __reduce__ __copy__ "
                     "__deepcopy__ __getnewargs__ __getstate__ __setstate__".split())


# What the interpreter asks of numbers and texts, also where it is no method: None, or a partial.
ASKED = frozenset(
    name for kind in (*VALUES, bytearray) for name, value in vars(kind).items()
    if isinstance(value, types.WrapperDescriptorType | types.MethodDescriptorType)
) | {"__bytes__"}
METHODS = (types.FunctionType, types.WrapperDescriptorType, types.MethodDescriptorType)


class ReadVar(ConstVar):
    """The plain value of an existing instance, which is guarded to be this one when it is used."""

    __slots__ = ("_owner",)

    def __init__(self, value: Any, trace: Trace, source: Source | None, owner: Any) -> None:
        super().__init__(value)
        self._owner: tuple[Trace, Source | None, Any] | None = (trace, source, owner)

    @property
    def value(self) -> Any:
        if self._owner is not None:
            trace, source, owner = self._owner
            self._owner = None
            trace.guard("ID", source, owner)
        return self._value


def value_base(cls: type) -> type | None:
    """The type of the plain value in instances of a class written in Python."""
    if not cls.__flags__ & HEAP_TYPE:
        return None
    return next((base for base in VALUES if issubclass(cls, base)), None)


def overrides(cls: type, *names: str) -> bool:
    """True where the class has one of the methods of its own."""
    base = value_base(cls) or object
    return any(
        isinstance(found, types.FunctionType)
        or (is_heap_type(owner) and found is not find_in_mro(base, name))
        for name in names for owner, found in [find_owner(cls, name) or (object, None)]
    )


def is_plain(cls: type) -> bool:
    """True where no special method of the value is overridden."""
    base = value_base(cls) or object
    return not any(
        name.startswith("__") and name not in HARMLESS and value is not find_in_mro(base, name)
        and (isinstance(value, METHODS) or name in ASKED)
        for part in cls.__mro__ if part.__flags__ & HEAP_TYPE for name, value in vars(part).items()
    )


def value_in(var: Var) -> Var | None:
    """The plain value of an instance, None for anything else."""
    if isinstance(var, ObjectVar) and var.plain_value is not None:
        var.python_type()
        return var.plain_value
    return None


def value_unless(var: Var, *names: str) -> Var:
    """The plain value where the class has none of the methods in Python, else the Var itself."""
    value = value_in(var)
    if value is None or overrides(var.cls, *names):  # type: ignore[attr-defined]
        return var
    return value


def is_readable(value: Any) -> bool:
    cls = type(value)
    base = value_base(cls)
    if base is None or overrides(cls, "__getitem__", "__len__", "__eq__", "__getattribute__"):
        return False
    return find_in_mro(cls, "real") is vars(base).get("real")


@wraps_if(91, is_readable)
def wrap_subclass(trace: Trace, value: Any, source: Source | None) -> Var:
    """An instance of a subclass of int, float, str, ..."""
    base = value_base(type(value))
    content: Var
    if base is tuple:
        content = TupleVar((), source, real=value, trace=trace)
    elif base in (int, float):
        assert source is not None
        content = trace.wrap(value.real, AttrSource(source, "real"))
    else:
        if isinstance(source, LocalSource):  # may be another object at each call
            reason = Break("value_unknown", type(value).__qualname__)
            return OpaqueVar(trace, value, source, reason)
        content = ReadVar(PLAIN[base](value), trace, source, value)  # type: ignore[index]
    return ObjectVar(type(value), source, real=value, trace=trace, content=content)


def make_value(cls: type, content: Var) -> ObjectVar | None:
    """A new instance, None where the value is no constant or tuple."""
    if type(content) is not ConstVar and type(content) is not TupleVar:
        return None
    if isinstance(content, NamedTupleVar):
        return None
    return ObjectVar(cls, content=content)
