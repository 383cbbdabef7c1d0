"""Jumps and loops."""

from __future__ import annotations

from dynamo.bytecode.decode import Instruction
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.var import ObservedException
from dynamo.symbolic.machine.opcodes.table import opcode, opcode_named
from dynamo.symbolic.machine.protocols import RunningFrame
from dynamo.symbolic.python.sameness import same
from dynamo.symbolic.tensors.repeating import branch_truth

NONE = ConstVar(None)


@opcode
def JUMP(frame: RunningFrame, arg: None, instruction: Instruction) -> None:
    frame.ip = instruction.target


@opcode_named("POP_JUMP_IF_TRUE", "POP_JUMP_IF_FALSE")
def pop_jump(frame: RunningFrame, arg: None, instruction: Instruction) -> None:
    if branch_truth(frame, frame.pop(), instruction) == (instruction.op == "POP_JUMP_IF_TRUE"):
        frame.ip = instruction.target


@opcode_named("POP_JUMP_IF_NONE", "POP_JUMP_IF_NOT_NONE")
def pop_jump_none(frame: RunningFrame, arg: None, instruction: Instruction) -> None:
    if same(frame, frame.pop(), NONE) == (instruction.op == "POP_JUMP_IF_NONE"):
        frame.ip = instruction.target


@opcode_named("JUMP_IF_TRUE_OR_POP", "JUMP_IF_FALSE_OR_POP")
def jump_or_pop(frame: RunningFrame, arg: None, instruction: Instruction) -> None:
    if frame.stack[-1].truth(frame) == (instruction.op == "JUMP_IF_TRUE_OR_POP"):
        frame.ip = instruction.target
    else:
        frame.pop()


@opcode
def GET_ITER(frame: RunningFrame, arg: None, instruction: Instruction) -> None:
    frame.push(frame.trace.call(frame, iter, frame.pop()))


@opcode
def FOR_ITER(frame: RunningFrame, arg: None, instruction: Instruction) -> None:
    try:
        frame.push(frame.stack[-1].next_item(frame))
    except ObservedException as error:
        if not issubclass(error.value.python_type(), StopIteration):
            raise
        frame.pop()
        frame.ip = instruction.target


@opcode_named("END_FOR")
def END_FOR(frame: RunningFrame, arg: None, instruction: Instruction) -> None:
    """Never reached: FOR_ITER jumps behind it."""
    raise AssertionError("END_FOR is skipped by FOR_ITER")
