"""Recognises new code that does nothing but call the graph and return of its results.

The hook then calls the graph itself and makes no frame: see `Entry`.

In: the instructions. Out: (the graph's function, how many results it has, which of them are
returned: one, or a tuple of several), or None.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dynamo.bytecode.raw import Raw, RawCode
from dynamo.hook import GRAPH_INPUTS, Compiled, Disabled

Direct = tuple[Callable[..., Any], int, int | tuple[int, ...]]
SILENT = frozenset(("RESUME", "PUSH_NULL", "COPY_FREE_VARS", "PRECALL"))


def direct_call(raw: RawCode) -> Direct | None:
    """What the hook may do in place of the code."""
    if raw.protected or raw.cellvars:
        return None
    rest = [item for item in raw.instructions if item.name not in SILENT]
    names = [item.name for item in rest]
    inputs = 2 if names[1:3] == ["LOAD_FAST", "DELETE_FAST"] else 1
    start = 1 + inputs  # of the call
    if names[start : start + 2] != ["CALL_FUNCTION_EX", "UNPACK_SEQUENCE"]:
        return None
    called = _called(raw, rest[:start])
    count = rest[start + 1].arg
    stores, end = rest[start + 2 : start + 2 + count], rest[start + 2 + count :]
    places = {item.slots: number for number, item in enumerate(stores) if _is("STORE_FAST", item)}
    if called is None or len(places) != count:
        return None
    picks = _returned(end, places)
    return None if picks is None else (called, count, picks)


def _is(name: str, item: Raw) -> bool:
    return item.name == name and item.target is None


def _called(raw: RawCode, start: list[Raw]) -> Callable[..., Any] | None:
    """The graph's function, where it is called with what the hook collects, or with nothing."""
    if not _is("LOAD_CONST", start[0]):
        return None
    wrapped = raw.consts[start[0].arg]
    if len(start) == 3:
        collected = start[1].slots == start[2].slots == (GRAPH_INPUTS,)
    else:
        collected = _is("BUILD_TUPLE", start[1]) and start[1].arg == 0
    known = type(wrapped) is Disabled or (type(wrapped) is Compiled and wrapped.region is None)
    return wrapped.function if collected and known else None


def _returned(end: list[Raw], places: dict[tuple[str, ...], int]) -> int | tuple[int, ...] | None:
    """Which results the code returns."""
    loads, last = end[:-1], end[-1]
    several = bool(loads) and _is("BUILD_TUPLE", loads[-1])
    if several:
        if loads.pop().arg != len(loads):
            return None
    if not _is("RETURN_VALUE", last) or (not several and len(loads) != 1):
        return None
    picks = [places.get(item.slots) for item in loads if _is("LOAD_FAST", item)]
    found = tuple(pick for pick in picks if pick is not None)
    if len(found) != len(loads):
        return None
    return found if several else found[0]
