"""Whether a part of a program that was run before is run again because backward needs its values.

In: `running_again` around such a run (checkpoints do it). Out: `is_again()`, for who records what
the program does: values that are computed again are not to be kept.

    >>> with running_again():
    ...     is_again()
    True
    >>> is_again()
    False
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

_again: ContextVar[bool] = ContextVar("again", default=False)


@contextlib.contextmanager
def running_again() -> Iterator[None]:
    """What runs inside has run before."""
    token = _again.set(True)
    try:
        yield
    finally:
        _again.reset(token)


def is_again() -> bool:
    """True inside of `running_again`."""
    return _again.get()
