"""Lines of C++ under construction: indentation, open loops, and which values have a name already.

The only mutable thing of the printer; one is made for each function that is printed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from inductor.codegen.cpp.expressions import (
    indirect_lines,
    spell,
    spell_constant,
    spell_index_value,
    spell_load,
    zero,
)
from inductor.codegen.cpp.nest import Nest
from inductor.codegen.cpp.types import value_type
from inductor.ir.body import IndirectVar, Op
from inductor.ir.index import Index

Memory = Callable[[str, Index], str]
"""Text of an element of a buffer."""


@dataclass
class Writer:
    """Lines with indentation."""

    lines: list[str] = field(default_factory=list)
    depth: int = 1

    def line(self, text: str) -> None:
        pad = "" if text.startswith("#") else "  " * self.depth
        self.lines.append(pad + text)

    def open(self, text: str) -> None:
        self.line(text)
        self.depth += 1

    def close(self) -> None:
        self.depth -= 1
        self.line("}")

    @contextmanager
    def block(self, text: str) -> Iterator[None]:
        self.open(text)
        yield
        self.close()


class Scope:
    """Values of one nest that have been printed, by position, and the loops that are open.

    guard: a condition without which memory is neither read nor written ("": there is none).
    """

    def __init__(self, nest: Nest, writer: Writer, memory: Memory) -> None:
        self.nest = nest
        self.writer = writer
        self.memory = memory
        self.known: dict[int, str] = {}
        self.guard = ""
        self.open_loops: set[str] = set()
        self.loop_names = {loop.name for loop in nest.loops}
        self.empty_variables = {
            op.imm.var.name
            for op in nest.ops
            if isinstance(op.imm, IndirectVar) and op.imm.var.size == 0
        }
        self.checked = {
            op.imm.var.name
            for op in nest.ops
            if isinstance(op.imm, IndirectVar) and op.imm.check
        }

    @contextmanager
    def nested(self, *loops: str) -> Iterator[None]:
        """What is printed inside is forgotten at the end."""
        known, opened = dict(self.known), set(self.open_loops)
        self.open_loops.update(loops)
        yield
        self.known, self.open_loops = known, opened

    def over(self, nest: Nest, memory: Memory, *loops: str) -> Scope:
        """The same place with other operations, which have the same values so far."""
        other = Scope(nest, self.writer, memory)
        other.known, other.guard = dict(self.known), self.guard
        other.open_loops = {*self.open_loops, *loops}
        return other

    def is_ready(self, position: int) -> bool:
        """Whether the loops that a value depends on are open, and its operands are there."""
        waiting = (self.nest.depends[position] & self.loop_names) - self.open_loops
        return not waiting and all(arg in self.known for arg in self.nest.ops[position].args)

    def print_ready(self, members: Iterable[int], stores: bool = False) -> None:
        """Print what can be printed here of `members`; stores only if asked for."""
        for position in members:
            op = self.nest.ops[position]
            if position in self.known or op.name == "reduction" or not self.is_ready(position):
                continue
            if op.name == "store":
                if stores:
                    self.print_store(op)
            else:
                self.print_value(position, op)

    def print_value(self, position: int, op: Op) -> None:
        operands = [self.known[arg] for arg in op.args]
        if op.name == "constant":
            self.known[position] = spell_constant(op)
            return
        if op.name == "indirect":
            for line in indirect_lines(op, operands, error_name(op)):
                self.writer.line(line)
            assert isinstance(op.imm, IndirectVar)
            self.known[position] = op.imm.var.name
            return
        text = self._spell(op, operands)
        name = f"v{position}"
        self.writer.line(f"const {value_type(op.dtype)} {name} = {text};")
        self.known[position] = name

    def _spell(self, op: Op, operands: list[str]) -> str:
        if op.name == "load":
            assert op.index is not None
            if self._is_empty(op.index):
                return zero(op.dtype)
            element = self.memory(op.buffer, op.index)
            masks = [self.guard] * bool(self.guard) + operands
            return spell_load(op, element, " & ".join(masks) or None)
        if op.name == "index_expr":
            return spell_index_value(op)
        source = self.nest.ops[op.args[0]].dtype if op.args else None
        return spell(op, operands, source)

    def print_store(self, op: Op) -> None:
        assert op.index is not None
        if self._is_empty(op.index):
            return
        element = self.memory(op.buffer, op.index)
        value = self.known[op.args[0]]
        checks = [
            f"{var.name}_ok" for var in op.index.variables() if var.name in self.checked
        ]
        checks += [self.guard] * bool(self.guard)
        guard = f"if ({' & '.join(checks)}) " if checks else ""
        if op.imm == "add":
            from_memory = spell(Op("add", (0, 0), op.dtype), [element, value])
            value = from_memory
        self.writer.line(f"{guard}{element} = {value};")

    def _is_empty(self, index: Index) -> bool:
        return any(var.name in self.empty_variables for var in index.variables())


def error_name(op: Op) -> str:
    """The variable that collects bad values of a checked index."""
    assert isinstance(op.imm, IndirectVar)
    return f"e_{op.imm.var.name}"


def checked_ops(nest: Nest) -> list[Op]:
    return [op for op in nest.ops if isinstance(op.imm, IndirectVar) and op.imm.check]
