"""What an iterator will give, read without taking anything from it, the order of a set, the parts
of other objects that do not show them.

In: the object. Out: a tuple whose parts are real objects of the program, or numbers. An iterator
that does not show its state, or has begun in a way that its parts can't tell, is a TypeError.
"""

from __future__ import annotations

import gc
import itertools
import operator
import re
import types
from collections.abc import Callable
from typing import Any

from dynamo.base.instances import is_class

DICT_PARTS: dict[type, str] = {
    type(iter({})): "keys", type(iter({}.values())): "values", type(iter({}.items())): "items",
}
BACKWARDS: tuple[type, ...] = (reversed, type(reversed([])))
NO_PARAMETERS = 0x04 | 0x08  # *args, **kwargs: their containers belong to the call


def generator_state(generator: types.GeneratorType[Any, Any, Any]) -> tuple[Any, ...]:
    """(code, globals, arguments..) of a generator that has not started."""
    frame, code = generator.gi_frame, generator.gi_code
    if frame is None or generator.gi_running or generator.gi_suspended:
        raise TypeError("it has started")
    if code.co_freevars or code.co_flags & NO_PARAMETERS:
        raise TypeError("its arguments can't be read")
    count = code.co_argcount + code.co_kwonlyargcount
    arguments = frame.f_locals
    return (code, frame.f_globals, *[arguments[name] for name in code.co_varnames[:count]])


def sequence_state(iterator: Any) -> tuple[Any, ...]:
    """(sequence, position) of an iterator over a list or tuple."""
    parts = iterator.__reduce__()
    return (parts[1][0], parts[2] if len(parts) > 2 else 0)


def range_state(iterator: Any) -> tuple[Any, ...]:
    """(what is left of the range,)."""
    parts = iterator.__reduce__()
    return (parts[1][0][parts[2] if len(parts) > 2 and parts[2] else 0:],)


def dict_state(iterator: Any) -> tuple[Any, ...]:
    """(dict,) of an iterator that has not started."""
    found = [part for part in gc.get_referents(iterator) if isinstance(part, dict)]
    if len(found) != 1 or iterator.__length_hint__() != len(found[0]):
        raise TypeError("it has started")
    return (found[0],)


def parts_of(iterator: Any) -> tuple[Any, ...]:
    """What `zip`, `map`, `filter`, `enumerate` were made of, as they would be made now."""
    parts = iterator.__reduce__()
    return (*parts[1], len(parts) > 2 and bool(parts[2])) if type(iterator) is zip else parts[1]


def chain_state(iterator: Any) -> tuple[Any, ...]:
    """(iterator of the iterables,) of a chain that has not started."""
    found = [part for part in gc.get_referents(iterator) if not is_class(part)]
    if len(found) != 1:
        raise TypeError("it has started")
    return (found[0],)


def count_state(iterator: Any) -> tuple[Any, ...]:
    """(next number, step) of a count of ints."""
    found = re.fullmatch(r"count\((-?\d+)(?:, (-?\d+))?\)", repr(iterator))
    if found is None:
        raise TypeError("no count of ints")
    return (int(found[1]), int(found[2] or 1))


def getter_parts(getter: Any) -> tuple[Any, ...]:
    """What `itemgetter`, `attrgetter` or `methodcaller` was made of; keywords are not told."""
    make, parts = getter.__reduce__()
    if make is not type(getter):
        raise TypeError("it has keywords")
    return parts  # type: ignore[no-any-return]


STATES: dict[type, Callable[[Any], tuple[Any, ...]]] = {
    types.GeneratorType: generator_state,
    type(iter([])): sequence_state,
    type(iter(())): sequence_state,
    type(reversed([])): sequence_state,
    reversed: sequence_state,
    type(iter(range(0))): range_state,
    **dict.fromkeys(DICT_PARTS, dict_state),
    zip: parts_of,
    map: parts_of,
    filter: parts_of,
    enumerate: parts_of,
    itertools.chain: chain_state,
    itertools.count: count_state,
    set: lambda value: (list(value),),
    frozenset: lambda value: (list(value),),
    types.MappingProxyType: lambda value: tuple(gc.get_referents(value)),
    **dict.fromkeys((operator.itemgetter, operator.attrgetter, operator.methodcaller),
                    getter_parts),
}


def state_of(value: Any) -> tuple[Any, ...]:
    """The state of an object of one of these types."""
    row = STATES.get(type(value))
    if row is None:
        raise TypeError(f"a {type(value).__name__} shows no state")
    return row(value)


def upcoming(iterator: Any, index: int = 0) -> tuple[Any, ...]:
    """(next item,) of an iterator over a sequence or a dict, () at its end.

    index: how many items lie before the one that is meant.
    Errors: RuntimeError where the dict has changed its size.
    """
    _, (sequence, *_), *start = iterator.__reduce__()
    at = start[0] if start and start[0] is not None else 0
    at += -index if isinstance(iterator, BACKWARDS) else index
    own = type(sequence)
    kind = next((kind for kind in (list, tuple) if issubclass(own, kind)), own)
    return (kind.__getitem__(sequence, at),) if 0 <= at < kind.__len__(sequence) else ()
