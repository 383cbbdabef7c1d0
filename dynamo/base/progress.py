"""One line on a terminal while a compile takes long: what, why, how long.

In: a block that compiles. Out: nothing, or a line on stderr that begins after two seconds and ends
with the block. Silent where stderr is no terminal, and under `DYNAMO_PROGRESS=0`.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator

from dynamo.base.config import config

LONG = 2.0


@contextlib.contextmanager
def progress(what: str, why: str) -> Iterator[None]:
    """Tells of a long block. what: the function; why: the reason of this compile."""
    if not config.progress or not sys.stderr.isatty():
        yield
        return
    start = time.perf_counter()
    told = threading.Event()

    def tell() -> None:
        told.set()
        sys.stderr.write(f"dynamo: compiling {what} ({why}) ... ")
        sys.stderr.flush()

    timer = threading.Timer(LONG, tell)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        if told.is_set():
            sys.stderr.write(f"{time.perf_counter() - start:.1f} s\n")
