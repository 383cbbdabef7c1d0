"""Which guard of an entry fails for a frame, in a sentence: value, old and new, the user's line."""

from __future__ import annotations

from collections.abc import Iterable

from dynamo import _C
from dynamo.guards.build import GROUPS
from dynamo.guards.kinds import GUARD_KINDS
from dynamo.guards.records import Guard
from dynamo.guards.sources import Scope, Source
from dynamo.guards.weak import Weak, strongly

# What reading a place raises when it is gone.
GONE = (KeyError, AttributeError, IndexError, ValueError, TypeError)


def failures(guards: Iterable[Guard], scope: Scope) -> list[str]:
    """One sentence for each guard that fails in this scope (plain-Python twin of the program)."""
    return [text for guard in guards if (text := failure(guard, scope)) is not None]


def failure(guard: Guard, scope: Scope) -> str | None:
    """None where the guard holds, else what differs."""
    where = f" (needed at {guard.line})" if guard.line else ""
    if guard.kind == "SHAPE":
        try:
            return None if guard.payload.holds(scope) else guard.payload.sentence(scope) + where
        except GONE:
            return f"{guard.payload.expression}: a value in it is gone{where}"
    if guard.source is None and guard.kind in GROUPS:
        return group_failure(guard, scope)
    kind = GUARD_KINDS[guard.kind]
    if guard.source is None:
        state = _C.global_state()
        return None if kind.holds(state, guard.payload) else kind.sentence("", guard.payload, state)
    text = guard.source.text()
    try:
        value = guard.source.fetch(scope)
        payload = strongly(guard.payload)
        if payload is None and isinstance(guard.payload, Weak):
            return f"{text} was {guard.payload.text}, which is gone" + where
        if isinstance(payload, Source) and guard.kind in ("SAME", "NOT_SAME"):
            payload = payload.fetch(scope)
        if kind.holds(value, payload):
            return None
        return kind.sentence(text, payload, value) + where
    except GONE:
        return f"{text} is gone" + where


def group_failure(guard: Guard, scope: Scope) -> str | None:
    """The first two values of a group that are one object (or share a storage)."""
    seen: dict[int, Source] = {}
    by_storage = guard.kind == "NO_STORAGE_ALIAS"
    for source in guard.payload:
        value = source.fetch(scope)
        if by_storage and value.untyped_storage().nbytes() == 0:
            continue
        key = value.untyped_storage()._cdata if by_storage else id(value)
        if key in seen:
            word = "share memory" if by_storage else "are one tensor"
            return f"{source.text()} and {seen[key].text()} now {word}"
        seen[key] = source
    return None
