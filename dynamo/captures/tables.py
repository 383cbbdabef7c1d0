"""Guards and guard programs as tables of plain values, which are written and read in C.

In: values of a cached trace, thousands of small objects that share their parts. Out: one row for
each object that is no plain value, its parts before it, and the value in which a list of one number
stands for such a row. Each object is looked at once, in Python; `pickle` writes what is left
without asking about each text and number.

    ("GlobalSource", "torch"), ("AttrSource", [0], "relu"), ("@row", 7), ..
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from dynamo.captures.anchors import Anchors
from dynamo.captures.fingerprints import Kinds
from dynamo.captures.pickles import KINDS, MAKERS, NAMES_OF_MAKERS, RECORDS, Reader, Writer
from dynamo.codegen.continuation import Continuations
from dynamo.guards.build import ProgramText
from dynamo.guards.build import Row as Instruction
from dynamo.guards.records import Guard, UserLine, released
from dynamo.guards.weak import strongly
from dynamo.store.records import Uncacheable

AS_IT_IS = frozenset(map(id, (int, float, complex, bool, str, bytes, type(None))))
CONTAINERS: dict[type, str] = {
    list: "@list", set: "@set", frozenset: "@frozenset", range: "@range", slice: "@slice",
    dict: "@dict"}  # fmt: skip
IDS_OF_CONTAINERS = {id(kind): name for kind, name in CONTAINERS.items()}
NO_IDENTITY = Kinds(int, float, complex, str, bytes, tuple, frozenset, list, dict, set)
FIELDS_OF_RECORDS = {id(kind): (name, tuple(kind.__dataclass_fields__))  # type: ignore[attr-defined]
                     for kind, name in RECORDS.items()}  # fmt: skip
ARGUMENT = 4  # of an instruction: the one part that is no number


class TableWriter:
    """Rows of one table."""

    def __init__(self, anchors: Anchors, continuations: Continuations) -> None:
        self.names = Writer(io.BytesIO(), anchors, continuations)
        self.rows: list[tuple[Any, ...]] = []
        self._known: dict[int, tuple[list[int], Any]] = {}
        self._wanted: set[int] = set()

    def plain(self, value: Any) -> Any:
        """What stands for a value. Errors: Uncacheable."""
        if id(type(value)) in AS_IT_IS:
            return value
        if type(value) is tuple:
            return tuple([item if id(type(item)) in AS_IT_IS else self.plain(item)
                          for item in value])  # fmt: skip
        known = self._known.get(id(value))
        if known is None:
            if id(value) in self._wanted:
                raise Uncacheable("it holds a container that is in itself")
            self._wanted.add(id(value))
            row = self._row_of(value)
            self._wanted.discard(id(value))
            known = self._known[id(value)] = [len(self.rows)], value
            self.rows.append(row)
        return known[0]

    def _row_of(self, value: Any) -> tuple[Any, ...]:
        record = FIELDS_OF_RECORDS.get(id(type(value)))
        if record is not None:  # most are: sources
            title, names = record
            return title, *[self.plain(getattr(value, field)) for field in names]
        name = self.names.persistent_id(value)
        if type(name) is int:
            return "@row", name
        if type(name) is str:
            return "@maker", name
        if name is not None:
            return f"@{name[0]}", name[1]
        container = IDS_OF_CONTAINERS.get(id(type(value)))
        if container is not None:
            return container, *self._items_of(value)
        make, parts = self.names.reducer_override(value)
        return RECORDS.get(make) or NAMES_OF_MAKERS[id(make)], *map(self.plain, parts)

    def _items_of(self, value: Any) -> Iterable[Any]:
        if type(value) is range or type(value) is slice:
            return map(self.plain, (value.start, value.stop, value.step))
        return map(self.plain, value.items() if type(value) is dict else value)

    def guards(self, guards: Iterable[Guard]) -> list[tuple[Any, ...]]:
        """The guards, with what they are about, to which an entry refers weakly."""
        lines: dict[UserLine, Any] = {}
        plain = self.plain
        found = []
        for guard in guards:
            line: Any = guard.line
            if line is not None:
                if line not in lines:
                    lines[line] = plain(line)
                line = lines[line]
            found.append((guard.kind, plain(guard.source), plain(_payload_of(guard)), line))
        return found

    def program(self, program: ProgramText) -> tuple[Any, ...]:
        """The program, and which of its instructions have an argument that is to be made."""
        rows: list[Instruction] = []
        made: list[int] = []
        for row in program.rows:
            argument = row[ARGUMENT]
            if id(type(argument)) not in AS_IT_IS:
                made.append(len(rows))
                row = (*row[:ARGUMENT], self.plain(argument), *row[ARGUMENT + 1:])  # type: ignore[assignment]
            rows.append(row)
        return (rows, *program[1:]), made

    def written(self, value: Any) -> tuple[bytes, list[int]]:
        """The table with a value of its own making as bytes, and the rows of objects it names."""
        return pickle.dumps((self.rows, value), protocol=5), sorted(self.names.named)


def _payload_of(guard: Guard) -> Any:
    if guard.kind == "DICT_KEYS":
        return tuple(map(strongly, guard.payload))
    payload = strongly(guard.payload)
    if payload is None and guard.payload is not None:
        raise Uncacheable("something that it is about is gone")
    if guard.kind == "ID" and type(payload) in NO_IDENTITY:
        raise Uncacheable(f"it compares the identity of {guard.source}")
    return payload


# -- reading ---------------------------------------------------------------------------------------


class TableReader(Reader):
    """objects: of the rows. `value` is what stands in the bytes, `full` makes parts of it."""

    def __init__(
        self, content: bytes, objects: Sequence[Any] | Mapping[int, Any],
        continuations: Continuations,
    ) -> None:
        super().__init__(content, objects, continuations)
        rows, self.value = self.load()
        self._made: list[Any] = []
        for name, *parts in rows:
            self._made.append(self._make(name, parts))

    def _make(self, name: str, parts: list[Any]) -> Any:
        if name in NAMED:
            key = parts[0]
            return self.persistent_load(key if name in DIRECT else (name[1:], key))
        full = [part if id(type(part)) in AS_IT_IS else self.full(part) for part in parts]
        if name in BUILDERS:
            return BUILDERS[name](full)
        if name == "continuation":
            return self.continuation(*full)
        return (KINDS[name] if name in KINDS else MAKERS[name])(*full)

    def full(self, value: Any) -> Any:
        kind = type(value)
        if kind is list:
            return self._made[value[0]]
        if kind is tuple:
            return tuple([item if id(type(item)) in AS_IT_IS else self.full(item)
                          for item in value])  # fmt: skip
        return value

    def guards(self) -> tuple[Guard, ...]:
        """As an entry keeps them."""
        full = self.full
        return tuple([released(Guard(kind, full(source), full(payload), full(line)))
                      for kind, source, payload, line in self.value])  # fmt: skip

    def program(self, written: tuple[Any, ...], made: Iterable[int]) -> ProgramText:
        rows = written[0]
        for number in made:
            row = rows[number]
            argument = self.full(row[ARGUMENT])
            rows[number] = (*row[:ARGUMENT], argument, *row[ARGUMENT + 1:])
        return ProgramText(*written)


DIRECT = frozenset({"@row", "@maker"})
NAMED = DIRECT | {"@single", "@record"}
BUILDERS: dict[str, Callable[[list[Any]], Any]] = {
    "@list": list, "@set": set, "@frozenset": frozenset, "@dict": dict,
    "@range": lambda parts: range(*parts), "@slice": lambda parts: slice(*parts)}  # fmt: skip
