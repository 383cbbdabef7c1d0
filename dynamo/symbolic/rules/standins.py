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
from dynamo.symbolic.variables.dicts import DictVar, SetVar
from dynamo.symbolic.variables.functions import inline_stand_in
from dynamo.symbolic.variables.lists import ListVar, TupleVar
from dynamo.symbolic.variables.lookup import base_of
from dynamo.symbolic.variables.objects import ObjectVar

if TYPE_CHECKING:
    from dynamo.symbolic.machine import SymbolicFrame


Wants = dict[str, Callable[[Var], bool]]  # what the stand-in takes for a parameter


def run_stand_in(
    tx: SymbolicFrame, function: Any, wants: Wants, args: tuple[Var, ...], kwargs: dict[str, Var]
) -> Var:
    """Traces the stand-in; Break for wrong arguments, of which the real function complains."""
    try:
        given = inspect.signature(function).bind(*args, **kwargs).arguments
    except TypeError as error:
        raise Break("argument_mismatch", str(error)) from error
    for name, fits in wants.items():
        if name in given and not fits(given[name]):
            raise Break("argument_mismatch", f"{function.__name__}({name}={given[name]!r})")
    return inline_stand_in(tx, function, list(args), kwargs)


def is_index(var: Var) -> bool:
    return issubclass(var.python_type(), int)


def is_index_or_none(var: Var) -> bool:
    return issubclass(var.python_type(), int | None)


def is_iterable(var: Var) -> bool:
    kind = var.python_type()
    return hasattr(kind, "__iter__") or hasattr(kind, "__getitem__")


def is_list(var: Var) -> bool:
    return issubclass(var.python_type(), list)


def is_sequence(var: Var) -> bool:
    """True where the class is one of `len` and indices; dicts have other words for their errors."""
    kind = var.python_type()
    has_both = hasattr(kind, "__len__") and hasattr(kind, "__getitem__")
    return has_both and not issubclass(kind, dict)


def stands_in(*real: Any, **wants: Callable[[Var], bool]) -> Callable[[Any], Any]:
    """Registers the decorated Python function for calls of the real ones."""

    def register(function: Any) -> Any:
        def handle(tx: SymbolicFrame, *args: Var, **kwargs: Var) -> Var:
            return run_stand_in(tx, function, wants, args, kwargs)

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


def reduce_ordered(tx: SymbolicFrame, value: DictVar) -> Var | None:
    """`OrderedDict.__reduce__` of one without attributes of its own."""
    if value.has_attrs(tx):
        return None
    nothing = ConstVar(None)
    items = tx.trace.call(tx, iter, value.call_method(tx, "items", [], {}))
    cls = tx.trace.wrap(collections.OrderedDict, None)
    return TupleVar([cls, TupleVar([]), nothing, nothing, items])


@rule(object.__reduce_ex__)
def reduce_ex(tx: SymbolicFrame, value: Var, protocol: Var) -> Var | None:
    """What `copy` asks objects for; classes with slots are not modelled."""
    if type(value) is SetVar and value.python_type() is set:
        items = TupleVar([ListVar(value.entries.values())])
        return TupleVar([tx.trace.wrap(set, None), items, ConstVar(None)])
    if type(value) is DictVar and value.python_type() is collections.OrderedDict:
        return reduce_ordered(tx, value)
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


@stands_in(operator.iconcat, a=is_sequence, b=is_sequence)
def iconcat(a: Any, b: Any) -> Any:
    a += b
    return a


@stands_in(operator.concat, a=is_sequence, b=is_sequence)
def concat(a: Any, b: Any) -> Any:
    return a + b


@stands_in(operator.countOf, a=is_iterable)
def count_of(a: Iterable[Any], b: Any) -> int:
    found = 0
    for item in a:
        if item is b or item == b:
            found += 1
    return found


@stands_in(operator.indexOf, a=is_iterable)
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


