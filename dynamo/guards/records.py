"""Guards as records: what the evaluator assumed, why, and because of which user line.

The evaluator adds `Guard`s to a `GuardSet`; `build.py` turns the set into the C++ program;
`explain.py` says which one failed. What each kind means is a row of `kinds.GUARD_KINDS`.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

from dynamo.guards.sources import Source
from dynamo.guards.weak import weakly

ABOUT_OBJECTS = frozenset({"ID", "TYPE", "SUBCLASS"})  # kinds whose payload is the object itself


PLAIN_KEYS = frozenset({str, int, bool, float, bytes, type(None)})


@dataclass(frozen=True, slots=True)
class UserLine:
    """A place in the user's program."""

    filename: str
    lineno: int
    function: str
    text: str = ""

    def __str__(self) -> str:
        return f"{self.filename}:{self.lineno} in {self.function}"


def source_text(line: UserLine) -> str:
    """The text of a user's line, empty when the file can't be read."""
    return linecache.getline(line.filename, line.lineno).strip()


def name_of_part(code: CodeType) -> str:
    """What logs call a code object: `__resume_12_f` is f behind a graph break in line 12. Its plain
    name, which tracebacks show, is the user's."""
    return code.co_qualname if code.co_qualname.startswith("__resume_") else code.co_name


@dataclass(frozen=True, slots=True)
class Guard:
    """One assumption.

    kind: key of `kinds.GUARD_KINDS`.
    source: the value that it is about; None for global state.
    payload: what the kind compares with (a constant, an id, tensor metadata, other sources...).
    line: the user's line that made the evaluator assume it.
    """

    kind: str
    source: Source | None
    payload: Any = None
    line: UserLine | None = None

    def key(self) -> tuple[Any, ...]:
        return key_of(self.kind, self.source, self.payload)


def key_of(kind: str, source: Source | None, payload: Any) -> tuple[Any, ...]:
    """Identity of a guard for removing duplicates. Objects of the program count by identity, since
    their own `__hash__` must not run, and so does what can't be hashed."""
    if kind in ABOUT_OBJECTS:
        return (kind, source, id(payload))
    if kind == "DICT_KEYS":
        keys = tuple((type(k), k) if type(k) in PLAIN_KEYS else id(k) for k in payload)
        return (kind, source, keys)
    try:
        hash(payload)
        return (kind, source, (type(payload), payload))
    except TypeError:
        return (kind, source, (type(payload), id(payload)))


def released(guard: Guard) -> Guard:
    """The guard as an entry keeps it: without keeping alive what it is about."""
    if guard.kind == "DICT_KEYS":
        payload: Any = tuple(map(weakly, guard.payload))
    elif guard.kind in ABOUT_OBJECTS:
        payload = weakly(guard.payload)
    else:
        return guard
    return Guard(guard.kind, guard.source, payload, guard.line)


@dataclass(slots=True)
class GuardSet:
    """All guards of one trace, in the order in which they were added, without duplicates.

    A value that another guard looks at is there: PRESENT guards of such values are left out. So are
    TYPE guards of functions whose code is guarded, and of values that are compared with a constant.
    """

    guards: dict[tuple[Any, ...], Guard] = field(default_factory=dict)

    def add(self, guard: Guard) -> None:
        self.guards.setdefault(guard.key(), guard)

    def add_at(
        self, line: Callable[[], UserLine | None], kind: str, source: Source | None, payload: Any
    ) -> None:
        """`add` of a guard whose line is only asked for where the guard is new: few are."""
        key = key_of(kind, source, payload)
        if key not in self.guards:
            self.guards[key] = Guard(kind, source, payload, line())

    def __iter__(self) -> Iterator[Guard]:
        read: set[Source] = set()
        for guard in self.guards.values():
            source = guard.source if guard.kind != "PRESENT" else None
            while source is not None and source not in read:
                read.add(source)
                source = source.parent()
        typed = {g.source for g in self.guards.values() if g.kind in ("CODE", "CONST")}
        implied: dict[str, Container[Source | None]] = {"PRESENT": read, "TYPE": typed}
        for guard in self.guards.values():
            if guard.source not in implied.get(guard.kind, ()):
                yield guard

    def __len__(self) -> int:
        return len(self.guards)
