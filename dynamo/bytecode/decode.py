"""One instruction set for all Python versions.

`decode(code)` gives a `Decoded`: a tuple of `Instruction`s with normalised opcodes (what differs
between versions is rows in `versions/`), jump targets as indices, and the exception table as
ranges of indices. Each instruction remembers the real instructions that it stands for, so that
new code can run exactly these, or go on right behind them.

    >>> def f(x):
    ...     return x + 1
    >>> print(*decode(f.__code__).instructions, sep="; ")
    LOAD_FAST x; LOAD_CONST 1; BINARY_OP add; RETURN_VALUE
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType
from typing import Any

from dynamo.bytecode.raw import Position, Raw, RawCode, disassemble
from dynamo.bytecode.versions import VERSION


@dataclass(slots=True, eq=False)  # frozen ones take three times as long to make
class Instruction:
    """One normalised instruction; nothing changes it.

    arg: depends on the opcode (a name, a constant, a number, a tuple of these).
    target: index of the instruction that it may jump to, -1 for none.
    start, end: the real instructions it stands for, as indices into `RawCode.instructions`
        (end not included).
    part: 0, or the how-manieth piece it is of one real instruction.
    index: its own place.
    """

    op: str
    arg: Any
    target: int
    start: int
    end: int
    part: int
    index: int
    position: Position

    def __str__(self) -> str:
        if self.target >= 0:
            return f"{self.op} to {self.target}"
        return self.op if self.arg is None else f"{self.op} {self.arg}"


@dataclass(frozen=True, slots=True)
class Handler:
    """An entry of the exception table: instructions `start` to `end` (not included) are covered;
    at an exception the stack is cut to `depth`, then `lasti` (a number) if asked for and the
    exception are pushed."""

    start: int
    end: int
    target: int
    depth: int
    lasti: bool


@dataclass(frozen=True, slots=True)
class Decoded:
    """A code object, decoded.

    handlers: by instruction index, None where an exception leaves the frame.
    """

    code: CodeType
    raw: RawCode
    instructions: tuple[Instruction, ...]
    handlers: tuple[Handler | None, ...]

    def listing(self) -> str:
        """The instructions as text, with indices, lines and handlers."""
        lines = []
        for instruction, handler in zip(self.instructions, self.handlers, strict=True):
            line = instruction.position[0] or ""
            covered = f"  (handler {handler.target})" if handler is not None else ""
            lines.append(f"{line:>5} {instruction.index:>4} {instruction}{covered}")
        return "\n".join(lines)


Piece = tuple[str, Any]

# What COMPARE_OP and BINARY_OP mean: names of functions of the `operator` module.
COMPARISONS = ("lt", "le", "eq", "ne", "gt", "ge")
BINARY = (
    "add and_ floordiv lshift matmul mul mod or_ pow rshift sub truediv xor "
    "iadd iand ifloordiv ilshift imatmul imul imod ior ipow irshift isub itruediv ixor"
).split()
INTRINSICS_1 = {
    1: "PRINT_EXPR",
    2: "IMPORT_STAR",
    3: "STOPITERATION_ERROR",
    4: "ASYNC_GEN_WRAP",
    5: "UNARY_POSITIVE",
    6: "LIST_TO_TUPLE",
}
INTRINSICS_2 = {1: "PREP_RERAISE_STAR"}
NULL_PLACE = "first" if VERSION.null_first else "last"

assert all(hasattr(operator, name) for name in (*COMPARISONS, *BINARY))


def _global(raw: RawCode, item: Raw, op: str) -> list[Piece]:
    return [(op, (raw.names[item.arg >> 1], NULL_PLACE if item.arg & 1 else ""))]


def _attr(raw: RawCode, item: Raw, op: str) -> list[Piece]:
    name = raw.names[item.arg >> 1]
    if item.arg & 1:
        return [("LOAD_METHOD", (name, NULL_PLACE))]
    return [("LOAD_ATTR", name)]


def _super_attr(raw: RawCode, item: Raw, op: str) -> list[Piece]:
    null = NULL_PLACE if item.arg & 1 else ""
    return [(op, (raw.names[item.arg >> 2], bool(item.arg & 2), null))]


def _format(raw: RawCode, item: Raw, op: str) -> list[Piece]:
    return [(op, (item.arg & 3, bool(item.arg & 4)))]


def _slot(raw: RawCode, item: Raw, op: str) -> list[Piece]:
    name = item.slots[0]
    if op in ("LOAD_FAST", "STORE_FAST") and _is_cell(raw, name):
        return [("LOAD_CLOSURE" if op == "LOAD_FAST" else "STORE_CLOSURE", name)]
    return [(op, name)]


def _common_constant(raw: RawCode, item: Raw, op: str) -> list[Piece]:
    value = VERSION.common_constants[item.arg]
    return [("LOAD_ASSERTION_ERROR", None) if value is AssertionError else (op, value)]


def _is_cell(raw: RawCode, name: str) -> bool:
    return name in raw.freevars or name in raw.cellvars


# Kind of argument -> the pieces that an instruction is read as.
ARGUMENTS: dict[str, Callable[[RawCode, Raw, str], list[Piece]]] = {
    "none": lambda raw, item, op: [(op, None)],
    "int": lambda raw, item, op: [(op, item.arg)],
    "bool": lambda raw, item, op: [(op, bool(item.arg))],
    "const": lambda raw, item, op: [(op, raw.consts[item.arg])],
    "name": lambda raw, item, op: [(op, raw.names[item.arg])],
    "method": lambda raw, item, op: [(op, (raw.names[item.arg], NULL_PLACE))],
    "slot": _slot,
    "jump": lambda raw, item, op: [(op, None)],
    "compare": lambda raw, item, op: [(op, COMPARISONS[item.arg >> VERSION.compare_shift])],
    "binary": lambda raw, item, op: [
        ("BINARY_SUBSCR", None) if item.arg == VERSION.subscript else (op, BINARY[item.arg])
    ],
    "global": _global,
    "attr": _attr,
    "super_attr": _super_attr,
    "call": lambda raw, item, op: [(op, (item.arg, ()))],
    "call_part": lambda raw, item, op: [],
    "call_ex": lambda raw, item, op: [(op, 1)],
    "small_int": lambda raw, item, op: [(op, item.arg)],
    "common_constant": _common_constant,
    "format": _format,
    "format_simple": lambda raw, item, op: [(op, (0, False))],
    "format_with_spec": lambda raw, item, op: [(op, (0, True))],
    "return_const": lambda raw, item, op: [
        ("LOAD_CONST", raw.consts[item.arg]),
        ("RETURN_VALUE", None),
    ],
    "intrinsic_1": lambda raw, item, op: [(INTRINSICS_1.get(item.arg, op), item.arg)],
    "intrinsic_2": lambda raw, item, op: [(INTRINSICS_2.get(item.arg, op), item.arg)],
}
TESTS = frozenset(("POP_JUMP_IF_TRUE", "POP_JUMP_IF_FALSE", "UNARY_NOT"))


def decode(code: CodeType) -> Decoded:
    """Reads a code object."""
    raw = disassemble(code)
    where = {id(item): number for number, item in enumerate(raw.instructions)}
    pieces: list[tuple[str, Any, int, int, int]] = []
    first_piece: list[int] = []
    start, keywords, entering = 0, (), 0
    for number, item in enumerate(raw.instructions):
        first_piece.append(len(pieces))
        entering = entering - 1 if entering else _length_of_with(raw.instructions, number)
        if entering > 1:
            continue
        if entering == 1:
            pieces.append(("BEFORE_WITH", "middle", start, number + 1, 0))
            start, entering = number + 1, 0
            continue
        op, kind = VERSION.rows[item.name]
        if kind == "call_part":
            if item.name == "KW_NAMES":
                keywords = raw.consts[item.arg]
            continue
        for part, (name, arg) in enumerate(ARGUMENTS[kind](raw, item, op)):
            if name == "CALL" and keywords:
                arg, keywords = (arg[0], keywords), ()
            pieces.append((name, arg, start, number + 1, part))
        start = number + 1
    instructions = []
    for index, (op, arg, start, end, part) in enumerate(pieces):
        item = raw.instructions[end - 1]
        target = -1
        if item.target is not None:
            number = where[id(item.target)]
            if op == "FOR_ITER":
                number += len(VERSION.exhausted)
            target = first_piece[number]
        if op == "TO_BOOL" and index + 1 < len(pieces) and pieces[index + 1][0] in TESTS:
            op = "NOP"
        instructions.append(Instruction(op, arg, target, start, end, part, index, item.position))
    return Decoded(code, raw, tuple(instructions), _handlers(raw, where, first_piece, pieces))


def _length_of_with(instructions: list[Raw], at: int) -> int:
    """How many instructions from here on enter a `with` block, where more than one does that."""
    wanted = VERSION.with_start
    if not wanted or instructions[at].name != wanted[0][0]:
        return 0
    found = tuple((item.name, item.arg) for item in instructions[at : at + len(wanted)])
    return len(wanted) if found == wanted else 0


def _handlers(
    raw: RawCode, where: dict[int, int], first_piece: list[int], pieces: list[Any]
) -> tuple[Handler | None, ...]:
    handlers: list[Handler | None] = [None] * len(pieces)
    first_piece = [*first_piece, len(pieces)]
    for entry in raw.protected:
        start = first_piece[where[id(entry.first)]]
        end = first_piece[where[id(entry.last)] + 1]
        target = first_piece[where[id(entry.handler)]]
        row = Handler(start, end, target, entry.depth, entry.lasti)
        for index in range(start, end):
            handlers[index] = row
    return tuple(handlers)
