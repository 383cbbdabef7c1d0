"""The parts of a cached trace as tables of plain values, which are written and read in C.

In: values that hold real objects of the program: guards, sources, code, thousands of small objects
that share their parts. Out: one row for each object that is no plain value, its parts before it,
and the value, in which a list of one number stands for such a row. Objects of the program are
numbers of rows of `anchors.py`; the records named here are written as they are; all else is
`Uncacheable`. A continuation's code is written as the place where it goes on, and made again.

    ("GlobalSource", "torch"), ("AttrSource", [0], "relu"), ("@row", 7), ..

The reader finds no class and no function by a name that stands in the bytes: what they may name are
rows, `RECORDS` and `MAKERS`.
"""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import CodeType, FunctionType, MappingProxyType
from typing import Any

import torch

from dynamo import hook
from dynamo.captures.anchors import BY_ROW, Anchors, shown
from dynamo.captures.fingerprints import Kinds
from dynamo.codegen.continuation import Continuations, Layout
from dynamo.codegen.rebuild import RECIPE, Computes, number_function
from dynamo.codegen.retry import Raising
from dynamo.graph_operators.kernel_calls import is_kernel
from dynamo.guards import shape_code, sources
from dynamo.guards.build import ProgramText
from dynamo.guards.build import Row as Instruction
from dynamo.guards.kinds import TensorFacts
from dynamo.guards.records import Guard, UserLine, released
from dynamo.guards.registrations import REGISTRATIONS
from dynamo.guards.states import state_of, upcoming
from dynamo.guards.weak import strongly
from dynamo.store.records import Uncacheable, read_plain
from dynamo.symbolic.core.unguarded import ALIASES

FIELDS = ("co_argcount", "co_posonlyargcount", "co_kwonlyargcount", "co_nlocals", "co_stacksize",
          "co_flags", "co_code", "co_consts", "co_names", "co_varnames", "co_filename", "co_name",
          "co_qualname", "co_firstlineno", "co_linetable", "co_exceptiontable", "co_freevars",
          "co_cellvars")  # fmt: skip
SOURCES = tuple([kind for kind in vars(sources).values()
                 if isinstance(kind, type) and issubclass(kind, sources.Source)
                 and kind not in (sources.Source, sources.ObjectSource)])  # fmt: skip
RECORDS: dict[type, str] = {
    kind: kind.__qualname__
    for kind in (Guard, UserLine, TensorFacts, Layout, shape_code.Fact, shape_code.ShapeFacts,
                 *SOURCES)}  # fmt: skip
KINDS = {name: kind for kind, name in RECORDS.items()}
IDS_OF_RECORDS = {id(kind): name for kind, name in RECORDS.items()}
MUTABLE = Kinds(list, dict, set, bytearray)
SINGLES = {"...": ..., "NotImplemented": NotImplemented}
NAMED_BY_TORCH = (torch.dtype, torch.layout, torch.memory_format)
AS_IT_IS = frozenset(map(id, (int, float, complex, bool, str, bytes, type(None))))
CONTAINERS: dict[type, str] = {
    list: "@list", set: "@set", frozenset: "@frozenset", range: "@range", slice: "@slice",
    dict: "@dict"}  # fmt: skip
IDS_OF_CONTAINERS = {id(kind): name for kind, name in CONTAINERS.items()}
NO_IDENTITY = Kinds(int, float, complex, str, bytes, tuple, frozenset, list, dict, set)
FIELDS_OF_RECORDS = {id(kind): (name, tuple(kind.__dataclass_fields__))  # type: ignore[attr-defined]
                     for kind, name in RECORDS.items()}  # fmt: skip
ARGUMENT = 4  # of an instruction: the one part that is no number
GUARD = 5  # the guard that it checks


def _of_torch(name: str) -> Any:
    return getattr(torch, name.removeprefix("torch."))


def _partial(
    function: Callable[..., Any], args: tuple[Any, ...], items: tuple[tuple[str, Any], ...]
) -> Callable[..., Any]:
    return functools.partial(function, *args, **dict(items))


def _recipe(function: FunctionType) -> Computes | None:
    """What one of our functions of numbers is made of."""
    recipe = function.__dict__.get(RECIPE)
    return recipe if type(recipe) is Computes else None


def _upcoming_at(index: int) -> Callable[..., Any]:
    return functools.partial(upcoming, index=index)


