"""What a compile waits for, as C++ compilers: several at a time, and other work meanwhile.

In: what has to be done in any case, before the compile is over. Out: done once, in the first wait
if there is one. `in_threads` is such a wait: all that the compiler does side by side goes through
it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import TypeVar

Work = Callable[[], None]
Item = TypeVar("Item")
Result = TypeVar("Result")
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


def in_threads(
    function: Callable[[Item], Result], items: Iterable[Item], most: int
) -> list[Result]:
    """What the function makes of each item, in their order; `most` of them are at work at a time.

    Errors: the function's, of the first item that has one, when all are done.

    >>> in_threads(len, ["a", "bc"], 2)
    [1, 2]
    """
    with ThreadPoolExecutor(max(1, most)) as threads:
        results = threads.map(function, items)
        work_now()
        return list(results)
