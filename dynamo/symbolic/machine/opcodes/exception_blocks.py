"""Exceptions and `with`."""

from __future__ import annotations

import abc

from dynamo.base.errors import Break, SkipFrame
from dynamo.bytecode.decode import Instruction
from dynamo.symbolic.core.constant import ConstVar, NullVar
from dynamo.symbolic.core.lookup import find_in_mro, is_derived, is_own_method
from dynamo.symbolic.core.stack_values import SavedExceptionVar
from dynamo.symbolic.core.var import ObservedException, Var
from dynamo.symbolic.machine.blocks import enter_context
from dynamo.symbolic.machine.opcodes.table import opcode, opcode_named
from dynamo.symbolic.machine.protocols import RunningFrame
from dynamo.symbolic.python.classes import ClassVar
from dynamo.symbolic.python.exceptions import handled_outside, stopped, traceback_of
from dynamo.symbolic.python.lists import TupleVar
from dynamo.symbolic.python.raising import exception_of

NO_EXCEPTION = "catching classes that do not inherit from BaseException is not allowed"


@opcode
def PUSH_EXC_INFO(frame: RunningFrame, arg: None, instruction: Instruction) -> None:
    exception = frame.pop()
    frame.push(SavedExceptionVar(frame.handled, exception))
    frame.push(exception)
    frame.handled = exception


@opcode
def POP_EXCEPT(frame: RunningFrame, arg: None, instruction: Instruction) -> None:
    saved = frame.pop()
    assert isinstance(saved, SavedExceptionVar)
    saved.active = False
    frame.handled = saved.previous


@opcode
def CHECK_EXC_MATCH(frame: RunningFrame, arg: None, instruction: Instruction) -> None:
    wanted = frame.pop()
    kind, found = frame.stack[-1].python_type(), False
    for item in wanted.items if isinstance(wanted, TupleVar) else [wanted]:
        if not isinstance(item, ClassVar) or not issubclass(item.cls, BaseException):
            frame.trace.raise_exception(TypeError, NO_EXCEPTION)
        found = found or is_derived(kind, item.cls)
    frame.push(ConstVar(found))


@opcode
def RERAISE(frame: RunningFrame, arg: int, instruction: Instruction) -> None:
    exception = frame.pop()
    step = frame.trace.context.raised_at.get(exception)
    # A real exception that came in can only be raised again here.
    known = step if exception.source is None else None
    raise ObservedException(exception, kept_in=frame, step=known)


@opcode
def RAISE_VARARGS(frame: RunningFrame, arg: int, instruction: Instruction) -> None:
    if arg == 0:
        if frame.exception is None and handled_outside(frame.trace):
            raise Break("call_of_unknown_function", "raise, of what the caller handles")
        if frame.exception is None:
            frame.trace.raise_exception(RuntimeError, "No active exception to reraise")
        raise ObservedException(frame.exception, kept_in=frame)
    parts = frame.pop_many(arg)
    exception = as_instance(frame, parts[0], "exceptions must derive from BaseException")
    metaclass = type(exception.python_type())
    method = find_in_mro(metaclass, "__subclasscheck__")  # when the exception is set
    if is_own_method(method) and metaclass is not abc.ABCMeta:
        raise Break("call_of_unknown_function", f"__subclasscheck__ of {metaclass.__qualname__}")
    if exception.source is not None and frame.exception is not exception and (
        frame.exception is not None or handled_outside(frame.trace)
    ):
        raise Break("attribute_store_unknown", f"__context__ of {exception!r}")
    if arg == 2:
        cause = parts[1]
        if not (cause.is_constant() and cause.as_constant() is None):
            cause = as_instance(frame, cause, "exception causes must derive from BaseException")
        exception.set_attr(frame, "__cause__", cause)
    raise ObservedException(exception)


def as_instance(frame: RunningFrame, value: Var, message: str) -> Var:
    """The exception that `raise value` raises."""
    if isinstance(value, ClassVar) and issubclass(value.cls, BaseException):
        return exception_of(frame, value)
    if not issubclass(value.python_type(), BaseException):
        frame.trace.raise_exception(TypeError, message)
    return value


# -- with --------------------------------------------------------------------------------------


@opcode
def BEFORE_WITH(frame: RunningFrame, arg: str | None, instruction: Instruction) -> None:
    leave, entered = enter_context(frame, frame.pop())
    frame.push(leave)
    if arg == "middle":
        frame.push(NullVar())
    frame.push(entered)


@opcode
def WITH_EXCEPT_START(frame: RunningFrame, arg: None, instruction: Instruction) -> None:
    exception = frame.stack[-1]
    leave = frame.stack[-4]
    if isinstance(leave, NullVar):
        leave = frame.stack[-5]
    kind = frame.trace.wrap(exception.python_type(), None)
    frame.push(frame.call(leave, [kind, exception, traceback_of(exception)], {}))


@opcode
def STOPITERATION_ERROR(frame: RunningFrame, arg: int, instruction: Instruction) -> None:
    """A generator's StopIteration becomes a RuntimeError."""
    if issubclass(frame.stack[-1].python_type(), StopIteration):
        error = stopped(frame.pop())
        frame.trace.context.raised_at[error] = frame.trace.steps
        frame.push(error)


# -- except* -----------------------------------------------------------------------------------


@opcode_named("CHECK_EG_MATCH", "PREP_RERAISE_STAR")
def except_star(frame: RunningFrame, arg: None, instruction: Instruction) -> None:
    """Not a break: the next part would not know which part of the group is being handled."""
    raise SkipFrame("except* in the function")