class _Registered:
    """Stands for how often answers about abstract classes changed, which is another number in each
    process. What matters of it are answers, for which the next process asks again."""


REGISTERED = _Registered()
MAKERS: dict[str, Callable[..., Any]] = {
    "registered": REGISTRATIONS,
    "object": sources.ObjectSource, "raising": Raising, "disabled": hook.Disabled,
    "size": torch.Size, "of torch": _of_torch, "device": torch.device, "function": FunctionType,
    "code": CodeType, "state of": state_of, "table values": sources.table_values,
    "upcoming": _upcoming_at, "partial": _partial, "number": number_function,
    **{f"reader of {what}": reader for what, reader in shape_code.READERS.items()},
}  # fmt: skip
NAMES_OF_MAKERS = {id(maker): name for name, maker in MAKERS.items()}


class TableWriter:
    """Rows of one table. anchors: None where no object of the program may be named. new_code: what
    the table is of, if that is code; lists and dicts are then objects of the program, not plain
    data. graph: what stands in the code for the compiled one."""

    def __init__(
        self, anchors: Anchors | None, continuations: Continuations,
        new_code: CodeType | None = None, graph: Any = None,
    ) -> None:
        self.anchors, self.continuations = anchors, continuations
        self.new_code, self.graph = new_code, graph
        self.named: set[int] = set()
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
        maker = NAMES_OF_MAKERS.get(id(value))
        if maker is not None:
            return "@maker", maker
        if self._is_object(value):
            return "@row", self.row(value)
        container = IDS_OF_CONTAINERS.get(id(type(value)))
        if container is not None:
            return container, *self._items_of(value)
        if value is self.graph:
            return ("@graph",)
        if id(value) in IDS_OF_RECORDS:
            return "@record", IDS_OF_RECORDS[id(value)]
        if value is ... or value is NotImplemented:
            return "@single", "..." if value is ... else "NotImplemented"
        name, parts = self._parts_of(value)
        return name, *map(self.plain, parts)

    def row(self, value: Any) -> int:
        if self.anchors is None:
            raise Uncacheable(f"a place holds {shown(value)}")
        number = self.anchors.row(value)
        self.named.add(number)
        return number

    def _is_object(self, value: Any) -> bool:
        """Whether it is found by a row. Errors: Uncacheable."""
        kind = type(value)
        if kind in MUTABLE:
            if self.new_code is not None and kind is not dict:
                raise Uncacheable(f"its code holds {shown(value)}")
            return self.new_code is not None or self._has_row(value)
        if kind is CodeType:
            return value is not self.new_code and not self.continuations.is_continuation(value)
        if kind is FunctionType:
            rebuilt = _recipe(value) is not None
            return not rebuilt and not self.continuations.is_continuation(value.__code__)
        if value is self.graph:
            return False
        if kind is MappingProxyType:
            return True
        if issubclass(kind, type):
            return id(value) not in IDS_OF_RECORDS
        if kind is functools.partial and value.func is upcoming:
            return False
        if kind is functools.partial and self.new_code is not None:  # of an effect: made by us
            return self._has_row(value)
        return issubclass(kind, (*BY_ROW, *ALIASES)) or is_kernel(value)

    def _has_row(self, value: Any) -> bool:
        return self.anchors is not None and self.anchors.known(value) is not None

    def _parts_of(self, value: Any) -> tuple[str, Iterable[Any]]:
        """The maker of another value, and what it is given. Errors: Uncacheable."""
        kind = type(value)
        if kind is _Registered:
            return "registered", ()
        if kind is FunctionType:
            recipe = _recipe(value)
            if recipe is not None:
                return "number", recipe
            return "function", (value.__code__, value.__globals__, value.__name__)
        if kind is CodeType:
            return self._parts_of_code(value)
        if kind is sources.ObjectSource:
            held = strongly(value.held)
            if held is None and value.held is not None:
                raise Uncacheable(f"it refers to {value.name}, which is gone")
            if type(held) in MUTABLE:
                self.row(held)  # an object of the program: guards look into it
            return "object", (held, value.name)
        if kind is Raising:
            return "raising", value
        if kind is hook.Disabled:
            return "disabled", (value.function,)
        if kind is functools.partial and value.func is upcoming:
            return "upcoming", (value.keywords["index"],)
        if kind is functools.partial:
            return "partial", (value.func, value.args, tuple(value.keywords.items()))
        if kind is torch.Size:
            return "size", (tuple(value),)
        if issubclass(kind, NAMED_BY_TORCH):
            return "of torch", (str(value),)
        if kind is torch.device:
            return "device", (str(value),)
        raise Uncacheable(f"it holds {shown(value)}")

    def _parts_of_code(self, value: CodeType) -> tuple[str, Iterable[Any]]:
        if value is self.new_code:
            return "code", [getattr(value, name) for name in FIELDS]
        known = self.continuations.record(value)
        return "continuation", (
            known.original, known.instruction, known.layout, known.form,
            tuple(sorted(self.continuations.carried(value), key=repr)))

    def _items_of(self, value: Any) -> Iterable[Any]:
        if type(value) is range or type(value) is slice:
            return map(self.plain, (value.start, value.stop, value.step))
        return map(self.plain, value.items() if type(value) is dict else value)

    def guards(self, guards: Iterable[Guard]) -> list[tuple[Any, ...]]:
        """The guards, with what they are about, to which an entry refers weakly."""
        lines: dict[UserLine, Any] = {}
        plain = self.plain
        rows = []
        for guard in guards:
            line: Any = guard.line
            if line is not None:
                if line not in lines:
                    lines[line] = plain(line)
                line = lines[line]
            payload = REGISTERED if counts_classes(guard) else _payload_of(guard)
            rows.append((guard.kind, plain(guard.source), plain(payload), line))
        return rows

    def program(
        self, program: ProgramText, guards: Sequence[Guard]
    ) -> tuple[Any, ...]:
        """The program, and which of its instructions have an argument that is to be made."""
        rows: list[Instruction] = []
        made: list[int] = []
        counts = {number for number, guard in enumerate(guards) if counts_classes(guard)}
        for row in program.rows:
            argument = REGISTERED if row[GUARD] in counts else row[ARGUMENT]
            if id(type(argument)) not in AS_IT_IS:
                made.append(len(rows))
                row = (*row[:ARGUMENT], self.plain(argument), *row[ARGUMENT + 1:])  # type: ignore[assignment]
            rows.append(row)
        return (rows, *program[1:]), made

    def written(self, value: Any) -> tuple[bytes, list[int]]:
        """The table with a value of its own making as bytes, and the rows of objects it names."""
        return pickle.dumps((self.rows, value), protocol=5), sorted(self.named)


