"""Work of a compile that is done while it waits for another program, a C++ compiler say.

In: what has to be done in any case, before the compile is over. Out: done once, in the first wait
if there is one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar

Work = Callable[[], None]
_offered: ContextVar[list[Work] | None] = ContextVar("offered", default=None)


@contextlib.contextmanager
def while_waiting(work: Work) -> Iterator[None]:
    """The work is done in the first wait of the block, or behind it; not where the block raises.

    Errors: those of the work, behind the block: whoever waits has not made them.
    """
    errors: list[Exception] = []

    def guarded() -> None:
        try:
            work()
        except Exception as error:
            errors.append(error)

    left: list[Work] = [guarded]
    token = _offered.set(left)
    try:
        yield
    finally:
        _offered.reset(token)
    while left:  # copies of the context still hold the list, and what would be left in it
        left.pop()()
    if errors:
        raise errors[0]


def work_now() -> None:
    """For whoever begins to wait: does what this thread has to do, if there is something."""
    left = _offered.get()
    while left:
        left.pop()()
