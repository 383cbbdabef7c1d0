"""Code objects as editable lists, and back, without loss.

`disassemble` turns a code object into a `RawCode`: one `Raw` per real instruction (no EXTENDED_ARG,
no CACHE), jumps and protected regions as references to instructions, places of locals and cells
as names. `assemble` lays the list out again: local slots, jump distances, EXTENDED_ARG, caches,
line table and exception table. Everything else (names, constants) keeps its index, new entries
are appended.

    >>> def f(x):
    ...     return x + 1
    >>> assemble(disassemble(f.__code__)) == f.__code__
    True
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from types import CodeType
from typing import Any

from dynamo.bytecode.versions import VERSION

Position = tuple[int | None, int | None, int | None, int | None]
NOWHERE: Position = (None, None, None, None)


@dataclass(slots=True, eq=False)
class Raw:
    """One real instruction.

    arg: the plain argument, where none of the next two replaces it.
    slots: name of the local or cell that the argument stands for (two while paired ones are read).
    target: where a jump goes.
    offset: in bytes, in the code object that it was read from.
    """

    name: str
    arg: int = 0
    slots: tuple[str, ...] = ()
    target: Raw | None = None
    position: Position = NOWHERE
    offset: int = 0

    def __str__(self) -> str:
        shown = " ".join(self.slots) or (f"-> {self.target.name}" if self.target else str(self.arg))
        return f"{self.name} {shown}"


@dataclass(slots=True, eq=False)
class Protected:
    """One entry of the exception table: from `first` to `last`, both included."""

    first: Raw
    last: Raw
    handler: Raw
    depth: int
    lasti: bool


@dataclass(slots=True, eq=False)
class RawCode:
    """A code object under construction.

    varnames: fast locals, parameters first; cellvars, freevars: names of cells.
    """

    instructions: list[Raw]
    protected: list[Protected]
    consts: list[Any]
    names: list[str]
    varnames: list[str]
    cellvars: tuple[str, ...]
    freevars: tuple[str, ...]
    argcount: int
    posonlyargcount: int
    kwonlyargcount: int
    flags: int
    stacksize: int
    filename: str
    name: str
    qualname: str
    firstlineno: int
    known_consts: dict[int, int] = field(default_factory=dict)
    known_names: dict[str, int] = field(default_factory=dict)

    def const(self, value: Any) -> int:
        """Index of a constant: the object itself, found by identity."""
        if not self.known_consts:
            for index in range(len(self.consts) - 1, -1, -1):
                self.known_consts[id(self.consts[index])] = index
        index = self.known_consts.setdefault(id(value), len(self.consts))
        if index == len(self.consts):
            self.consts.append(value)
        return index

    def use_name(self, name: str) -> int:
        """Index of an attribute or global name."""
        if not self.known_names:
            self.known_names = {known: index for index, known in enumerate(self.names)}
        index = self.known_names.setdefault(name, len(self.names))
        if index == len(self.names):
            self.names.append(name)
        return index

    @property
    def parameters(self) -> int:
        """How many of the locals are parameters."""
        more = bool(self.flags & inspect.CO_VARARGS) + bool(self.flags & inspect.CO_VARKEYWORDS)
        return self.argcount + self.kwonlyargcount + more

    def slot_names(self) -> list[str]:
        """All places for locals and cells, in the order of the frame."""
        own = set(self.varnames)
        return [
            *self.varnames,
            *(name for name in self.cellvars if name not in own),
            *self.freevars,
        ]


# -- reading ---------------------------------------------------------------------------------


def disassemble(code: CodeType) -> RawCode:
    """The code object as an editable list."""
    raw = RawCode(
        instructions=[],
        protected=[],
        consts=list(code.co_consts),
        names=list(code.co_names),
        varnames=list(code.co_varnames),
        cellvars=code.co_cellvars,
        freevars=code.co_freevars,
        argcount=code.co_argcount,
        posonlyargcount=code.co_posonlyargcount,
        kwonlyargcount=code.co_kwonlyargcount,
        flags=code.co_flags,
        stacksize=code.co_stacksize,
        filename=code.co_filename,
        name=code.co_name,
        qualname=code.co_qualname,
        firstlineno=code.co_firstlineno,
    )
    at_unit, jumps = _read_instructions(code, raw)
    for instruction, unit in jumps:
        instruction.target = at_unit[unit]
    for start, length, handler, depth, lasti in read_exception_table(code.co_exceptiontable):
        inside = range(start, start + length)
        first = next((at_unit[unit] for unit in inside if unit in at_unit), None)
        if first is not None:
            last = next(at_unit[unit] for unit in reversed(inside) if unit in at_unit)
            raw.protected.append(Protected(first, last, at_unit[handler], depth, lasti))
    _split_pairs(raw)
    return raw


def _read_instructions(
    code: CodeType, raw: RawCode
) -> tuple[dict[int, Raw], list[tuple[Raw, int]]]:
    """Fills in the instructions; gives the one at each code unit and the jumps to resolve."""
    content = code.co_code
    positions = list(code.co_positions())
    # The program may have put other instructions in, more than the table of lines knows.
    positions += [(None,) * 4] * (len(content) // 2 - len(positions))
    slots = raw.slot_names()
    at_unit: dict[int, Raw] = {}
    jumps: list[tuple[Raw, int]] = []
    rows = _reading_rows()
    unit, arg, start = 0, 0, 0
    while 2 * unit < len(content):
        name, width, direction, places = rows[content[2 * unit]]
        arg = arg << 8 | content[2 * unit + 1]
        if name == "EXTENDED_ARG":
            unit += 1
            continue
        instruction = Raw(name, arg, (), None, positions[unit], 2 * unit)
        at_unit[start] = at_unit[unit] = instruction
        raw.instructions.append(instruction)
        unit += width
        if direction:
            jumps.append((instruction, unit + direction * arg))
        elif places == 1:
            instruction.slots = (slots[arg],)
        elif places == 2:
            instruction.slots = (slots[arg >> 4], slots[arg & 15])
        start = unit
        arg = 0
    return at_unit, jumps


@lru_cache(maxsize=1)
def _reading_rows() -> list[tuple[str, int, int, int]]:
    """By opcode number: name, code units with caches, direction of a jump (0: none), and how many
    locals or cells the argument stands for."""
    return [
        (name, 1 + VERSION.cache_by_name.get(name, 0), VERSION.jumps.get(name, 0),
         1 if name in VERSION.slot_ops else 2 if name in VERSION.slot_pair_ops else 0)
        for name in (VERSION.read_as.get(name, name) for name in VERSION.opnames)
    ]  # fmt: skip


def _split_pairs(raw: RawCode) -> None:
    """An opcode for two slots becomes two opcodes: a trace may end between them, and its second
    slot may have a number above 15 in new code."""
    seconds: dict[int, Raw] = {}
    for item in raw.instructions:
        if len(item.slots) == 2:
            first, second = item.slots
            verb, other = item.name.split("_FAST")[:2]
            rest = Raw(f"{other.lstrip('_')}_FAST", slots=(second,), position=item.position,
                       offset=item.offset)
            item.name, item.slots = f"{verb}_FAST", (first,)
            seconds[id(item)] = rest
    if seconds:
        raw.instructions[:] = [
            part for item in raw.instructions for part in (item, seconds.get(id(item))) if part
        ]
        for entry in raw.protected:
            entry.last = seconds.get(id(entry.last), entry.last)


def read_exception_table(table: bytes) -> Iterator[tuple[int, int, int, int, bool]]:
    """(start, length, handler, depth, lasti) of each entry, in code units."""
    stream = iter(table)
    for byte in stream:
        start = _read_varint(byte, stream)
        length = _read_varint(next(stream), stream)
        handler = _read_varint(next(stream), stream)
        depth_lasti = _read_varint(next(stream), stream)
        yield start, length, handler, depth_lasti >> 1, bool(depth_lasti & 1)


def _read_varint(byte: int, stream: Iterator[int]) -> int:
    value = byte & 63
    while byte & 64:
        byte = next(stream)
        value = value << 6 | byte & 63
    return value


# -- writing ---------------------------------------------------------------------------------


def assemble(raw: RawCode) -> CodeType:
    """The code object of an edited list."""
    slots = {name: index for index, name in enumerate(raw.slot_names())}
    for instruction in raw.instructions:
        if instruction.slots:
            instruction.arg = slots[instruction.slots[0]]
    starts, length = _lay_out(raw.instructions)
    return CodeType(
        raw.argcount,
        raw.posonlyargcount,
        raw.kwonlyargcount,
        len(raw.varnames),
        raw.stacksize,
        raw.flags,
        _write_instructions(raw.instructions),
        tuple(raw.consts),
        tuple(raw.names),
        tuple(raw.varnames),
        raw.filename,
        raw.name,
        raw.qualname,
        raw.firstlineno,
        _write_positions(raw, starts, length),
        _write_exception_table(raw, starts),
        raw.freevars,
        raw.cellvars,
    )


def _size(instruction: Raw) -> int:
    """Code units of an instruction without its caches."""
    return max(1, (instruction.arg.bit_length() + 7) // 8)


def _lay_out(instructions: list[Raw]) -> tuple[dict[int, int], int]:
    """Sets the distances of all jumps; gives the first code unit of each instruction (by id)
    and the total length."""
    caches = VERSION.cache_by_name
    jumps = [item for item in instructions if item.target is not None]
    for instruction in jumps:
        instruction.arg = 0
    starts: dict[int, int] = {}
    while True:
        unit = 0
        for instruction in instructions:
            starts[id(instruction)] = unit
            unit += caches[instruction.name] + (1 if instruction.arg < 256 else _size(instruction))
        changed = False
        for instruction in jumps:
            before = _size(instruction)
            after = starts[id(instruction)] + before + caches[instruction.name]
            distance = starts[id(instruction.target)] - after
            direction = VERSION.jumps[instruction.name]
            # FOR_ITER's and others' distances never point the wrong way; sizes only grow.
            assert distance * direction >= 0, str(instruction)
            instruction.arg = max(abs(distance), 1 << 8 * (before - 1) if before > 1 else 0)
            changed |= _size(instruction) != before
            if instruction.arg != abs(distance):
                raise AssertionError(f"jump size is not stable: {instruction}")
        if not changed:
            return starts, unit


def _write_instructions(instructions: list[Raw]) -> bytes:
    return b"".join([_encoded(item.name, item.arg) for item in instructions])


@lru_cache(maxsize=1 << 13)
def _encoded(name: str, arg: int) -> bytes:
    """An instruction with what extends its argument, and its caches. The same code is written
    again for each place where it goes on."""
    content = bytearray()
    rest = arg >> 8
    while rest:
        content[:0] = (VERSION.opmap["EXTENDED_ARG"], rest & 255)
        rest >>= 8
    content += bytes((VERSION.opmap[name], arg & 255))
    return bytes(content + b"\0\0" * VERSION.cache_by_name[name])


def _groups_of_six_bits(value: int) -> bytes:
    """The lowest first, as the line table wants them."""
    content = bytearray()
    while value >= 64:
        content.append(64 | value & 63)
        value >>= 6
    content.append(value)
    return bytes(content)


# Nearly all lines and columns are among these.
SMALL_VARINTS = [_groups_of_six_bits(value) for value in range(512)]


def _varint(value: int) -> bytes:
    return SMALL_VARINTS[value] if value < 512 else _groups_of_six_bits(value)


def _write_positions(raw: RawCode, starts: dict[int, int], length: int) -> bytes:
    content = bytearray()
    line, start = raw.firstlineno, 0
    ends = [starts[id(item)] for item in raw.instructions[1:]] + [length]
    for instruction, end in zip(raw.instructions, ends, strict=True):
        lineno, end_lineno, column, end_column = instruction.position
        while start < end:
            units = end - start if end - start < 8 else 8
            start += units
            if lineno is None:
                content.append(0x80 | 15 << 3 | units - 1)
                continue
            delta, line = lineno - line, lineno
            signed = _varint(-delta << 1 | 1 if delta < 0 else delta << 1)
            if end_lineno is None or column is None or end_column is None:
                content.append(0x80 | 13 << 3 | units - 1)
                content += signed
            else:
                content.append(0x80 | 14 << 3 | units - 1)
                content += (
                    signed
                    + _varint(end_lineno - lineno)
                    + _varint(column + 1)
                    + _varint(end_column + 1)
                )
    return bytes(content)


def _big_varint(value: int, first: int = 0) -> bytes:
    """Big-endian groups of six bits, as the exception table wants them."""
    groups = [value & 63]
    while value := value >> 6:
        groups.append(64 | value & 63)
    groups[-1] |= first
    return bytes(reversed(groups))


def _write_exception_table(raw: RawCode, starts: dict[int, int]) -> bytes:
    """Entries must not overlap: where regions are nested, the innermost (listed last) counts."""
    caches = VERSION.cache_by_name
    rows = []
    for entry in raw.protected:
        start = starts[id(entry.first)]
        end = starts[id(entry.last)] + _size(entry.last) + caches[entry.last.name]
        rows.append((start, end, entry))
    content = bytearray()
    for start, end, entry in _flattened(rows):
        content += _big_varint(start, 128)
        content += _big_varint(end - start)
        content += _big_varint(starts[id(entry.handler)])
        content += _big_varint(entry.depth << 1 | int(entry.lasti))
    return bytes(content)


def _flattened(rows: list[tuple[int, int, Protected]]) -> Iterator[tuple[int, int, Protected]]:
    """The regions in order, cut so that each place has one handler: the innermost region's."""
    rows = sorted(rows, key=lambda row: row[0])
    if all(one[1] <= following[0] for one, following in zip(rows, rows[1:], strict=False)):
        yield from rows
        return
    places = sorted({place for start, end, _ in rows for place in (start, end)})
    begin, current = 0, None
    for place in places:
        around = [row for row in rows if row[0] <= place < row[1]]
        entry = min(around, key=lambda row: row[1] - row[0])[2] if around else None
        if entry is not current:
            if current is not None:
                yield begin, place, current
            begin, current = place, entry


def is_generator_like(code: CodeType) -> bool:
    """True for the code of generators, coroutines and async generators."""
    kinds = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
    return bool(code.co_flags & kinds)
