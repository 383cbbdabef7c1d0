"""Exceptions that `raise`, `throw` and rules of the compiler make."""

from __future__ import annotations

from typing import Any

from dynamo.base.errors import Break
from dynamo.symbolic.core.frame import Evaluation, Frame
from dynamo.symbolic.core.lookup import name_in_c
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.python.classes import ClassVar
from dynamo.symbolic.python.exceptions import ExceptionVar


def make_exception(trace: Evaluation, cls: type[BaseException], *args: Any) -> Var:
    return ExceptionVar(cls, [trace.constant(arg) for arg in args])


def as_exception(tx: Frame, args: list[Var]) -> Var:
    """The exception that `throw(*args)` or `raise args[0]` means."""
    first = args[0]
    if len(args) > 1 and not (args[1].is_constant() and args[1].as_constant() is None):
        if not issubclass(args[1].python_type(), BaseException):
            raise Break("argument_mismatch", "throw(type, arguments)")
        return args[1]
    if isinstance(first, ClassVar) and issubclass(first.cls, BaseException):
        return exception_of(tx, first)
    if issubclass(first.python_type(), BaseException):
        return first
    tx.trace.raise_exception(TypeError, (
        "exceptions must be classes or instances deriving from BaseException, not "
        + name_in_c(first.python_type())))


def exception_of(tx: Frame, cls: ClassVar) -> Var:
    """The exception that raising its class raises."""
    made = tx.call(cls, [], {})
    if not issubclass(made.python_type(), BaseException):  # see `__new__`
        raise Break("call_of_unknown_function", f"{cls!r}, which makes no exception")
    return made
