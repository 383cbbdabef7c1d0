"""Guard set -> guard program: sources become a tree of accessor nodes, guards checks at the nodes.

`build_program` numbers the nodes parents first, each source once, so that prefixes are walked once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import CodeType
from typing import Any

from dynamo import _C
from dynamo.guards import sources as s
from dynamo.guards.kinds import GUARD_KINDS
from dynamo.guards.records import Guard, GuardSet

# Source class -> (node kind in csrc/guards.cpp, argument). Roots that need the code object are apart.
NODES: dict[type[s.Source], tuple[int, Callable[[Any], Any]]] = {
    s.GlobalsSource: (2, lambda x: None),
    s.BuiltinSource: (3, lambda x: x.name),
    s.ModuleSource: (4, lambda x: x.name),
    s.ObjectSource: (5, lambda x: x.value),
    s.AttrSource: (6, lambda x: x.name),
    s.DictSource: (7, lambda x: None),
    s.ItemSource: (8, lambda x: x.key),
    s.DictKeySource: (9, lambda x: x.index),
    s.DictValueSource: (10, lambda x: x.index),
    s.CellContentsSource: (11, lambda x: None),
    s.TypeSource: (12, lambda x: None),
    s.WeakRefSource: (13, lambda x: None),
    s.ReduceSource: (14, lambda x: None),
}
LOCAL, FREE_CELL = 0, 1


class ProgramBuilder:
    """Collects nodes and checks for one code object."""

    def __init__(self, code: CodeType) -> None:
        self.locals = {name: i for i, name in enumerate(code.co_varnames)}
        # A cell variable that is an argument still lies in its fast slot at the frame's start.
        self.free = {name: i for i, name in enumerate(code.co_freevars)}
        self.nodes: list[tuple[int, int, Any]] = []
        self.checks: list[tuple[int, int, Any]] = []
        self.numbers: dict[s.Source, int] = {}
        self.sources: list[s.Source] = []

    def node(self, source: s.Source) -> int:
        """Number of the node that fetches the source."""
        if source in self.numbers:
            return self.numbers[source]
        if isinstance(source, s.GlobalSource):  # a step from the globals dict
            number = self.add(source, 8, self.node(s.GlobalsSource()), source.name)
        elif isinstance(source, s.LocalSource):
            number = self.add(source, LOCAL, -1, self.locals[source.name])
        elif isinstance(source, s.CellSource):
            number = self.add(source, FREE_CELL, -1, self.free[source.name])
        else:
            kind, argument = NODES[type(source)]
            base = source.parent()
            parent = -1 if base is None else self.node(base)
            number = self.add(source, kind, parent, argument(source))
        return number

    def add(self, source: s.Source, kind: int, parent: int, argument: Any) -> int:
        self.nodes.append((kind, parent, argument))
        self.sources.append(source)
        self.numbers[source] = len(self.nodes) - 1
        return len(self.nodes) - 1

    def check(self, guard: Guard) -> None:
        node = -1 if guard.source is None else self.node(guard.source)
        payload = guard.payload
        if guard.kind == "TENSOR":
            self.checks.append((GUARD_KINDS["TYPE"].opcode, node, payload.cls))
            payload = (payload.example, payload.sizes, payload.strides)
        elif guard.kind in ("SAME", "NOT_SAME"):
            payload = self.node(payload)
        self.checks.append((GUARD_KINDS[guard.kind].opcode, node, payload))


def build_program(guards: GuardSet, collect: Sequence[s.Source], code: CodeType) -> Any:
    """The C++ program. On success it yields the values at `collect`, in order."""
    builder = ProgramBuilder(code)
    for guard in guards:
        builder.check(guard)
    wanted = tuple(builder.node(source) for source in collect)
    return _C.Program(builder.nodes, builder.checks, wanted)
