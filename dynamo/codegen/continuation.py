"""Continuations: functions that go on in the middle of a code object.

A continuation holds the whole original bytecode behind a prefix, which takes stack items and live
locals from arguments, puts the stack back, and jumps. It is made once per place, form and layout,
so that a loop with a break inside compiles a constant number of graphs.

Forms: "at" and "after" go on at an instruction; "raise" raises the exception given as last
argument at a place that the same handler covers.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType
from typing import Any

from dynamo.bytecode.decode import Decoded
from dynamo.bytecode.emit import Emitter
from dynamo.bytecode.raw import Protected, Raw, RawCode, assemble, disassemble
from dynamo.codegen.retry import Raising
from dynamo.guards.shape_code import Fact
from dynamo.guards.sources import LocalSource

STACK = "__stack_"
CELL = "__cell_"
EXCEPTION = "__exception"
# Of a RESUME that looks at no signals: what their handlers raise would come outside of the
# blocks that the continuation is about to enter again.
QUIET_RESUME = 2


@dataclass(frozen=True, slots=True)
class Layout:
    """What a continuation is given.

    stack: "value", "null" or "saved" (an exception that is being handled) per slot.
    locals: names that are passed. own_cells: cells that the original makes, passed like locals: as
    free variables they would raise another error where they are empty. cells: the closure.
    keeps_all: whether what is passed lives as long as in eager, read or not.
    """

    stack: tuple[str, ...]
    locals: tuple[str, ...]
    own_cells: tuple[str, ...]
    cells: tuple[str, ...]
    keeps_all: bool = False

    def cell_parameter(self, name: str) -> str:
        """The parameter of a cell; the break may lie where the cell has just been put in place."""
        parameter = f"{CELL}{name}"
        return f"{CELL}{parameter}" if parameter in self.locals else parameter


@dataclass(frozen=True, slots=True)
class Continuation:
    """A continuation's code, and where it came from.

    original: the code object of the program; offset: index of its instruction 0 in `code`.
    instruction: where it goes on, in `original`. form: see above.
    """

    code: CodeType
    original: CodeType
    offset: int
    layout: Layout
    instruction: int
    form: str


class Continuations:
    """All continuations of one region, by place and layout."""

    def __init__(self, decode: Callable[[CodeType], Decoded]) -> None:
        self._decode = decode
        self._made: dict[Any, Continuation] = {}
        self._by_code: dict[int, Continuation] = {}
        self._codes: list[CodeType] = []
        self._carried: dict[int, set[Fact]] = {}

    def origin(self, code: CodeType, instruction: int) -> tuple[CodeType, int]:
        """The program's own code and instruction for a place in a code object; a place in a
        continuation's prefix stays where it is."""
        known = self._by_code.get(id(code))
        if known is None or instruction < known.offset:
            return code, instruction
        return known.original, instruction - known.offset

    def raising(self, code: CodeType) -> Raising | None:
        """What raises an exception where a continuation begins; None where no handler is, and for
        code of the program."""
        known = self._by_code.get(id(code))
        if known is None or self._decode(known.original).handlers[known.instruction] is None:
            return None
        made = self.get(known.original, known.instruction, known.layout, "raise").code
        names = code.co_varnames[: code.co_argcount]
        handled = [EXCEPTION] if EXCEPTION in names else [
            f"{STACK}{slot}" for slot, kind in enumerate(known.layout.stack) if kind == "saved"]
        return Raising(made, names.index(handled[-1]) if handled else None)

    def passed_iterator(self, code: CodeType) -> LocalSource | None:
        """The iterator of the loop that a continuation has just taken an item from."""
        known = self._by_code.get(id(code))
        if known is None or known.instruction == 0:
            return None
        before = self._decode(known.original).instructions[known.instruction - 1]
        slot = len(known.layout.stack) - 2
        return LocalSource(f"{STACK}{slot}") if before.op == "FOR_ITER" else None

    def is_continuation(self, code: CodeType) -> bool:
        return id(code) in self._by_code

    def record(self, code: CodeType) -> Continuation:
        """What the code of a continuation was made of."""
        return self._by_code[id(code)]

    def begins_at(self, code: CodeType, original: CodeType, instruction: int) -> bool:
        """True for a continuation that begins with this instruction, given as by `origin`."""
        known = self._by_code.get(id(code))
        return known is not None and known.form == "at" and (
            known.original is original and known.instruction == instruction)

    def has_begun(self, code: CodeType, steps: int) -> bool:
        """False for a continuation whose trace ends at the step of that number, if that lies in the
        prefix, or is the instruction "at" which the continuation begins."""
        known = self._by_code.get(id(code))
        return known is None or steps > known.offset + (known.form == "at")

    def keeps_all(self, code: CodeType) -> bool:
        """True for a continuation behind which nothing may die earlier than in eager."""
        known = self._by_code.get(id(code))
        return known is not None and known.layout.keeps_all

    def carry(self, code: CodeType, facts: set[Fact]) -> None:
        """Sizes among what a continuation is given that are symbolic from its first compile on."""
        if facts:
            self._carried.setdefault(id(code), set()).update(facts)

    def carried(self, code: CodeType) -> frozenset[Fact]:
        """See `carry`."""
        return frozenset(self._carried.get(id(code), ()))

    def get(self, code: CodeType, instruction: int, layout: Layout, form: str) -> Continuation:
        """The continuation that goes on at the instruction of a program's code object."""
        key = (id(code), instruction, layout, form)
        known = self._made.get(key)
        if known is None:
            self._codes.append(code)
            known = self._made[key] = build(self._decode(code), instruction, layout, form)
            self._by_code[id(known.code)] = known
        return known


