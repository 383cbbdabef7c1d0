"""The match statement."""

from __future__ import annotations

import collections.abc
from typing import TYPE_CHECKING

from dynamo.bytecode.decode import Instruction
from dynamo.symbolic.opcodes.table import opcode
from dynamo.symbolic.variables.base import ObservedException, Var
from dynamo.symbolic.variables.constant import ConstVar
from dynamo.symbolic.variables.lists import TupleVar

if TYPE_CHECKING:
    from dynamo.symbolic.machine import SymbolicFrame

# Classes whose only positional pattern is the subject itself.
SELF_MATCHING = (
    bool, bytearray, bytes, dict, float, frozenset, int, list, set, str, tuple,
)  # fmt: skip


@opcode
def MATCH_MAPPING(frame: SymbolicFrame, arg: None, instruction: Instruction) -> None:
    kind = frame.stack[-1].python_type()
    frame.push(ConstVar(issubclass(kind, collections.abc.Mapping)))


@opcode
def MATCH_SEQUENCE(frame: SymbolicFrame, arg: None, instruction: Instruction) -> None:
    kind = frame.stack[-1].python_type()
    is_text = issubclass(kind, str | bytes | bytearray)
    frame.push(ConstVar(issubclass(kind, collections.abc.Sequence) and not is_text))


@opcode
def MATCH_KEYS(frame: SymbolicFrame, arg: None, instruction: Instruction) -> None:
    subject, keys = frame.stack[-2:]
    values: list[Var] = []
    for key in keys.unpack(frame):
        if not subject.contains(frame, key).truth(frame):
            frame.push(ConstVar(None))
            return
        values.append(subject.call_method(frame, "get", [key], {}))
    frame.push(TupleVar(values))


@opcode
def MATCH_CLASS(frame: SymbolicFrame, arg: int, instruction: Instruction) -> None:
    subject, cls, keywords = frame.pop_many(3)
    names: tuple[str, ...] = keywords.as_constant()
    if not frame.trace.call(frame, isinstance, subject, cls).truth(frame):
        frame.push(ConstVar(None))
        return
    values: list[Var] = []
    if arg:
        try:
            found = cls.get_attr(frame, "__match_args__")
        except ObservedException:
            if not issubclass(subject.python_type(), SELF_MATCHING) or arg > 1:
                raise
            values.append(subject)
        else:
            names = (*(item.as_constant() for item in found.unpack(frame)[:arg]), *names)
    for name in names:
        try:
            values.append(subject.get_attr(frame, name))
        except ObservedException as error:
            if not issubclass(error.value.python_type(), AttributeError):
                raise
            frame.push(ConstVar(None))
            return
    frame.push(TupleVar(values))
