"""What exceptions made in the trace answer: notes, tracebacks, text."""

from __future__ import annotations

import sys

from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.lookup import find_in_mro, is_own_method
from dynamo.symbolic.core.table import rule
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.python.demands import as_demanded
from dynamo.symbolic.python.exceptions import ExceptionVar
from dynamo.symbolic.python.lists import ListVar, TupleVar

TEXT_OF_ARGUMENTS = tuple(
    vars(cls)["__str__"] for cls in (BaseException, KeyError, AttributeError, NameError)
    if "__str__" in vars(cls)
)


@rule(BaseException.add_note, ExceptionVar)
def add_note(tx: Frame, exception: ExceptionVar, note: Var) -> Var:
    """`exception.add_note(text)`."""
    kind = note.python_type()
    if not issubclass(kind, str):
        text = (f"add_note() argument must be str, not {kind.__name__}"
                if sys.version_info >= (3, 14) else f"note must be a str, not '{kind.__name__}'")
        tx.trace.raise_exception(TypeError, text)
    notes = exception.written.get("__notes__")
    if notes is None:
        exception.set_attr(tx, "__notes__", ListVar([note]))
    elif isinstance(notes, ListVar):
        notes.change(tx).append(note)
    else:
        tx.trace.raise_exception(TypeError, "Cannot add note: __notes__ is not a list")
    return ConstVar(None)


@rule(BaseException.with_traceback, ExceptionVar)
def with_traceback(tx: Frame, exception: ExceptionVar, traceback: Var) -> Var:
    """`exception.with_traceback(traceback)`."""
    exception.set_attr(tx, "__traceback__", traceback)
    return exception


@rule(repr, ExceptionVar)
def repr_of_exception(tx: Frame, exception: ExceptionVar) -> Var | None:
    """`Name(arguments)`."""
    custom = find_in_mro(exception.cls, "__repr__")
    if is_own_method(custom):
        found = exception.call_method(tx, "__repr__", [], {})
        return as_demanded(tx, "__repr__", exception.cls, found)
    if custom is not BaseException.__repr__:
        return None
    name = exception.cls.__name__
    if len(exception.args) == 1:
        text = tx.trace.call(tx, repr, exception.args[0]).as_constant()
        return ConstVar(f"{name}({text})")
    return ConstVar(name + tx.trace.call(tx, repr, TupleVar(exception.args)).as_constant())


@rule(str, ExceptionVar)
def str_of_exception(tx: Frame, exception: ExceptionVar) -> Var | None:
    """The text of the arguments, as `BaseException.__str__` and `KeyError.__str__` give it."""
    custom, args = find_in_mro(exception.cls, "__str__"), exception.args
    if is_own_method(custom):
        found = exception.call_method(tx, "__str__", [], {})
        return as_demanded(tx, "__str__", exception.cls, found)
    if custom is KeyError.__str__ and len(args) == 1:
        return tx.trace.call(tx, repr, args[0])
    if custom not in TEXT_OF_ARGUMENTS:
        return None
    if not args:
        return ConstVar("")
    return tx.trace.call(tx, str, args[0] if len(args) == 1 else TupleVar(args))
