"""Instances of subclasses of int, float, complex, str, bytes and tuple.

They are objects whose `content` is the plain value. Where the class overrides nothing that an
operation could ask for, the operation is the plain value's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dynamo.base.errors import Break
from dynamo.guards.sources import AttrSource, LocalSource, Source
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Evaluation
from dynamo.symbolic.core.lookup import find_in_mro
from dynamo.symbolic.core.stack_values import OpaqueVar
from dynamo.symbolic.core.value_classes import overrides, value_base
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.core.wrapping import wraps_if
from dynamo.symbolic.python.lists import NamedTupleVar, TupleVar
from dynamo.symbolic.python.objects import ObjectVar

# How the plain value is read, running no override.
PLAIN: dict[type, Callable[[Any], Any]] = {complex: complex.__pos__, str: str.__str__,
         bytes: lambda value: bytes.__getitem__(value, slice(None))}
class ReadVar(ConstVar):
    """The plain value of an existing instance, which is guarded to be this one when it is used."""

    __slots__ = ("_owner",)

    def __init__(self, value: Any, trace: Evaluation, source: Source | None, owner: Any) -> None:
        super().__init__(value)
        self._owner: tuple[Evaluation, Source | None, Any] | None = (trace, source, owner)

    @property
    def value(self) -> Any:
        if self._owner is not None:
            trace, source, owner = self._owner
            self._owner = None
            trace.guard("ID", source, owner)
        return self._value


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
def wrap_subclass(trace: Evaluation, value: Any, source: Source | None) -> Var:
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
