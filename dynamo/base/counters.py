"""Numbers for tests and reports: counters by group, and seconds by stage.

    >>> counters["stats"]["frames"] += 1
    >>> with timed("trace"):
    ...     pass
    >>> sorted(compile_times())[:1]
    ['trace']
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Hashable, Iterator

from dynamo.base import logs

counters: defaultdict[str, Counter[str]] = defaultdict(Counter)

_seconds: dict[str, float] = defaultdict(float)
_since = [0.0]
_reported: set[Hashable] = set()
_lock = threading.Lock()
# Of the timed blocks: stage, begin and end by `time.perf_counter`, thread, whose compile it is.
Span = tuple[str, float, float, int, logs.Compile]
_spans: deque[Span] = deque(maxlen=20_000)

_open: dict[int, list[str]] = {}  # the stages in which a thread is, the innermost last


@contextlib.contextmanager
def timed(stage: str) -> Iterator[None]:
    """Adds the wall-clock seconds of the block to the stage (nested stages count in both)."""
    start = time.perf_counter()
    open_stages = _open.setdefault(threading.get_ident(), [])
    open_stages.append(stage)
    try:
        yield
    finally:
        end = time.perf_counter()
        open_stages.pop()
        if not open_stages:
            _open.pop(threading.get_ident(), None)
        with _lock:
            _seconds[stage] += end - start
            _spans.append((stage, start, end, threading.get_ident(), logs.compile_now()))


def stage_of(thread: int) -> str:
    """The innermost timed block in which a thread is; empty outside of all."""
    found = _open.get(thread, [])[-1:]
    return found[0] if found else ""


def compile_times() -> dict[str, float]:
    """Seconds by stage since the start of the process or the last `reset`."""
    with _lock:
        return {stage: round(seconds, 6) for stage, seconds in _seconds.items()}


def spans() -> list[Span]:
    """The timed blocks since then, each as (stage, begin, end, thread, compile)."""
    with _lock:
        return list(_spans)


def once(key: Hashable) -> bool:
    """True the first time for this key since the last `reset`: for what is reported once."""
    with _lock:
        if key in _reported:
            return False
        _reported.add(key)
        return True


def since() -> float:
    """When the last `reset` was, as `time.time()` tells it; 0.0 for the start of the process."""
    return _since[0]


def reset() -> None:
    """Forget all counts and times, and what was reported."""
    counters.clear()
    _since[0] = time.time()
    with _lock:
        _seconds.clear()
        _spans.clear()
        _reported.clear()
