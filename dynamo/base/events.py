"""Structured events: what the compiler did, as records that programs can read.

In: `record(Event(...))` from any stage. Out: `events()`, the last `LIMIT` of them in this process,
and one JSON line each in the file that DYNAMO_TRACE names. Logs are for people, events for tools.

    >>> record(Event("compile", "0/0", {"frame": "f"}))
    >>> events()[-1].kind
    'compile'
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

LIMIT = 10_000


@dataclass(frozen=True, slots=True)
class Event:
    """kind: what happened; compile_id: `frame/attempt`; data: facts that JSON can hold."""

    kind: str
    compile_id: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)
    time: float = field(default_factory=time.time)

    def as_json(self) -> str:
        """One line; values that JSON does not know are written as their repr."""
        row = {"time": self.time, "kind": self.kind, "id": self.compile_id, **self.data}
        return json.dumps(row, default=repr)


class EventLog:
    """A bounded list of events, safe to use from several threads."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._events: deque[Event] = deque(maxlen=limit)
        self._lock = threading.Lock()

    def record(self, event: Event) -> None:
        path = os.environ.get("DYNAMO_TRACE")
        with self._lock:
            self._events.append(event)
            if path:
                with open(path, "a") as out:
                    out.write(event.as_json() + "\n")

    def events(self, kind: str | None = None) -> list[Event]:
        with self._lock:
            return [event for event in self._events if kind is None or event.kind == kind]

    def clear(self) -> None:
        with self._lock:
            self._events.clear()


_log = EventLog()
record = _log.record
events = _log.events
clear = _log.clear
