"""One line on a terminal while a compile takes long: what, why, how far, how long.

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
from dynamo.base.counters import stage_of

LONG, STEP = 2.0, 0.5  # seconds before the line, and between two states of it
# In the order in which they run.
STAGES = (
    ("trace", "outputs"), ("inductor.key", "inductor.passes", "backend", "inductor"),
    ("inductor.lowering", "inductor.library_kernels"), ("inductor.scheduler",),
    ("inductor.codegen",), ("inductor.build", "inductor.load", "inductor.keep"),
)  # fmt: skip


@contextlib.contextmanager
def progress(what: str, why: str) -> Iterator[None]:
    """Tells of a long block. what: the function; why: the reason of this compile."""
    if not config.progress or not sys.stderr.isatty():
        yield
        return
    start, thread = time.perf_counter(), threading.get_ident()
    line = f"dynamo: compiling {what} ({why}) ..."
    done, told = threading.Event(), threading.Event()

    def tell() -> None:
        wait = LONG
        while not done.wait(wait):
            wait = STEP
            told.set()
            _show(f"{line} {_how_far(thread)} {time.perf_counter() - start:.0f} s")

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield
    finally:
        done.set()
        teller.join()
        if told.is_set():
            _show(f"{line} {time.perf_counter() - start:.1f} s\n")


def _show(text: str) -> None:
    """In the place of the line before."""
    sys.stderr.write(f"\r\x1b[K{text}")
    sys.stderr.flush()


def _how_far(thread: int) -> str:
    """A bar of the stages, and the one in which the thread is.

    >>> _how_far(0)
    '[......]'
    """
    stage = stage_of(thread)
    begun = [number for number, names in enumerate(STAGES, 1) if stage in names]
    bar = "#" * max(begun, default=0)
    return f"[{bar:.<{len(STAGES)}}] {stage.removeprefix('inductor.')}".rstrip()
