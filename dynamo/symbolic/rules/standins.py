"""Python functions that are traced in place of C functions of the standard library."""

from __future__ import annotations

import collections
import copyreg
import inspect
import operator
import types
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from dynamo.base.errors import Break
from dynamo.guards.sources import ObjectSource
from dynamo.symbolic.rules.table import rule
from dynamo.symbolic.variables.base import Var
from dynamo.symbolic.variables.constant import ConstVar
from dynamo.symbolic.variables.dicts import SetVar
from dynamo.symbolic.variables.functions import inline_stand_in
from dynamo.symbolic.variables.lists import ListVar, TupleVar
from dynamo.symbolic.variables.lookup import base_of
from dynamo.symbolic.variables.objects import ObjectVar

if TYPE_CHECKING:
    from dynamo.symbolic.machine import SymbolicFrame


def stands_in(*real: Any) -> Callable[[Any], Any]:
    """Registers the decorated Python function for calls of the real ones."""

    def register(function: Any) -> Any:
        signature = inspect.signature(function)

        def handle(tx: SymbolicFrame, *args: Var, **kwargs: Var) -> Var:
            try:
                signature.bind(*args, **kwargs)
            except TypeError as error:  # the real function says it in its own words
                raise Break("argument_mismatch", str(error)) from error
            return inline_stand_in(tx, function, list(args), kwargs)

        rule(list(real))(handle)
        return function

    return register


@stands_in(collections._count_elements)  # type: ignore[attr-defined]
def count_elements(mapping: Any, iterable: Iterable[Any]) -> None:
    for item in iterable:
        mapping[item] = mapping.get(item, 0) + 1


def reduce_object(value: Any) -> Any:
    """`object.__reduce_ex__(value, 4)` of an instance of a class written in Python."""
    cls = type(value)
    if cls.__reduce__ is not object.__reduce__:
        return value.__reduce__()
    arguments: tuple[Any, ...] = ()
    make: Any = copyreg.__newobj__  # type: ignore[attr-defined]
    if hasattr(cls, "__getnewargs_ex__"):
        arguments, keywords = value.__getnewargs_ex__()
        if keywords:
            return copyreg.__newobj_ex__, (cls, arguments, keywords), *rest_of(value, cls)  # type: ignore[attr-defined]
    elif hasattr(cls, "__getnewargs__"):
        arguments = value.__getnewargs__()
    return make, (cls, *arguments), *rest_of(value, cls)


def rest_of(value: Any, cls: type) -> tuple[Any, Any, Any]:
    """State, list items and dict items."""
    if cls.__getstate__ is not object.__getstate__:  # type: ignore[attr-defined]
        state = value.__getstate__()
    else:
        state = dict(value.__dict__) if value.__dict__ else None
    items = iter(value) if isinstance(value, list) else None
    return state, items, iter(value.items()) if isinstance(value, dict) else None


@rule(object.__reduce_ex__)
def reduce_ex(tx: SymbolicFrame, value: Var, protocol: Var) -> Var | None:
    """What `copy` asks objects for; classes with slots are not modelled."""
    if type(value) is SetVar and value.python_type() is set:
        items = TupleVar([ListVar(value.entries.values())])
        return TupleVar([tx.trace.wrap(set, None), items, ConstVar(None)])
    if not isinstance(value, ObjectVar) or protocol.as_constant() < 2:
        return None
    if value.is_constant() or not has_plain_state(value.python_type()):
        return None
    var = tx.trace.wrap(reduce_object, ObjectSource(reduce_object, "reduce_object"))
    return var.call(tx, [value], {})


def has_plain_state(cls: type) -> bool:
    """True where all of an instance's own state lies in its dict and its built-in part."""
    slots = any(isinstance(part, types.MemberDescriptorType)
                for base in cls.__mro__ for part in vars(base).values())
    basis = base_of(cls)
    return not slots and bool(cls.__dictoffset__) and basis in (object, list, dict)


@stands_in(operator.iconcat)
def iconcat(a: Any, b: Any) -> Any:
    a += b
    return a


@stands_in(operator.concat)
def concat(a: Any, b: Any) -> Any:
    return a + b


@stands_in(operator.countOf)
def count_of(a: Iterable[Any], b: Any) -> int:
    found = 0
    for item in a:
        if item is b or item == b:
            found += 1
    return found


@stands_in(operator.indexOf)
def index_of(a: Iterable[Any], b: Any) -> int:
    position = 0
    for item in a:
        if item is b or item == b:
            return position
        position += 1
    raise ValueError("sequence.index(x): x not in sequence")


if hasattr(operator, "call"):

    @stands_in(operator.call)
    def call(obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        return obj(*args, **kwargs)


