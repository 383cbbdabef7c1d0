"""Guard set -> guard program: sources become a tree of accessors, guards checks at its nodes.

In: guards and the sources to collect. Out: a `_C.Program`, a flat list of instructions over value
registers. Each source is fetched once, parents first. What is read from a plain dict (an instance
dict, a module's globals) stands between TAG_TEST and TAG_SEAL and is skipped while the dict is
unchanged; there also stand the checks that the identity of the value decides. Checks of the
global state and of
the arguments come before those of what depends on them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

import torch

from dynamo import _C
from dynamo.base.instances import is_referable, thread_dict
from dynamo.base.subclasses import as_in_program
from dynamo.guards import sources as s
from dynamo.guards.kinds import GUARD_KINDS, const_equal
from dynamo.guards.records import Guard
from dynamo.guards.shape_code import ShapeFacts, compile_shape
from dynamo.guards.states import state_of, upcoming
from dynamo.guards.weak import HEAP_TYPE

OPCODES: dict[str, int] = _C.OPCODES
Row = tuple[int, int, int, int, Any, int]

# Source class -> (opcode, argument object, argument number).
STEPS: dict[type[s.Source], tuple[str, Callable[[Any], Any], Callable[[Any], int]]] = {
    s.GlobalsSource: ("GLOBALS", lambda x: None, lambda x: 0),
    s.ModuleSource: ("MODULE", lambda x: x.name, lambda x: 0),
    s.ObjectSource: ("OBJECT", lambda x: x.value, lambda x: 0),
    s.AttrSource: ("ATTR", lambda x: x.name, lambda x: 0),
    s.DictSource: ("DICT", lambda x: None, lambda x: 0),
    s.ItemSource: ("ITEM", lambda x: x.key, lambda x: x.key if is_index(x.key) else 0),
    s.DictKeySource: ("KEY_AT", lambda x: None, lambda x: x.index),
    s.DictValueSource: ("VALUE_AT", lambda x: None, lambda x: x.index),
    s.CellContentsSource: ("CONTENTS", lambda x: None, lambda x: 0),
    s.TypeSource: ("TYPE_OF", lambda x: None, lambda x: 0),
    s.WeakRefSource: ("DEREF", lambda x: None, lambda x: 0),
    s.StateSource: ("STATE", lambda x: state_of, lambda x: 0),
    s.ThreadDictSource: ("STATE", lambda x: thread_dict, lambda x: 0),
    s.EqualSource: ("STATE", lambda x: x.said, lambda x: 0),
    s.AsPlain: ("STATE", lambda x: s.as_plain, lambda x: 0),
    s.TableSource: ("STATE", lambda x: s.table_values, lambda x: 0),
    s.CallSource: ("CALL", lambda x: None, lambda x: 0),
    s.UpcomingSource: ("STATE", lambda x: partial(upcoming, index=x.index), lambda x: 0),
    s.ArraySource: ("ARRAY", lambda x: (x.kind, torch.from_numpy), lambda x: 0),
}
FROM_DICT = (s.ItemSource, s.DictValueSource, s.DictKeySource)
# Cheap and likely to fail first; kinds not named come last.
RANK = {
    kind: rank
    for rank, kind in enumerate(
        ("TYPE", "ID", "CONST", "TENSOR", "LENGTH", "CODE", "DICT_LACKS", "DICT_HAS", "DICT_KEYS")
    )
}
SINGLETONS = (None, True, False, Ellipsis, NotImplemented)


@s.hashed_once
@dataclass(frozen=True, slots=True)
class BuiltinsSource(s.Source):
    """The frame's builtins dict."""


def is_index(key: Any) -> bool:
    return type(key) is int and -(2**31) <= key < 2**31


@dataclass(slots=True, eq=False)
class Node:
    """One source: its register, its checks, and what is read from it."""

    source: s.Source
    register: int
    checks: list[tuple[int, Guard]] = field(default_factory=list)
    children: list[Node] = field(default_factory=list)

    def is_dict(self) -> bool:
        """Read as a dict: its guards or its place say so (TAG_TEST looks again at run time)."""
        if isinstance(self.source, s.DictSource | s.GlobalsSource | BuiltinsSource):
            return True
        return any(
            g.kind == "TYPE" and isinstance(g.payload, type) and issubclass(g.payload, dict)
            for _, g in self.checks
        )


