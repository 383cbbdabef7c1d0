"""Generators; asynchronous code breaks."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING

from dynamo.bytecode.decode import Instruction
from dynamo.bytecode.versions import VERSION
from dynamo.symbolic.opcodes.table import breaks_with, opcode
from dynamo.symbolic.rules.table import rule
from dynamo.symbolic.variables.base import ObservedException, Var
from dynamo.symbolic.variables.constant import ConstVar
from dynamo.symbolic.variables.generators import GeneratorVar

if TYPE_CHECKING:
    from dynamo.symbolic.machine import SymbolicFrame


@opcode
def YIELD_VALUE(frame: SymbolicFrame, arg: int | None, instruction: Instruction) -> None:
    frame.yielded = True
    frame.result = frame.pop()


@opcode
def GET_YIELD_FROM_ITER(frame: SymbolicFrame, arg: None, instruction: Instruction) -> None:
    if not isinstance(frame.stack[-1], GeneratorVar):
        frame.push(frame.trace.call(frame, iter, frame.pop()))


@opcode
def SEND(frame: SymbolicFrame, arg: None, instruction: Instruction) -> None:
    value = frame.pop()
    receiver = frame.stack[-1]
    try:
        if value.is_constant() and value.as_constant() is None:
            result = receiver.next_item(frame)
        else:
            result = receiver.call_method(frame, "send", [value], {})
    except ObservedException as error:
        if not issubclass(error.value.python_type(), StopIteration):
            raise
        result = stop_value(error.value, frame)
        frame.ip = instruction.target
        if not VERSION.send_keeps_receiver:
            frame.pop()
    frame.push(result)


def stop_value(stop: Var, frame: SymbolicFrame) -> Var:
    """What a StopIteration carries."""
    args = getattr(stop, "args", None)
    if isinstance(args, list):
        return args[0] if args else ConstVar(None)
    return stop.get_attr(frame, "value")


@opcode
def END_SEND(frame: SymbolicFrame, arg: None, instruction: Instruction) -> None:
    value = frame.pop()
    frame.pop()
    frame.push(value)


def _method_rule(name: str) -> None:
    @rule(getattr(types.GeneratorType, name), GeneratorVar)
    def handler(tx: SymbolicFrame, generator: GeneratorVar, *args: Var) -> Var:
        return generator.call_method(tx, name, list(args), {})


for _name in ("send", "throw", "close", "__next__"):
    _method_rule(_name)


breaks_with(
    "async_code",
    """GET_AITER GET_ANEXT GET_AWAITABLE BEFORE_ASYNC_WITH END_ASYNC_FOR ASYNC_GEN_WRAP
    CLEANUP_THROW RETURN_GENERATOR""",
)
