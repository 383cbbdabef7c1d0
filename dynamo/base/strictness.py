"""`error_on_graph_break(True)`: a part of a program in which a graph break is an error.

Entered by plain Python, it holds for what is compiled inside of it, in this thread. Traced, it does
nothing: its `__exit__` waits on the stack of its frame, which tells that a break lies inside.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any


def is_compiling() -> bool:
    """True in code that is being traced, False when it runs as it is."""
    return False


is_dynamo_compiling = is_compiling  # torch's older name


def is_exporting() -> bool:
    """False, traced as well: `export` traces as `compile` does."""
    return False


class _Thread(threading.local):
    def __init__(self) -> None:
        self.entered: list[Part] = []


_thread = _Thread()


class Part:
    """A `with` block, or calls of a decorated function; `error`: whether a break is one."""

    error = True

    def __enter__(self) -> None:
        if not is_compiling():
            _thread.entered.append(self)

    def __exit__(self, *error: object) -> None:
        if not is_compiling() and self in _thread.entered:
            _thread.entered.remove(self)

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        kind = type(self)

        @functools.wraps(function)
        def in_part(*args: Any, **kwargs: Any) -> Any:
            with kind():
                return function(*args, **kwargs)

        return in_part


class LenientPart(Part):
    error = False


def error_on_graph_break(error: bool = True) -> Part:
    """A context manager and decorator: with True a graph break inside is an error (Unsupported),
    with False it is none in a part of such a part.

    `compile(..., fullgraph=True)` allows no break anywhere. The rest of a call that goes on behind
    a break (which a part with False has allowed) knows the parts inside of the called function
    only. Errors: TypeError.

    >>> with error_on_graph_break(True):
    ...     pass
    """
    if not isinstance(error, bool):
        raise TypeError(f"error_on_graph_break takes True or False, not {error!r}")
    return Part() if error else LenientPart()


def is_strict() -> bool:
    """True where the innermost part that this thread has entered allows no break."""
    return bool(_thread.entered) and _thread.entered[-1].error