class ProgramBuilder:
    """Collects nodes, then emits instructions."""

    def __init__(self) -> None:
        self.nodes: dict[s.Source, Node] = {}
        self.roots: list[Node] = []
        self.local_names: dict[str, int] = {}
        self.cell_names: dict[str, int] = {}
        self.rows: list[Row] = []

    def node(self, source: s.Source) -> Node:
        """The node of a source; made with its parents when it is new."""
        known = self.nodes.get(source)
        if known is not None:
            return known
        parent = self.parent_of(source)
        base = None if parent is None else self.node(parent)
        made = Node(source, len(self.nodes))
        self.nodes[source] = made
        (self.roots if base is None else base.children).append(made)
        return made

    @staticmethod
    def parent_of(source: s.Source) -> s.Source | None:
        if isinstance(source, s.GlobalSource):
            return s.GlobalsSource()
        if isinstance(source, s.BuiltinSource):
            return BuiltinsSource()
        return source.parent()

    # -- instructions ------------------------------------------------------------------------

    def emit(self, opcode: str, dst: int, src: int, extra: int, arg: Any, guard: int = -1) -> None:
        self.rows.append((OPCODES[opcode], dst, src, extra, arg, guard))

    def fetch(self, node: Node) -> None:
        source = node.source
        parent = self.parent_of(source)
        base = -1 if parent is None else self.nodes[parent].register
        if isinstance(source, s.LocalSource):
            number = self.local_names.setdefault(source.name, len(self.local_names))
            self.emit("LOCAL", node.register, -1, number, None)
        elif isinstance(source, s.CellSource):
            number = self.cell_names.setdefault(source.name, len(self.cell_names))
            self.emit("CELL", node.register, -1, number, None)
        elif isinstance(source, BuiltinsSource):
            self.emit("BUILTINS", node.register, -1, 0, None)
        elif isinstance(source, s.GlobalSource | s.BuiltinSource):
            self.emit("ITEM", node.register, base, 0, source.name)
        else:
            opcode, arg, extra = STEPS[type(source)]
            self.emit(opcode, node.register, base, extra(source), arg(source))

    def place(self, guards: Iterable[Guard]) -> list[tuple[int, Guard]]:
        """Gives each guard's sources their nodes; the guards that are about several values."""
        late: list[tuple[int, Guard]] = []
        for number, guard in enumerate(guards):
            if guard.kind == "GLOBAL_STATE":
                with as_in_program():
                    now = _C.global_state()
                state = guard.payload if guard.payload is not None else now
                self.emit("GLOBAL_STATE", -1, -1, 0, state, number)
            elif guard.kind in PAIRS or guard.kind in GROUPS or guard.kind == "SHAPE":
                late.append((number, guard))
                wanted = other_sources(guard)
                for source in ([] if guard.source is None else [guard.source]) + wanted:
                    self.node(source)
            else:
                assert guard.source is not None, guard
                self.node(guard.source).checks.append((number, guard))
        return late

    def walk(self, node: Node) -> None:
        """Everything about a node that was fetched and whose identity checks are done."""
        dict_like = node.is_dict()
        ordered = self.is_plain(node)
        pinned = [
            c for c in node.children
            if dict_like and reads_dict(c.source)
            and (ordered or isinstance(c.source, s.ItemSource | s.GlobalSource | s.BuiltinSource))
        ]
        on_dict = [c for c in node.checks if dict_like and c[1].kind in DICT_CHECKS]
        on_dict = self.keys_only_when_plain(node, on_dict)
        if pinned or on_dict:
            start = len(self.rows)
            self.emit("TAG_TEST", -1, node.register, 0, None)
            for number, guard in on_dict:
                self.check(node, number, guard)
            for child in pinned:
                self.fetch(child)
                for number, guard in child.checks:
                    if decided_by_identity(guard):
                        self.check(child, number, guard)
            distance = len(self.rows) - start
            self.emit("TAG_SEAL", -1, node.register, distance, None)
            self.rows[start] = (*self.rows[start][:3], distance, None, -1)
        for child in pinned:
            for number, guard in sorted(child.checks, key=rank):
                if not decided_by_identity(guard):
                    self.check_unless_dict(child, number, guard)
            self.walk(child)
        for child in node.children:
            if child not in pinned:
                self.visit(child)

    def visit(self, node: Node) -> None:
        """Fetches and checks a node that no dict pins."""
        self.fetch(node)
        for number, guard in sorted(node.checks, key=rank):
            self.check_unless_dict(node, number, guard)
        self.walk(node)

    def keys_only_when_plain(
        self, node: Node, checks: list[tuple[int, Guard]]
    ) -> list[tuple[int, Guard]]:
        """An OrderedDict can be reordered without a new version: its order is always looked at."""
        if not checks or self.is_plain(node):
            return checks
        return [c for c in checks if c[1].kind != "DICT_KEYS"]

    @staticmethod
    def is_plain(node: Node) -> bool:
        """True for what is certainly a dict of the exact type, whose version tells its order."""
        if isinstance(node.source, s.DictSource | s.GlobalsSource | BuiltinsSource):
            return True
        return any(g.kind == "TYPE" and g.payload is dict for _, g in node.checks)

    def check_unless_dict(self, node: Node, number: int, guard: Guard) -> None:
        """A check, unless `walk` puts it under the node's tag."""
        if guard.kind in DICT_CHECKS and node.is_dict():
            if (number, guard) in self.keys_only_when_plain(node, [(number, guard)]):
                return
        self.check(node, number, guard)

    def check(self, node: Node, number: int, guard: Guard) -> None:
        if guard.kind == "PRESENT":
            return  # that it was fetched says so
        opcode, extra, arg = instruction(guard)
        self.emit(opcode, -1, node.register, extra, arg, number)