def build(decoded: Decoded, instruction: int, layout: Layout, form: str) -> Continuation:
    """Makes the code of one continuation."""
    raw = disassemble(decoded.code)
    old = raw.instructions
    place = decoded.instructions[instruction]
    line = place.position[0] or raw.firstlineno
    raw.instructions = []
    _set_parameters(raw, layout, form == "raise")
    raw.qualname = f"__resume_{line}_{raw.name}"  # tracebacks show the name
    emitter = Emitter(raw, place.position)
    if raw.freevars:
        emitter.emit("COPY_FREE_VARS", len(raw.freevars))
    emitter.emit("RESUME", QUIET_RESUME)
    for name in layout.own_cells:
        parameter = layout.cell_parameter(name)
        emitter.load_fast(parameter)
        emitter.emit("STORE_FAST", slot=name)
        emitter.delete_fast(parameter)
    _restore_stack(emitter, layout)
    if form == "raise":
        emitter.load_fast(EXCEPTION)
        emitter.delete_fast(EXCEPTION)
        _raise_covered(raw, emitter, decoded, instruction, old)
    else:
        emitter.jump(old[place.start])
    prefix = len(raw.instructions)
    raw.instructions += old
    raw.stacksize = max(raw.stacksize, len(layout.stack)) + 3
    code = assemble(raw)
    return Continuation(code, decoded.code, prefix, layout, instruction, form)


def _set_parameters(raw: RawCode, layout: Layout, raises: bool) -> None:
    stack = [f"{STACK}{slot}" for slot, kind in enumerate(layout.stack) if kind != "null"]
    cells = map(layout.cell_parameter, layout.own_cells)
    parameters = [*layout.locals, *cells, *stack, *([EXCEPTION] if raises else [])]
    known = {*parameters, *layout.cells, *layout.own_cells}
    raw.varnames = [*parameters, *(name for name in raw.varnames if name not in known)]
    raw.cellvars = tuple(name for name in raw.cellvars if name not in layout.cells)
    raw.freevars = layout.cells + tuple(n for n in raw.freevars if n not in layout.cells)
    raw.argcount, raw.posonlyargcount, raw.kwonlyargcount = len(parameters), 0, 0
    raw.flags &= ~(inspect.CO_VARARGS | inspect.CO_VARKEYWORDS)


def _restore_stack(emitter: Emitter, layout: Layout) -> None:
    for slot, kind in enumerate(layout.stack):
        name = f"{STACK}{slot}"
        if kind == "null":
            emitter.emit("PUSH_NULL")
            continue
        emitter.load_fast(name)
        emitter.delete_fast(name)
        if kind == "saved":
            emitter.emit("PUSH_EXC_INFO")
            emitter.emit("POP_TOP")


def _raise_covered(
    raw: RawCode, emitter: Emitter, decoded: Decoded, instruction: int, old: list[Raw]
) -> None:
    """RERAISE under a copy of the entry that covers the instruction."""
    raiser = emitter.emit("RERAISE", 0)
    handler = decoded.handlers[instruction]
    assert handler is not None
    target = old[decoded.instructions[handler.target].start]
    raw.protected.append(Protected(raiser, raiser, target, handler.depth, handler.lasti))
