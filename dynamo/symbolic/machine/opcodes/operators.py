"""Operators: each is a call of the function of the same meaning in the rule table."""

from __future__ import annotations

import operator
from typing import Any

from dynamo.base.errors import Break
from dynamo.bytecode.decode import Instruction
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.machine.opcodes.table import opcode, opcode_named
from dynamo.symbolic.machine.protocols import RunningFrame
from dynamo.symbolic.python.ranges import SliceVar
from dynamo.symbolic.python.sameness import same
from dynamo.symbolic.shapes.symbolic_text import joined
from dynamo.symbolic.tensors.repeating import branch_truth

UNARY = {
    "UNARY_NEGATIVE": operator.neg,
    "UNARY_POSITIVE": operator.pos,
    "UNARY_INVERT": operator.invert,
}
CONVERSIONS = {1: str, 2: repr, 3: ascii}


@opcode_named(*UNARY)
def unary(frame: RunningFrame, arg: None, instruction: Instruction) -> None:
    frame.push(frame.trace.call(frame, UNARY[instruction.op], frame.pop()))


@opcode_named("BINARY_OP", "COMPARE_OP")
def binary(frame: RunningFrame, arg: str, instruction: Instruction) -> None:
    left, right = frame.pop_many(2)
    frame.push(frame.trace.call(frame, getattr(operator, arg), left, right))


@opcode
def UNARY_NOT(frame: RunningFrame, arg: None, instruction: Instruction) -> None:
    frame.push(frame.trace.call(frame, operator.not_, frame.pop()))


@opcode
def TO_BOOL(frame: RunningFrame, arg: None, instruction: Instruction) -> None:
    following = frame.decoded.instructions[instruction.index + 1]
    frame.push(ConstVar(branch_truth(frame, frame.pop(), following)))


@opcode
def IS_OP(frame: RunningFrame, arg: bool, instruction: Instruction) -> None:
    left, right = frame.pop_many(2)
    frame.push(ConstVar(same(frame, left, right) is not arg))


@opcode
def CONTAINS_OP(frame: RunningFrame, arg: bool, instruction: Instruction) -> None:
    item, container = frame.pop_many(2)
    found = frame.trace.call(frame, operator.contains, container, item)
    frame.push(frame.trace.call(frame, operator.not_, found) if arg else found)


@opcode
def BINARY_SUBSCR(frame: RunningFrame, arg: None, instruction: Instruction) -> None:
    container, key = frame.pop_many(2)
    frame.push(frame.trace.call(frame, operator.getitem, container, key))


@opcode
def STORE_SUBSCR(frame: RunningFrame, arg: None, instruction: Instruction) -> None:
    value, container, key = frame.pop_many(3)
    frame.trace.call(frame, operator.setitem, container, key, value)


@opcode
def DELETE_SUBSCR(frame: RunningFrame, arg: None, instruction: Instruction) -> None:
    container, key = frame.pop_many(2)
    frame.trace.call(frame, operator.delitem, container, key)


@opcode
def BINARY_SLICE(frame: RunningFrame, arg: None, instruction: Instruction) -> None:
    container, start, stop = frame.pop_many(3)
    key = SliceVar(start, stop, ConstVar(None))
    frame.push(frame.trace.call(frame, operator.getitem, container, key))


@opcode
def STORE_SLICE(frame: RunningFrame, arg: None, instruction: Instruction) -> None:
    value, container, start, stop = frame.pop_many(4)
    key = SliceVar(start, stop, ConstVar(None))
    frame.trace.call(frame, operator.setitem, container, key, value)


@opcode
def BUILD_SLICE(frame: RunningFrame, arg: int, instruction: Instruction) -> None:
    parts = frame.pop_many(arg)
    frame.push(SliceVar(parts[0], parts[1], parts[2] if arg == 3 else ConstVar(None)))


@opcode
def GET_LEN(frame: RunningFrame, arg: None, instruction: Instruction) -> None:
    frame.push(frame.trace.call(frame, len, frame.stack[-1]))


# -- text --------------------------------------------------------------------------------------


@opcode
def FORMAT_VALUE(frame: RunningFrame, arg: tuple[int, bool], instruction: Instruction) -> None:
    conversion, has_spec = arg
    spec: Var = frame.pop() if has_spec else ConstVar("")
    value = frame.pop()
    if conversion:
        value = frame.trace.call(frame, CONVERSIONS[conversion], value)
    frame.push(frame.trace.call(frame, format, value, spec))


@opcode
def CONVERT_VALUE(frame: RunningFrame, arg: int, instruction: Instruction) -> None:
    frame.push(frame.trace.call(frame, CONVERSIONS[arg], frame.pop()))


@opcode
def BUILD_STRING(frame: RunningFrame, arg: int, instruction: Instruction) -> None:
    items = frame.pop_many(arg)
    text = joined(items)
    if text is not None:
        frame.push(text)
        return
    parts: list[Any] = []
    for item in items:
        if not item.is_constant():
            raise Break("not_a_constant", repr(item))
        parts.append(item.as_constant())
    frame.push(ConstVar("".join(parts)))
