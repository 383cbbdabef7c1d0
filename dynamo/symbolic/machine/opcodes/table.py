"""The handler table: normalised opcode -> function `(frame, arg, instruction)`.

A handler is named after its opcode. `breaks_with` registers opcodes that are not
modelled, each with the reason that it breaks with.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dynamo.base.errors import Break
from dynamo.bytecode.decode import Instruction
from dynamo.symbolic.machine.protocols import RunningFrame

Handler = Callable[[RunningFrame, Any, Instruction], None]
HANDLERS: dict[str, Handler] = {}


def opcode(handler: Handler) -> Handler:
    """Registers the handler for the opcode that it is named after."""
    return opcode_named(handler.__name__)(handler)


def opcode_named(*names: str) -> Callable[[Handler], Handler]:
    """Registers one handler for several opcodes."""

    def register(handler: Handler) -> Handler:
        for name in names:
            assert name not in HANDLERS, name
            HANDLERS[name] = handler
        return handler

    return register


def breaks_with(code: str, names: str) -> None:
    """Registers opcodes that end the graph."""
    for name in names.split():
        opcode_named(name)(_breaker(code, name))


def _breaker(code: str, name: str) -> Handler:
    def handler(frame: RunningFrame, arg: Any, instruction: Instruction) -> None:
        raise Break(code, name)

    return handler
