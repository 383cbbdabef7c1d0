"""Displays, comprehensions' appends, unpacking."""

from __future__ import annotations

import sys

from dynamo.base.errors import Break
from dynamo.bytecode.decode import Instruction
from dynamo.symbolic.core.var import ObservedException, Var
from dynamo.symbolic.machine.opcodes.table import opcode
from dynamo.symbolic.machine.protocols import RunningFrame
from dynamo.symbolic.python.dicts import DictVar
from dynamo.symbolic.python.lists import ListVar, SequenceVar, TupleVar
from dynamo.symbolic.python.sets import SetVar
from dynamo.symbolic.python.sized import has_keys, is_iterable


@opcode
def BUILD_TUPLE(frame: RunningFrame, arg: int, instruction: Instruction) -> None:
    frame.push(TupleVar(frame.pop_many(arg)))


@opcode
def BUILD_LIST(frame: RunningFrame, arg: int, instruction: Instruction) -> None:
    frame.push(ListVar(frame.pop_many(arg)))


@opcode
def BUILD_SET(frame: RunningFrame, arg: int, instruction: Instruction) -> None:
    frame.push(SetVar.from_items(frame, frame.pop_many(arg)))


@opcode
def BUILD_MAP(frame: RunningFrame, arg: int, instruction: Instruction) -> None:
    items = frame.pop_many(2 * arg)
    frame.push(DictVar.from_pairs(frame, list(zip(items[::2], items[1::2], strict=True))))


@opcode
def BUILD_CONST_KEY_MAP(frame: RunningFrame, arg: int, instruction: Instruction) -> None:
    keys = frame.pop().unpack(frame)
    values = frame.pop_many(arg)
    frame.push(DictVar.from_pairs(frame, list(zip(keys, values, strict=True))))


@opcode
def LIST_APPEND(frame: RunningFrame, arg: int, instruction: Instruction) -> None:
    value = frame.pop()
    frame.stack[-arg].call_method(frame, "append", [value], {})


@opcode
def SET_ADD(frame: RunningFrame, arg: int, instruction: Instruction) -> None:
    value = frame.pop()
    frame.stack[-arg].call_method(frame, "add", [value], {})


@opcode
def MAP_ADD(frame: RunningFrame, arg: int, instruction: Instruction) -> None:
    key, value = frame.pop_many(2)
    frame.stack[-arg].set_item(frame, key, value)


@opcode
def LIST_EXTEND(frame: RunningFrame, arg: int, instruction: Instruction) -> None:
    value = frame.pop()
    if not is_iterable(frame.trace, value):
        raise Break("argument_mismatch", f"*{value!r}")
    frame.stack[-arg].call_method(frame, "extend", [value], {})


@opcode
def SET_UPDATE(frame: RunningFrame, arg: int, instruction: Instruction) -> None:
    value = frame.pop()
    frame.stack[-arg].call_method(frame, "update", [value], {})


@opcode
def DICT_UPDATE(frame: RunningFrame, arg: int, instruction: Instruction) -> None:
    value = frame.pop()
    if not has_keys(frame, value):
        raise Break("argument_mismatch", f"**{value!r}")
    frame.stack[-arg].call_method(frame, "update", [value], {})


@opcode
def DICT_MERGE(frame: RunningFrame, arg: int, instruction: Instruction) -> None:
    """`f(**a, **b)`: a key given twice is an error."""
    value = frame.pop()
    merged = frame.stack[-arg]
    if not has_keys(frame, value):
        raise Break("argument_mismatch", f"**{value!r}")
    given = frame.trace.call(frame, dict, value)  # asks a mapping of the program once
    if any(merged.contains(frame, key).truth(frame) for key in given.unpack(frame)):
        raise Break("argument_mismatch", "a keyword that is given twice")
    merged.call_method(frame, "update", [given], {})


@opcode
def LIST_TO_TUPLE(frame: RunningFrame, arg: int | None, instruction: Instruction) -> None:
    frame.push(TupleVar(frame.pop().unpack(frame)))


# -- unpacking ---------------------------------------------------------------------------------


@opcode
def UNPACK_SEQUENCE(frame: RunningFrame, arg: int, instruction: Instruction) -> None:
    items = take(frame, frame.pop(), arg, arg)
    frame.stack.extend(reversed(items))


@opcode
def UNPACK_EX(frame: RunningFrame, arg: int, instruction: Instruction) -> None:
    before, after = arg & 255, arg >> 8
    items = take(frame, frame.pop(), before + after, None, before)
    middle = ListVar(items[before : len(items) - after])
    parts: list[Var] = [*items[:before], middle, *items[len(items) - after :]]
    if not after:
        parts = [*items[:before], middle]
    frame.stack.extend(reversed(parts))


TELLS_LENGTH = sys.version_info >= (3, 14)  # how many items there are to unpack


def take(
    frame: RunningFrame, value: Var, least: int, most: int | None, single: int = 0
) -> list[Var]:
    """Items of an iterable, between `least` and `most` of them. single: how many are taken one by
    one, before the others are made a list."""
    if isinstance(value, SequenceVar | DictVar):
        items = value.unpack(frame)
    else:
        iterator = start_unpacking(frame, value)
        items = _advance(frame, iterator, single if most is None else most + 1)
        if most is None and len(items) == single:
            items += frame.trace.call(frame, list, iterator).unpack(frame)
    if len(items) < least:
        expected = f"{least}" if most is not None else f"at least {least}"
        message = f"not enough values to unpack (expected {expected}, got {len(items)})"
        frame.trace.raise_exception(ValueError, message)
    if most is not None and len(items) > most:
        tells = TELLS_LENGTH and value.python_type() in (list, tuple, dict)
        got = f", got {len(items)}" if tells else ""
        message = f"too many values to unpack (expected {most}{got})"
        frame.trace.raise_exception(ValueError, message)
    return items


def start_unpacking(frame: RunningFrame, value: Var) -> Var:
    """`iter(value)`; what has none can't be unpacked."""
    if not is_iterable(frame.trace, value):
        raise Break("iteration_unknown", repr(value))
    return value.iterate(frame)


def _advance(frame: RunningFrame, iterator: Var, count: int) -> list[Var]:
    items: list[Var] = []
    while len(items) < count:
        try:
            items.append(iterator.next_item(frame))
        except ObservedException as error:
            if issubclass(error.value.python_type(), StopIteration):
                break
            raise
    return items
