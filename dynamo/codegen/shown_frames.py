"""Frames that stand in a traceback for inlined ones.

In: the calls, of frames that were inlined, that an error passes. Out: a callable that goes through
a frame for each, with the function's name, file and place: the traceback leads through the
program's lines.

    >>> def wrong(x):
    ...     return 1 / x
    >>> through = call_through([Place("forward", "model.py", (7, 7, 8, 20))])
    >>> through(wrong, 0)  # Traceback: ... File "model.py", line 7, in forward ...
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

from dynamo.hook import Disabled

THROUGH = "def frame(function, *args): return following(function, *args)"
LAST = "def frame(function, *args): return function(*args)"


@dataclass(frozen=True, slots=True)
class Place:
    """position: line, last line, column, last column of the call."""

    name: str
    filename: str
    position: tuple[int | None, int | None, int | None, int | None]


def call_through(places: Sequence[Place]) -> Callable[..., Any]:
    """Calls a function with arguments; places: outermost first. Nothing of it is compiled."""
    following: Callable[..., Any] | None = None
    for place in reversed(places):
        code = _code(LAST if following is None else THROUGH, place)
        following = FunctionType(code, {"following": following}, place.name)
    assert following is not None
    return Disabled(following)


def _code(text: str, place: Place) -> CodeType:
    tree = ast.parse(text)
    line, end, column, last = place.position
    line = line or 1
    known = column is not None and last is not None
    for node in ast.walk(tree):
        if isinstance(node, (ast.expr, ast.stmt, ast.arg)):
            node.lineno, node.end_lineno = line, (end or line) if known else line
            node.col_offset, node.end_col_offset = (column or 0, last or 0) if known else (0, 0)
    module = compile(tree, place.filename, "exec")
    made: CodeType = next(item for item in module.co_consts if isinstance(item, CodeType))
    return made.replace(co_name=place.name, co_qualname=place.name)
