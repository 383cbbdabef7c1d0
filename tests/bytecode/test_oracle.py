"""The field's library, `bytecode`, reads what we read and lays it out as we do.

Functions of the standard library, of a random part of its modules; of all with `make cpython`.
"""

from __future__ import annotations

import dis
import functools
import random
import sysconfig
import types
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dynamo.bytecode.raw import assemble, disassemble, read_exception_table
from dynamo.bytecode.versions import VERSION

oracle = pytest.importorskip("bytecode", reason="bytecode is not installed here")

PARTS = 40
SOME = 12  # modules that are read each time


@functools.cache
def modules() -> list[Path]:
    files = sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py"))
    return [path for path in files if not {"site-packages", "dist-packages"} & set(path.parts)]


def codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from codes(const)


def codes_of(files: list[Path]) -> Iterator[types.CodeType]:
    """All code objects, as our own writing has them: without opcodes for pairs of locals."""
    for path in files:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                whole = compile(path.read_bytes(), str(path), "exec")
        except (SyntaxError, ValueError):  # a text that shows what no program may be
            continue
        for code in codes(whole):
            yield assemble(disassemble(code)) if VERSION.slot_pair_ops else code


def read_by_us(code: types.CodeType) -> list[Any]:
    """(name, argument or number of the instruction that is jumped to, position)."""
    raw = disassemble(code)
    numbers = {id(item): number for number, item in enumerate(raw.instructions)}
    slots = raw.slot_names()
    return [
        (item.name,
         numbers[id(item.target)] if item.target else slots.index(item.slots[0]) if item.slots else item.arg,
         item.position)
        for item in raw.instructions
    ]  # fmt: skip


def read_by_oracle(code: types.CodeType) -> list[Any]:
    """The same."""
    found, numbers, unit = [], {}, 0
    for item in oracle.ConcreteBytecode.from_code(code):
        if item.name != "CACHE":
            numbers[unit] = len(found)
            found.append((unit, item))
        unit += item.size // 2
    rows: list[Any] = []
    for unit, item in found:
        target = item.get_jump_target(unit)
        where = item.location
        position = (where.lineno, where.end_lineno, where.col_offset, where.end_col_offset) if where else (None,) * 4
        arg = item.arg if item.require_arg() else 0
        rows.append((item.name, arg if target is None else numbers[target], position))
    return rows


jumps = {*dis.hasjrel, *dis.hasjabs}


def meaning(code: types.CodeType) -> list[Any]:
    """(name, what its argument stands for, handler) of each instruction, whatever the layout.

    The library computes the depths of handlers anew, and others than CPython where regions of
    handlers protect themselves; `test_round_trip_loses_nothing` compares them with CPython's.
    """
    items = [item for item in dis.get_instructions(code) if item.opname not in ("EXTENDED_ARG", "CACHE")]
    numbers: dict[int, int] = {}
    last = 0
    for number, item in enumerate(items):
        for offset in range(last, item.offset + 2, 2):
            numbers[offset] = number
        last = item.offset + 2
    handlers: dict[int, Any] = {}
    for start, length, handler, _, lasti in read_exception_table(code.co_exceptiontable):
        for unit in range(start, start + length):
            handlers[numbers[min(2 * unit, last - 2)]] = numbers[2 * handler], lasti
    return [
        (item.opname, numbers[item.argval] if item.opcode in jumps else repr(item.argval), handlers.get(number))
        for number, item in enumerate(items)
    ]  # fmt: skip


def check(files: list[Path]) -> int:
    count = 0
    for code in codes_of(files):
        assert read_by_us(code) == read_by_oracle(code), code
        ours, theirs = assemble(disassemble(code)), oracle.Bytecode.from_code(code).to_code()
        assert meaning(ours) == meaning(theirs), code
        count += 1
    return count


@pytest.mark.draws
def test_some_modules() -> None:
    assert check(random.sample(modules(), SOME))


@pytest.mark.cpython
@pytest.mark.parametrize("part", range(PARTS))
def test_all_modules(part: int) -> None:
    assert check(modules()[part::PARTS]) > 100
