"""Room for deep recursion while the compiler works.

In: a block. Out: nothing. Exists because the compiler needs several Python frames for one frame of
the program.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator


class RecursionRoom:
    """The limit belongs to all threads: the first that compiles raises it, the last puts it back.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._lock = threading.Lock()
        self._inside = 0
        self._before = 0

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        with self._lock:
            if not self._inside:
                self._before = sys.getrecursionlimit()
                sys.setrecursionlimit(max(self._before, self.limit))
            self._inside += 1
        try:
            yield
        finally:
            with self._lock:
                self._inside -= 1
                if not self._inside:
                    sys.setrecursionlimit(self._before)


recursion_room = RecursionRoom(20_000)