DICT_CHECKS = frozenset({"DICT_KEYS", "DICT_HAS", "DICT_LACKS"})


def reads_dict(source: s.Source) -> bool:
    return isinstance(source, s.GlobalSource | s.BuiltinSource) or isinstance(source, FROM_DICT)


def rank(check: tuple[int, Guard]) -> int:
    return RANK.get(check[1].kind, len(RANK))


def decided_by_identity(guard: Guard) -> bool:
    """The same object can't pass once and fail later."""
    if guard.kind == "ID":
        return True
    if guard.kind == "TYPE":  # modules and instances of Python classes can change their class
        return not guard.payload.__flags__ & HEAP_TYPE and guard.payload is not ModuleType
    return guard.kind == "CONST" and is_immutable(guard.payload)


def is_immutable(value: Any) -> bool:
    if isinstance(value, tuple | frozenset):
        return all(map(is_immutable, value))
    return value is None or type(value) in (bool, int, float, complex, str, bytes)


def instruction(guard: Guard) -> tuple[str, int, Any]:
    """(opcode, number, object) of a check of one value."""
    opcode, payload = GUARD_KINDS[guard.kind].opcode, guard.payload
    if guard.kind == "ID":
        return ("IS_WEAK" if is_referable(payload) else "IS", 0, payload)
    if guard.kind == "CONST":
        if any(payload is single for single in SINGLETONS):
            return ("IS", 0, payload)
        return (opcode, int(is_immutable(payload)), payload)
    if guard.kind == "TENSOR":
        return (opcode, 0, (payload.cls, payload.raw, payload.sizes, payload.strides))
    if guard.kind in ("LENGTH", "BOOL_TRUTH", "WEAKREF_ALIVE"):
        return (opcode, int(payload), None)
    if guard.kind == "DICT_KEYS":
        return (opcode, 0, tuple(payload)) if payload else ("EMPTY", 0, None)
    if guard.kind == "SET_ITEMS":
        return (opcode, 0, frozenset(payload))
    return (opcode, 0, payload)


