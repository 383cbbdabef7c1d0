"""Patterns of `match`: what a subject is, and which of its parts a pattern takes."""

from __future__ import annotations

from dynamo.base.errors import Break
from dynamo.bytecode.decode import Instruction
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.machine.opcodes.table import opcode
from dynamo.symbolic.machine.protocols import RunningFrame
from dynamo.symbolic.python.classes import ClassVar
from dynamo.symbolic.python.functions import inline_polyfill
from dynamo.symbolic.python.polyfill_patterns import parts_of_class, values_of_keys

# Flags of CPython's types (Include/object.h), which `__flags__` shows.
SEQUENCE, MAPPING, HEAP_TYPE, MATCH_SELF = 1 << 5, 1 << 6, 1 << 9, 1 << 22


@opcode
def MATCH_SEQUENCE(frame: RunningFrame, arg: None, instruction: Instruction) -> None:
    frame.push(ConstVar(bool(frame.stack[-1].python_type().__flags__ & SEQUENCE)))


@opcode
def MATCH_MAPPING(frame: RunningFrame, arg: None, instruction: Instruction) -> None:
    frame.push(ConstVar(bool(frame.stack[-1].python_type().__flags__ & MAPPING)))


@opcode
def MATCH_KEYS(frame: RunningFrame, arg: None, instruction: Instruction) -> None:
    frame.push(inline_polyfill(frame, values_of_keys, frame.stack[-2:], {}))


@opcode
def MATCH_CLASS(frame: RunningFrame, arg: int, instruction: Instruction) -> None:
    subject, cls, names = frame.pop_many(3)
    if not isinstance(cls, ClassVar):
        raise Break("argument_mismatch", f"a class pattern of {cls!r}")
    flags = cls.cls.__flags__
    if not flags & HEAP_TYPE and arg > allowed_in_c(cls.cls):
        raise Break("argument_mismatch", f"{arg} patterns in {cls!r}")  # its error names the module
    facts = [ConstVar(arg), names, ConstVar(bool(flags & MATCH_SELF))]
    frame.push(inline_polyfill(frame, parts_of_class, [subject, cls, *facts], {}))


def allowed_in_c(cls: type) -> int:
    """How many patterns without a name a class written in C takes."""
    return len(getattr(cls, "__match_args__", (None,) * bool(cls.__flags__ & MATCH_SELF)))
