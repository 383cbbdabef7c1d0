"""Generators; asynchronous code breaks."""

from __future__ import annotations

import types

from dynamo.bytecode.decode import Instruction
from dynamo.bytecode.versions import VERSION
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.table import first_rule
from dynamo.symbolic.core.var import ObservedException, Var
from dynamo.symbolic.machine.opcodes.table import breaks_with, opcode
from dynamo.symbolic.machine.protocols import RunningFrame
from dynamo.symbolic.python.generators import GeneratorVar


@opcode
def YIELD_VALUE(frame: RunningFrame, arg: int | None, instruction: Instruction) -> None:
    frame.yielded = True
    frame.result = frame.pop()


@opcode
def GET_YIELD_FROM_ITER(frame: RunningFrame, arg: None, instruction: Instruction) -> None:
    if not isinstance(frame.stack[-1], GeneratorVar):
        frame.push(frame.trace.call(frame, iter, frame.pop()))


@opcode
def SEND(frame: RunningFrame, arg: None, instruction: Instruction) -> None:
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


def stop_value(stop: Var, frame: RunningFrame) -> Var:
    """What a StopIteration carries."""
    args = getattr(stop, "args", None)
    if isinstance(args, list):
        return args[0] if args else ConstVar(None)
    return stop.get_attr(frame, "value")


@opcode
def END_SEND(frame: RunningFrame, arg: None, instruction: Instruction) -> None:
    value = frame.pop()
    frame.pop()
    frame.push(value)


def _method_rule(name: str) -> None:
    @first_rule(getattr(types.GeneratorType, name), GeneratorVar)
    def handler(tx: RunningFrame, generator: GeneratorVar, *args: Var) -> Var:
        return generator.call_method(tx, name, list(args), {})


for _name in ("send", "throw", "close", "__next__"):
    _method_rule(_name)


breaks_with(
    "async_code",
    """GET_AITER GET_ANEXT GET_AWAITABLE BEFORE_ASYNC_WITH LOAD_SPECIAL END_ASYNC_FOR
    ASYNC_GEN_WRAP CLEANUP_THROW RETURN_GENERATOR""",
)
