"""What an iterator will give, read without taking anything from it, the order and the table
of a set, the parts of other objects that do not show them.

In: the object. Out: a tuple whose parts are real objects of the program, or numbers. An iterator
that does not show its state, or has begun in a way that its parts can't tell, is a TypeError.
"""

from __future__ import annotations

import collections
import gc
import operator
import types
from collections.abc import Callable
from typing import Any

from dynamo._C import set_table

PARTS = ("keys", "values", "items")
PLAIN_VIEWS = tuple(type(getattr({}, part)()) for part in PARTS)
DICT_VIEWS = (
    *PLAIN_VIEWS, *(type(getattr(collections.OrderedDict(), part)()) for part in PARTS))
BACKWARDS: tuple[type, ...] = (reversed, type(reversed([])))


def sequence_state(iterator: Any) -> tuple[Any, ...]:
    """(sequence, position) of an iterator over a list or tuple."""
    parts = iterator.__reduce__()
    return (parts[1][0], parts[2] if len(parts) > 2 else 0)


def parts_of(iterator: Any) -> tuple[Any, ...]:
    """What `zip`, `map`, `filter`, `enumerate` were made of, as they would be made now."""
    parts = iterator.__reduce__()
    return (*parts[1], len(parts) > 2 and bool(parts[2])) if type(iterator) is zip else parts[1]


def getter_parts(getter: Any) -> tuple[Any, ...]:
    """What `itemgetter`, `attrgetter` or `methodcaller` was made of; keywords are not known."""
    make, parts = getter.__reduce__()
    if make is not type(getter):
        raise TypeError("it has keywords")
    return parts  # type: ignore[no-any-return]


STATES: dict[type, Callable[[Any], tuple[Any, ...]]] = {
    type(iter([])): sequence_state,
    type(iter(())): sequence_state,
    type(reversed([])): sequence_state,
    reversed: sequence_state,
    zip: parts_of,
    map: parts_of,
    filter: parts_of,
    enumerate: parts_of,
    set: lambda value: (list(value), set_table(value)),
    frozenset: lambda value: (list(value), set_table(value)),
    types.MappingProxyType: lambda value: tuple(gc.get_referents(value)),
    **{view: lambda value: tuple(gc.get_referents(value)) for view in DICT_VIEWS},
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
