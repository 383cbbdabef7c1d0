"""What only a report wants and is too large, or too slow, to be kept for nobody: graphs, loop IR.

In: `keep(kind, data)` from any stage, while `config.report` names a folder. Out: `recorded(kind)`.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from typing import Any

from dynamo.base import logs
from dynamo.base.config import config

LIMIT = 1_000


@dataclass(frozen=True, slots=True)
class Recording:
    """data: whatever the kind says. compile: whose it is."""

    kind: str
    compile: logs.Compile
    data: Any


_recent: deque[Recording] = deque(maxlen=LIMIT)
_lock = threading.Lock()


def wanted() -> bool:
    """Whether somebody wants a report."""
    return bool(config.report)


def keep(kind: str, data: Any) -> None:
    """Keeps it for what this thread compiles."""
    with _lock:
        _recent.append(Recording(kind, logs.compile_now(), data))


def recorded(kind: str) -> list[Recording]:
    """All of a kind, oldest first."""
    with _lock:
        return [recording for recording in _recent if recording.kind == kind]


def clear() -> None:
    """Forgets all."""
    with _lock:
        _recent.clear()
