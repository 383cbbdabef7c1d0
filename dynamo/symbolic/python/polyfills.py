"""Python functions that are traced in place of C functions of the standard library."""

from __future__ import annotations

import bisect
import collections
import copyreg
import inspect
import types
from collections.abc import Callable, Iterable
from typing import Any

from dynamo.base.errors import Break
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.lookup import base_of
from dynamo.symbolic.core.table import rule
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.python.dicts import DictVar
from dynamo.symbolic.python.functions import inline_polyfill
from dynamo.symbolic.python.lists import ListVar, NamedTupleVar, TupleVar, is_structseq
from dynamo.symbolic.python.objects import ObjectVar
from dynamo.symbolic.python.sets import SetVar

Wants = dict[str, Callable[[Var], bool]]  # what the polyfill takes for a parameter


def run_polyfill(
    tx: Frame, function: Any, wants: Wants, args: tuple[Var, ...], kwargs: dict[str, Var]
) -> Var:
    """Traces the polyfill; Break for wrong arguments, of which the real function complains."""
    try:
        given = inspect.signature(function).bind(*args, **kwargs).arguments
    except TypeError as error:
        raise Break("argument_mismatch", str(error)) from error
    for name, fits in wants.items():
        if name in given and not fits(given[name]):
            raise Break("argument_mismatch", f"{function.__name__}({name}={given[name]!r})")
    return inline_polyfill(tx, function, list(args), kwargs)


def is_index(var: Var) -> bool:
    return issubclass(var.python_type(), int)


def is_index_or_none(var: Var) -> bool:
    return issubclass(var.python_type(), int | None)


def is_sequence(var: Var) -> bool:
    """True where the class is one of `len` and indices; dicts have other words for their errors."""
    kind = var.python_type()
    has_both = hasattr(kind, "__len__") and hasattr(kind, "__getitem__")
    return has_both and not issubclass(kind, dict)


def polyfill(*real: Any, **wants: Callable[[Var], bool]) -> Callable[[Any], Any]:
    """Registers the decorated Python function for calls of the real ones."""

    def register(function: Any) -> Any:
        def handle(tx: Frame, /, *args: Var, **kwargs: Var) -> Var:
            return run_polyfill(tx, function, wants, args, kwargs)

        rule(list(real))(handle)
        return function

    return register


@polyfill(bisect.bisect_left, a=is_sequence, lo=is_index, hi=is_index_or_none)
def bisect_left(
    a: Any, x: Any, lo: int = 0, hi: int | None = None, *, key: Callable[[Any], Any] | None = None
) -> int:
    if lo < 0:
        raise ValueError("lo must be non-negative")
    hi = len(a) if hi is None or hi == -1 else hi
    while lo < hi:
        middle = (lo + hi) // 2
        item = a[middle] if key is None else key(a[middle])
        lo, hi = (middle + 1, hi) if item < x else (lo, middle)
    return lo


@polyfill(bisect.bisect_right, a=is_sequence, lo=is_index, hi=is_index_or_none)
def bisect_right(
    a: Any, x: Any, lo: int = 0, hi: int | None = None, *, key: Callable[[Any], Any] | None = None
) -> int:
    if lo < 0:
        raise ValueError("lo must be non-negative")
    hi = len(a) if hi is None or hi == -1 else hi
    while lo < hi:
        middle = (lo + hi) // 2
        item = a[middle] if key is None else key(a[middle])
        lo, hi = (lo, middle) if x < item else (middle + 1, hi)
    return lo


@polyfill(bisect.insort_left, a=is_sequence, lo=is_index, hi=is_index_or_none)
def insort_left(
    a: Any, x: Any, lo: int = 0, hi: int | None = None, *, key: Callable[[Any], Any] | None = None
) -> None:
    a.insert(bisect_left(a, x if key is None else key(x), lo, hi, key=key), x)


@polyfill(bisect.insort_right, a=is_sequence, lo=is_index, hi=is_index_or_none)
def insort_right(
    a: Any, x: Any, lo: int = 0, hi: int | None = None, *, key: Callable[[Any], Any] | None = None
) -> None:
    a.insert(bisect_right(a, x if key is None else key(x), lo, hi, key=key), x)


@polyfill(collections._count_elements)  # type: ignore[attr-defined]
def count_elements(mapping: Any, iterable: Iterable[Any]) -> None:
    for item in iterable:
        hash(item)  # its error is the plain one, which names no dict
        mapping[item] = mapping.get(item, 0) + 1


def reduce_object(value: Any, slots: tuple[str, ...]) -> Any:
    """`object.__reduce_ex__(value, 4)` of an instance of a class written in Python."""
    cls = type(value)
    if cls.__reduce__ is not object.__reduce__:
        return value.__reduce__()
    arguments: tuple[Any, ...] = ()
    make: Any = copyreg.__newobj__  # type: ignore[attr-defined]
    if hasattr(cls, "__getnewargs_ex__"):
        given = value.__getnewargs_ex__()
        check_new_arguments(given, "__getnewargs_ex__")
        arguments, keywords = given
        if keywords:
            return copyreg.__newobj_ex__, (cls, arguments, keywords), *rest_of(value, cls, slots)  # type: ignore[attr-defined]
    elif hasattr(cls, "__getnewargs__"):
        arguments = value.__getnewargs__()
        check_new_arguments(arguments, "__getnewargs__")
    return make, (cls, *arguments), *rest_of(value, cls, slots)


