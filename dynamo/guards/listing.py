"""Guards for people: what is checked, as a Python expression, why, and for which line of the user.

In: guards. Out: lines of text, for the logs `guards` and `verbose_guards` and for `explain`.
"""

from __future__ import annotations

import linecache
import re
import types
from collections.abc import Iterable
from typing import Any

from dynamo.guards.build import python_steps
from dynamo.guards.kinds import TensorFacts, short
from dynamo.guards.records import Guard
from dynamo.guards.shape_code import ShapeFacts
from dynamo.guards.sources import Source
from dynamo.guards.weak import Weak

# Kind -> (expression over the value's text and the payload's, why it is needed).
ROWS: dict[str, tuple[str, str]] = {
    "TYPE": ("type({t}) is {p}", "its class decides which methods and attributes it has"),
    "SUBCLASS": ("isinstance({t}, {p})", "its class decides which methods it has"),
    "ID": ("{t} is <{p}>", "the object itself decides what happens"),
    "CONST": ("{t} == {p}", "the value is a constant of the graph or of a branch"),
    "TENSOR": ("metadata({t}) == {p}", "the graph is made for this metadata"),
    "LENGTH": ("len({t}) == {p}", "the number of items decides how often a loop runs"),
    "DICT_KEYS": ("tuple({t}) == {p}", "the keys decide what is read, and in which order"),
    "PRESENT": ("{t} exists", "it is read, which raises where it is gone"),
    "DICT_HAS": ("{p} in {t}", "the key is read"),
    "DICT_LACKS": ("{p} not in {t}", "the name is looked up elsewhere"),
    "SET_HAS": ("{p} in {t}", "a branch depends on it"),
    "SET_LACKS": ("{p} not in {t}", "a branch depends on it"),
    "SET_ITEMS": ("{t} == {p}", "the items decide what is found"),
    "HAS_ATTR": ("hasattr({t}, {p})", "the program asks for it"),
    "LACKS_ATTR": ("not hasattr({t}, {p})", "the program asks for it"),
    "CODE": ("{t}.__code__ is <{p}>", "its code was traced"),
    "SAME": ("{t} is {p}", "one object stands at both places"),
    "NOT_SAME": ("{t} is not {p}", "different objects stand at the two places"),
    "GLOBAL_STATE": ("torch_state() == recorded", "operations depend on modes and settings"),
    "CELL_EMPTY": ("{t} is unbound", "reading it raises"),
    "WEAKREF_ALIVE": ("({t}() is not None) == {p}", "what it refers to is used"),
    "BOOL_TRUTH": ("bool({t}) == {p}", "a branch depends on it"),
    "RANGE": ("{t} lies in {p}", "the graph is made for this range"),
    "NO_TENSOR_ALIAS": ("all different: {p}", "the graph changes one of them"),
    "DIFFERENT": ("all different: {p}", "one is changed, or a key of a dict or set"),
    "NO_STORAGE_ALIAS": ("no shared memory: {p}", "the graph changes one of them"),
    "SHAPE": ("{p}", "a size or number decides a branch or a shape"),
}


# Instruction -> what of the program runs at it; all others are C.
RUN_BY: dict[str, str] = {
    "ATTR": "a property, or its class's or module's own way to find attributes",
    "HAS_ATTR": "its class's or module's own way to find attributes",
    "LACKS_ATTR": "its class's or module's own way to find attributes",
    "STATE": "what an iterator will give, or a set's order, is found out in Python",
    "TRUTH": "`__bool__` or `__len__` of its class",
}


def expression(guard: Guard) -> str:
    """What the guard checks, as Python would say it.

    >>> from dynamo.guards.sources import LocalSource
    >>> expression(Guard("CONST", LocalSource("n"), 3))
    'n == 3'
    """
    text = "" if guard.source is None else guard.source.text()
    return ROWS[guard.kind][0].format(t=text, p=payload_text(guard.payload))


def payload_text(payload: Any) -> str:
    """What a guard compares with."""
    if isinstance(payload, Source):
        return payload.text()
    if isinstance(payload, TensorFacts):
        return payload.describe()
    if isinstance(payload, ShapeFacts):
        facts = payload.facts
        return re.sub(r"\b[a-z]\w*\b", lambda m: facts[m[0]].text() if m[0] in facts else m[0],
                      payload.expression)
    if isinstance(payload, types.CodeType):
        return f"code of {payload.co_qualname}"
    if isinstance(payload, type | Weak):
        return payload.text if isinstance(payload, Weak) else payload.__qualname__
    if isinstance(payload, tuple) and payload and isinstance(payload[0], Source):
        return ", ".join(source.text() for source in payload)
    return short(payload)


def lines(guards: Iterable[Guard]) -> list[str]:
    """One line for each guard: the expression, and why."""
    return [f"{expression(guard)}  # {ROWS[guard.kind][1]}" for guard in guards]


def python_lines(guards: Iterable[Guard], program: Any) -> list[str]:
    """One line for each check that runs Python code: slower, and seen by a debugger."""
    return [f"{what.text() if isinstance(what, Source) else expression(what)}  # {RUN_BY[opcode]}"
            for opcode, what in python_steps(guards, program)]


def verbose_lines(guards: Iterable[Guard]) -> list[str]:
    """The same, with the user's line and its text."""
    found = []
    for guard in guards:
        found.append(expression(guard))
        found.append(f"    why: {ROWS[guard.kind][1]}")
        if guard.line is not None:
            text = guard.line.text or linecache.getline(guard.line.filename, guard.line.lineno)
            found.append(f"    needed at {guard.line}: {text.strip()}".rstrip(": "))
    return found
