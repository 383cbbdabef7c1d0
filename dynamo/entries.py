"""What an entry keeps for people."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dynamo.guards.records import Guard


@dataclass
class EntryRecord:
    """What an entry keeps for people: its guards and its compile id.

    changes: what it does to objects that existed before, in words.
    modes: the modes that it was compiled in, which are guarded by identity.
    """

    guards: tuple[Guard, ...]
    compile_id: str
    keepalive: Any = None
    changes: tuple[str, ...] = ()
    modes: tuple[Any, ...] = ()
