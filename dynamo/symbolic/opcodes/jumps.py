"""Jumps and loops."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynamo.bytecode.decode import Instruction
from dynamo.symbolic.opcodes.table import opcode, opcode_named
from dynamo.symbolic.repeating import branch_truth
from dynamo.symbolic.variables.base import ObservedException
from dynamo.symbolic.variables.constant import ConstVar

if TYPE_CHECKING:
    from dynamo.symbolic.machine import SymbolicFrame

NONE = ConstVar(None)


@opcode
def JUMP(frame: SymbolicFrame, arg: None, instruction: Instruction) -> None:
    frame.ip = instruction.target


@opcode_named("POP_JUMP_IF_TRUE", "POP_JUMP_IF_FALSE")
def pop_jump(frame: SymbolicFrame, arg: None, instruction: Instruction) -> None:
    if branch_truth(frame, frame.pop(), instruction) == (instruction.op == "POP_JUMP_IF_TRUE"):
        frame.ip = instruction.target


@opcode_named("POP_JUMP_IF_NONE", "POP_JUMP_IF_NOT_NONE")
def pop_jump_none(frame: SymbolicFrame, arg: None, instruction: Instruction) -> None:
    if frame.trace.same(frame, frame.pop(), NONE) == (instruction.op == "POP_JUMP_IF_NONE"):
        frame.ip = instruction.target


@opcode_named("JUMP_IF_TRUE_OR_POP", "JUMP_IF_FALSE_OR_POP")
def jump_or_pop(frame: SymbolicFrame, arg: None, instruction: Instruction) -> None:
    if frame.stack[-1].truth(frame) == (instruction.op == "JUMP_IF_TRUE_OR_POP"):
        frame.ip = instruction.target
    else:
        frame.pop()


@opcode
def GET_ITER(frame: SymbolicFrame, arg: None, instruction: Instruction) -> None:
    frame.push(frame.trace.call(frame, iter, frame.pop()))


@opcode
def FOR_ITER(frame: SymbolicFrame, arg: None, instruction: Instruction) -> None:
    try:
        frame.push(frame.stack[-1].next_item(frame))
    except ObservedException as error:
        if not issubclass(error.value.python_type(), StopIteration):
            raise
        frame.pop()
        frame.ip = instruction.target


@opcode_named("END_FOR")
def END_FOR(frame: SymbolicFrame, arg: None, instruction: Instruction) -> None:
    """Never reached: FOR_ITER jumps behind it."""
    raise AssertionError("END_FOR is skipped by FOR_ITER")
