"""Whether a part of a program that was run before is run again because backward needs its values.

In: `recomputation` around such a run (checkpoints do it). Out: `is_recomputing()`, for who
records what the program does: values that are recomputed are not to be kept.

    >>> with recomputation():
    ...     is_recomputing()
    True
    >>> is_recomputing()
    False
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

_recomputing: ContextVar[bool] = ContextVar("recomputing", default=False)


@contextlib.contextmanager
def recomputation() -> Iterator[None]:
    """What runs inside has run before."""
    token = _recomputing.set(True)
    try:
        yield
    finally:
        _recomputing.reset(token)


def is_recomputing() -> bool:
    """True inside of `recomputation`."""
    return _recomputing.get()
