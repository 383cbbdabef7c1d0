"""The ordered registry that turns a real Python value into a Var.

A row is a function `(trace, value, source) -> Var`. Rows for an exact type are found by one dict
lookup; the others are asked in order of their rank. What no row knows becomes an `ObjectVar` or
breaks. Rows are registered next to the tracker that they create; the table itself is filled while
the modules are imported and never changes afterwards.
"""

from __future__ import annotations

import types
import weakref
from bisect import insort
from collections.abc import Callable
from typing import Any

from dynamo.base.errors import Break
from dynamo.guards.sources import Source
from dynamo.symbolic.core.frame import Evaluation
from dynamo.symbolic.core.lookup import class_dict, find_in_mro, is_in_making
from dynamo.symbolic.core.stack_values import HiddenVar, OpaqueVar
from dynamo.symbolic.core.var import Var

Wrapper = Callable[["Evaluation", Any, "Source | None"], Var]

EXACT_TYPES: dict[type, Wrapper] = {}
PREDICATES: list[tuple[int, int, Callable[[Any], bool], Wrapper]] = []


def wraps(*types: type) -> Callable[[Wrapper], Wrapper]:
    """Registers the row for values of exactly these types."""

    def register(wrapper: Wrapper) -> Wrapper:
        for kind in types:
            assert kind not in EXACT_TYPES, kind
            EXACT_TYPES[kind] = wrapper
        return wrapper

    return register


def wraps_if(rank: int, predicate: Callable[[Any], bool]) -> Callable[[Wrapper], Wrapper]:
    """Registers the row for values that fulfil the predicate; a lower rank is asked first."""

    def register(wrapper: Wrapper) -> Wrapper:
        insort(PREDICATES, (rank, len(PREDICATES), predicate, wrapper), key=lambda row: row[:2])
        return wrapper

    return register


def sees_lookups(value: Any) -> bool:
    """True where a metaclass, or a key of the program in the dict of a class, sees what is looked
    up on the class or on the class of the value."""
    cls = value if issubclass(type(value), type) else type(value)
    metaclass = type(cls)
    return sees_comparisons(metaclass) or has_odd_entries(cls) or (
        metaclass is not type and has_odd_entries(metaclass))


def has_odd_entries(cls: type) -> bool:
    """True where a class of the MRO has a key that is no str (only `type()` can put one there), or
    None for a special method that the interpreter then calls all the same."""
    if cls in _PLAIN or is_in_making(cls):
        return False
    order = type.__dict__["__mro__"].__get__(cls)
    if any(type(key) is not str or (value is None and key in CALLED_THOUGH_NONE)
           for part in order for key, value in class_dict(part).items()):
        return True
    _PLAIN.add(cls)
    return False


CALLED_THOUGH_NONE = frozenset(f"__{name}__" for name in """
    index int float complex bool len length_hint enter exit neg pos abs invert format getattr
    missing trunc floor ceil round bytes get set delete iadd isub imul imatmul itruediv ifloordiv
    imod ipow ilshift irshift iand ixor ior
""".split())
_PLAIN: weakref.WeakSet[type] = weakref.WeakSet()


def sees_comparisons(metaclass: type) -> bool:
    """True where its `__getattribute__`, `__eq__` or `__hash__`, one that is not written in C, sees
    what is looked up on its classes, or compared with them."""
    return metaclass is not type and not all(
        isinstance(find_in_mro(metaclass, name), types.WrapperDescriptorType)
        for name in ("__getattribute__", "__eq__", "__hash__"))


def wrap_value(trace: Evaluation, value: Any, source: Source | None) -> Var:
    """The Var of a real value. The caller looks after identity (see `Trace.wrap`)."""
    if sees_lookups(value):
        why = Break(
            "value_unknown", "a class that sees what is looked up on it, or has None for a method")
        if source is None:
            raise why
        return HiddenVar(trace, value, source, why)
    if is_in_making(value if issubclass(type(value), type) else type(value)):
        why = Break("value_unknown", "a class whose order of bases is being asked for")
        if source is None:
            raise why
        return HiddenVar(trace, value, source, why)
    wrapper = EXACT_TYPES.get(type(value))
    if wrapper is not None:
        return wrapper(trace, value, source)
    for _, _, predicate, candidate in PREDICATES:
        if predicate(value):
            return candidate(trace, value, source)
    name = type(value).__qualname__
    if source is None:
        raise Break("value_unknown", name)
    return OpaqueVar(trace, value, source, Break("value_unknown", name))


def wrap_named(trace: Evaluation, value: Any, source: Source) -> Var:
    """`wrap` for a value found by a name that may be gone later: reading it would raise then,
    also where nothing of the value is looked at."""
    trace.guard("PRESENT", source)
    return trace.wrap(value, source)


def wrap_or_pass_on(trace: Evaluation, value: Any, source: Source) -> Var:
    """The Var of a value; one that can't be modelled may still be passed on."""
    try:
        return trace.wrap(value, source)
    except Break as reason:
        opaque = OpaqueVar(trace, value, source, reason)
        trace.objects.remember(value, opaque)
        return opaque