def check_new_arguments(given: Any, name: str) -> None:
    """The errors of what the method of that name gives."""
    if not isinstance(given, tuple):
        raise TypeError(f"{name} should return a tuple, not '{type(given).__name__}'")
    if name == "__getnewargs__":
        return
    if len(given) != 2:
        raise ValueError(f"{name} should return a tuple of length 2, not {len(given)}")
    for place, kind, part in ("first", tuple, given[0]), ("second", dict, given[1]):
        if not isinstance(part, kind):
            raise TypeError(f"{place} item of the tuple returned by {name} must be a "
                            f"{kind.__name__}, not '{type(part).__name__}'")


def rest_of(value: Any, cls: type, slots: tuple[str, ...]) -> tuple[Any, Any, Any]:
    """State, list items and dict items."""
    if cls.__getstate__ is not object.__getstate__:  # type: ignore[attr-defined]
        state = value.__getstate__()
    else:
        state = (dict(value.__dict__) or None) if hasattr(value, "__dict__") else None
        own = {name: getattr(value, name) for name in slots if hasattr(value, name)}
        state = (state, own) if own else state
    items = iter(value) if isinstance(value, list) else None
    return state, items, iter(value.items()) if isinstance(value, dict) else None


def reduce_ordered(tx: Frame, value: DictVar) -> Var | None:
    """`OrderedDict.__reduce__` of one without attributes of its own."""
    if value.has_attrs(tx):
        return None
    return reduced(tx, collections.OrderedDict, [], 1, value.call_method(tx, "items", [], {}))


def reduced(tx: Frame, cls: type, args: list[Var], empty: int, items: Var) -> Var:
    """How `copy` makes an object that is filled by its items, behind what is empty."""
    parts: list[Var] = [tx.trace.wrap(cls, None), TupleVar(args), *[ConstVar(None)] * (1 + empty)]
    return TupleVar([*parts, tx.trace.call(tx, iter, items)])


@rule(object.__reduce_ex__)
def reduce_ex(tx: Frame, value: Var, protocol: Var) -> Var | None:
    """What `copy` asks objects for."""
    kind = value.python_type()
    if type(value) is SetVar and kind is set:
        known = value.twin.items is not None  # of objects made in the trace no order is known
        items = ListVar(value.ordered(tx.trace) if known else value.entries.values())
        return TupleVar([tx.trace.wrap(set, None), TupleVar([items]), ConstVar(None)])
    if type(value) is DictVar and kind is collections.OrderedDict:
        return reduce_ordered(tx, value)
    if type(value) is DictVar and kind is collections.defaultdict:
        given = [] if value.factory is None else [value.factory]
        return reduced(tx, kind, given, 1, value.call_method(tx, "items", [], {}))
    if type(value) is NamedTupleVar and not (kind.__dictoffset__ or is_structseq(kind)):
        make = tx.trace.wrap(copyreg.__newobj__, None)  # type: ignore[attr-defined]
        return TupleVar([make, TupleVar([tx.trace.wrap(kind, None), *value.items]),
                         *[ConstVar(None)] * 3])
    number = protocol.as_constant()
    if not isinstance(value, ObjectVar) or not isinstance(number, int) or number < 2:
        return None
    if value.is_constant() or base_of(kind) not in PLAIN_BASES:
        return None
    names = copyreg._slotnames(kind)  # type: ignore[attr-defined]
    if type(names) is not list or any(type(name) is not str for name in names):
        return None  # those that the class itself has given
    if base_of(kind) is object and keeps_more(kind, len(names)):
        return None  # an error, or as a class of C has it
    return inline_polyfill(tx, reduce_object, [value, tx.trace.constant(tuple(names))], {})


def keeps_more(kind: type, slots: int) -> bool:
    """True for a class of C with state that neither a dict nor a slot holds, as locks have."""
    places = (kind.__dictoffset__ > 0) + (kind.__weakrefoffset__ > 0) + slots
    return kind.__basicsize__ > object.__basicsize__ + places * tuple.__itemsize__


# Built-in classes that keep nothing but a dict and items.
PLAIN_BASES = (object, list, dict, types.SimpleNamespace)


def copy_once(value: Any, memo: dict[int, Any], copied: Callable[[Any, Any], Any]) -> Any:
    """`value.__deepcopy__(memo)`. copied: what copies a value that the memo lacks."""
    if id(value) in memo:
        return memo[id(value)]
    made = memo[id(value)] = copied(value, memo)
    return made


def make_manager(decorator: Any) -> Any:
    """`decorator._recreate_cm()` of `contextlib.contextmanager`, without an object around what the
    function gives."""
    return decorator.func(*decorator.args, **decorator.kwds)