def counts_classes(guard: Guard) -> bool:
    """Whether it is about registrations of abstract classes."""
    return guard.kind == "CONST" and guard.source == sources.REGISTERED


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


class TableReader:
    """objects: of the rows; graph: what the new code calls. `value` is what stands in the bytes,
    `full` makes parts of it. Errors: Stale; those of reading other bytes."""

    def __init__(
        self, content: bytes, objects: Sequence[Any] | Mapping[int, Any],
        continuations: Continuations, graph: Any = None,
    ) -> None:
        self.objects, self.continuations = objects, continuations
        rows, self.value = read_plain(content)
        self._named: dict[str, Callable[[Any], Any]] = {
            "@row": objects.__getitem__, "@maker": MAKERS.__getitem__,
            "@single": SINGLES.__getitem__, "@record": KINDS.__getitem__}  # fmt: skip
        self._made: list[Any] = []
        for name, *parts in rows:
            self._made.append(graph if name == "@graph" else self._make(name, parts))

    def _make(self, name: str, parts: list[Any]) -> Any:
        if name in self._named:
            return self._named[name](parts[0])
        full = [part if id(type(part)) in AS_IT_IS else self.full(part) for part in parts]
        if name in BUILDERS:
            return BUILDERS[name](full)
        if name == "continuation":
            return self._continuation(*full)
        return (KINDS[name] if name in KINDS else MAKERS[name])(*full)

    def _continuation(
        self, original: CodeType, instruction: int, layout: Layout, form: str, carried: Any
    ) -> CodeType:
        """The code of a continuation, made here."""
        code = self.continuations.get(original, instruction, layout, form).code
        self.continuations.carry(code, set(carried))
        return code

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


BUILDERS: dict[str, Callable[[list[Any]], Any]] = {
    "@list": list, "@set": set, "@frozenset": frozenset, "@dict": dict,
    "@range": lambda parts: range(*parts), "@slice": lambda parts: slice(*parts)}  # fmt: skip