def implied(guard: Guard, others: Iterable[Guard]) -> bool:
    """Whether a guard on the same source already says as much."""
    kinds = {other.kind: other for other in others if other is not guard}
    if guard.kind == "TYPE":
        exact = kinds.get("CONST")
        if exact is not None and type(exact.payload) is guard.payload:
            return True
        tensor = kinds.get("TENSOR")
        return tensor is not None and tensor.payload.cls is guard.payload
    if guard.kind in ("LENGTH", "DICT_HAS", "DICT_LACKS"):
        keys = kinds.get("DICT_KEYS")
        if keys is None:
            return False
        return guard.kind == "LENGTH" or (
            any(const_equal(key, guard.payload) for key in keys.payload)
            == (guard.kind == "DICT_HAS")
        )
    return False


PAIRS = frozenset({"SAME", "NOT_SAME"})
GROUPS = {"NO_TENSOR_ALIAS": "DISTINCT", "DIFFERENT": "DISTINCT",
          "NO_STORAGE_ALIAS": "DISTINCT_STORAGE"}


class ProgramText(NamedTuple):
    """What a program is made of. rows: of instructions; registers: how many values they hold;
    collected: the registers of the inputs."""

    rows: list[Row]
    registers: int
    local_names: tuple[str, ...]
    cell_names: tuple[str, ...]
    collected: tuple[int, ...]


def build_program(guards: Iterable[Guard], collect: Sequence[s.Source] = ()) -> Any:
    """The program; on success it yields the values at `collect`, in order."""
    return assemble(program_text(guards, collect))


def assemble(text: ProgramText) -> Any:
    return _C.Program(*text)


def program_text(guards: Iterable[Guard], collect: Sequence[s.Source] = ()) -> ProgramText:
    """The instructions of the guards' program."""
    builder = ProgramBuilder()
    late = builder.place(guards)
    registers = tuple(builder.node(source).register for source in collect)
    for node in builder.nodes.values():
        said = [guard for _, guard in node.checks]
        node.checks = [check for check in node.checks if not implied(check[1], said)]
    for root in sorted(builder.roots, key=lambda r: (len(r.children) > 0, r.register)):
        builder.visit(root)
    for number, guard in late:
        emit_late(builder, number, guard)
    return ProgramText(
        builder.rows,
        len(builder.nodes),
        tuple(builder.local_names),
        tuple(builder.cell_names),
        registers,
    )


def python_steps(guards: Iterable[Guard], program: Any) -> list[tuple[str, s.Source | Guard]]:
    """(opcode, what it checks or fetches) of the instructions of the guards' program that have had
    to run Python code so far."""
    guards, builder = list(guards), ProgramBuilder()
    steps = program.python_steps
    if not steps:
        return []
    builder.place(guards)
    sources = {node.register: source for source, node in builder.nodes.items()}
    rows = program.dump()
    found: list[tuple[str, s.Source | Guard]] = []
    for opcode, fetched, _, _, _, number in [rows[step] for step in steps]:
        found.append((opcode, guards[number] if number >= 0 else sources[fetched]))
    return found


def other_sources(guard: Guard) -> list[s.Source]:
    """What a guard about several values reads beside its own source."""
    if isinstance(guard.payload, ShapeFacts):
        return [fact.source for fact in guard.payload.facts.values()]
    return [guard.payload] if guard.kind in PAIRS else list(guard.payload)


def emit_late(builder: ProgramBuilder, number: int, guard: Guard) -> None:
    """Checks of several values, when all are fetched."""
    if guard.kind in PAIRS:
        assert guard.source is not None, guard
        left, right = builder.node(guard.source).register, builder.node(guard.payload).register
        builder.emit(guard.kind, -1, left, right, None, number)
        return
    if guard.kind == "SHAPE":
        words = compile_shape(guard.payload, lambda source: builder.node(source).register)
        builder.emit("SHAPE", -1, -1, 0, words, number)
        return
    group = tuple(builder.node(source).register for source in guard.payload)
    builder.emit(GROUPS[guard.kind], -1, -1, 0, group, number)
