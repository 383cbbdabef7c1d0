"""Which guard of an entry fails for a frame, in a sentence: value, old and new, the user's line."""

from __future__ import annotations

from collections.abc import Iterable

from dynamo import _C
from dynamo.guards.kinds import GUARD_KINDS
from dynamo.guards.records import Guard
from dynamo.guards.sources import Scope, Source


def failures(guards: Iterable[Guard], scope: Scope) -> list[str]:
    """One sentence for each guard that fails in this scope (plain-Python twin of the program)."""
    return [text for guard in guards if (text := failure(guard, scope)) is not None]


def failure(guard: Guard, scope: Scope) -> str | None:
    """None where the guard holds, else what differs."""
    where = f" (needed at {guard.line})" if guard.line else ""
    kind = GUARD_KINDS[guard.kind]
    if guard.source is None:
        state = _C.global_state()
        return None if kind.holds(state, guard.payload) else kind.sentence("", guard.payload, state)
    text = guard.source.text()
    try:
        value = guard.source.fetch(scope)
        payload = guard.payload
        if isinstance(payload, Source) and guard.kind in ("SAME", "NOT_SAME"):
            payload = payload.fetch(scope)
        if kind.holds(value, payload):
            return None
        return kind.sentence(text, guard.payload, value) + where
    except (KeyError, AttributeError, IndexError, ValueError, TypeError):
        return f"{text} is gone" + where
