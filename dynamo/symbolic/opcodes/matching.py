"""The match statement."""

from __future__ import annotations

import collections.abc
from typing import TYPE_CHECKING

from dynamo.bytecode.decode import Instruction
from dynamo.symbolic.opcodes.table import opcode
from dynamo.symbolic.variables.base import ObservedException, Var
from dynamo.symbolic.variables.classes import ClassVar
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
        positional = positional_names(frame, cls, arg)
        if positional is None:
            values.append(subject)
        names = (*(positional or ()), *names)
    for index, name in enumerate(names):
        if name in names[:index]:
            message = f"{class_name(cls)}() got multiple sub-patterns for attribute {name!r}"
            frame.trace.raise_exception(TypeError, message)
        try:
            values.append(subject.get_attr(frame, name))
        except ObservedException as error:
            if not issubclass(error.value.python_type(), AttributeError):
                raise
            frame.push(ConstVar(None))
            return
    frame.push(TupleVar(values))


def class_name(cls: Var) -> str:
    """Of a class that a pattern names."""
    assert isinstance(cls, ClassVar)
    return cls.cls.__name__


def positional_names(frame: SymbolicFrame, cls: Var, count: int) -> tuple[str, ...] | None:
    """The attributes that positional patterns mean; None where one means the subject."""
    assert isinstance(cls, ClassVar)
    known: tuple[str, ...] = ()
    matches_itself = False
    if cls.has_attr(frame, "__match_args__"):
        found = cls.get_attr(frame, "__match_args__")
        if not isinstance(found, TupleVar):
            kind = found.python_type().__name__
            message = f"{class_name(cls)}.__match_args__ must be a tuple (got {kind})"
            frame.trace.raise_exception(TypeError, message)
        known = tuple(item.as_constant() for item in found.items)
    else:
        matches_itself = issubclass(cls.cls, SELF_MATCHING)
    allowed = 1 if matches_itself else len(known)
    if count > allowed:
        plural = "" if allowed == 1 else "s"
        accepts = f"accepts {allowed} positional sub-pattern{plural}"
        message = f"{class_name(cls)}() {accepts} ({count} given)"
        frame.trace.raise_exception(TypeError, message)
    return None if matches_itself else known[:count]
