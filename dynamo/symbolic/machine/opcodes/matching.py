"""The match statement."""

from __future__ import annotations

from dynamo.base.errors import Break
from dynamo.bytecode.decode import Instruction
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.lookup import told_name
from dynamo.symbolic.core.var import ObservedException, Var
from dynamo.symbolic.machine.opcodes.table import opcode
from dynamo.symbolic.machine.protocols import RunningFrame
from dynamo.symbolic.python.builtin_attributes import guard_registrations
from dynamo.symbolic.python.classes import ClassVar
from dynamo.symbolic.python.lists import TupleVar
from dynamo.symbolic.python.objects import ObjectVar

# Classes whose only positional pattern is the subject itself.
SELF_MATCHING = (
    bool, bytearray, bytes, dict, float, frozenset, int, list, set, str, tuple,
)  # fmt: skip


# What the interpreter asks of a class in patterns: classes get the one of their first base that has
# one, and those that are registered with `Mapping` or `Sequence` get it, too.
SEQUENCE, MAPPING = 1 << 5, 1 << 6


@opcode
def MATCH_MAPPING(frame: RunningFrame, arg: None, instruction: Instruction) -> None:
    frame.push(ConstVar(is_kind(frame, frame.stack[-1], MAPPING)))


@opcode
def MATCH_SEQUENCE(frame: RunningFrame, arg: None, instruction: Instruction) -> None:
    frame.push(ConstVar(is_kind(frame, frame.stack[-1], SEQUENCE)))


def is_kind(frame: RunningFrame, subject: Var, flag: int) -> bool:
    kind = subject.python_type()
    if not kind.__flags__ & (SEQUENCE | MAPPING):
        guard_registrations(frame, kind)
    return bool(kind.__flags__ & flag)


@opcode
def MATCH_KEYS(frame: RunningFrame, arg: None, instruction: Instruction) -> None:
    subject, keys = frame.stack[-2:]
    values: list[Var] = []
    missing, seen = ObjectVar(object), set()
    for key in keys.unpack(frame):
        hashed = key.hash_key(frame)
        if hashed in seen:
            if not key.is_constant():
                raise Break("hash_unknown", f"{key!r} stands twice in a pattern")
            message = f"mapping pattern checks duplicate key ({key.as_constant()!r})"
            frame.trace.raise_exception(ValueError, message)
        seen.add(hashed)
        value = subject.call_method(frame, "get", [key, missing], {})
        if value is missing:
            frame.push(ConstVar(None))
            return
        values.append(value)
    frame.push(TupleVar(values))


@opcode
def MATCH_CLASS(frame: RunningFrame, arg: int, instruction: Instruction) -> None:
    subject, cls, keywords = frame.pop_many(3)
    if not isinstance(cls, ClassVar):
        if not cls.is_constant():
            raise Break("call_of_unknown_function", f"a pattern with {cls!r}")
        frame.trace.raise_exception(TypeError, "called match pattern must be a class")
    names: tuple[str, ...] = keywords.as_constant()
    if not frame.trace.call(frame, isinstance, subject, cls).truth(frame):
        frame.push(ConstVar(None))
        return
    values: list[Var] = []
    positional = positional_names(frame, cls, arg) if arg else []
    if positional is None:
        values.append(subject)
    seen: set[str] = set()
    for item in (*(positional or ()), *map(ConstVar, names)):
        if item.python_type() is not str:
            kind = told_name(item.python_type())
            message = f"__match_args__ elements must be strings (got {kind})"
            frame.trace.raise_exception(TypeError, message)
        name = item.as_constant()
        if name in seen:
            message = f"{cls.cls.__name__}() got multiple sub-patterns for attribute {name!r}"
            frame.trace.raise_exception(TypeError, message)
        seen.add(name)
        try:
            values.append(subject.get_attr(frame, name))
        except ObservedException as error:
            if not issubclass(error.value.python_type(), AttributeError):
                raise
            frame.push(ConstVar(None))
            return
    frame.push(TupleVar(values))


def positional_names(frame: RunningFrame, cls: ClassVar, count: int) -> list[Var] | None:
    """The attributes that positional patterns mean; None where one means the subject."""
    known: list[Var] = []
    matches_itself = False
    if cls.has_attr(frame, "__match_args__"):
        found = cls.get_attr(frame, "__match_args__")
        if found.python_type() is not tuple:
            kind = told_name(found.python_type())
            message = f"{cls.cls.__name__}.__match_args__ must be a tuple (got {kind})"
            frame.trace.raise_exception(TypeError, message)
        known = found.unpack(frame)
    else:
        matches_itself = issubclass(cls.cls, SELF_MATCHING)
    allowed = 1 if matches_itself else len(known)
    if count > allowed:
        plural = "" if allowed == 1 else "s"
        accepts = f"accepts {allowed} positional sub-pattern{plural}"
        message = f"{cls.cls.__name__}() {accepts} ({count} given)"
        frame.trace.raise_exception(TypeError, message)
    return None if matches_itself else known[:count]
