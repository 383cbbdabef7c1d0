"""Exception groups: what the methods of `BaseExceptionGroup` and `except*` do, in Python that is
traced in their place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dynamo.base.errors import Break
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.table import rule
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.python.classes import ClassVar
from dynamo.symbolic.python.exceptions import ExceptionVar, GroupVar
from dynamo.symbolic.python.functions import FunctionVar, inline_stand_in
from dynamo.symbolic.python.lists import TupleVar


def divide(error: Any, wanted: Callable[[Any], bool]) -> tuple[Any, Any]:
    """(the part of the exception that is wanted, the rest); None where there is none."""
    if wanted(error):
        return error, None
    if not isinstance(error, BaseExceptionGroup):
        return None, error
    matched, others = [], []
    for item in error.exceptions:
        match, rest = divide(item, wanted)
        if match is not None:
            matched.append(match)
        if rest is not None:
            others.append(rest)
    return narrow(error, matched), narrow(error, others)


def select(error: Any, wanted: Callable[[Any], bool]) -> Any:
    """The part of the exception that is wanted."""
    if wanted(error):
        return error
    if not isinstance(error, BaseExceptionGroup):
        return None
    found = [select(item, wanted) for item in error.exceptions]
    return narrow(error, [item for item in found if item is not None])


def narrow(group: Any, errors: list[Any]) -> Any:
    """The group with these exceptions only."""
    if not errors:
        return None
    made = group.derive(errors)
    if not isinstance(made, BaseExceptionGroup):
        raise TypeError("derive must return an instance of BaseExceptionGroup")
    take_traceback(made, group)
    made.__context__ = group.__context__
    made.__cause__ = group.__cause__
    notes = getattr(group, "__notes__", None)
    if isinstance(notes, Sequence):
        made.__notes__ = list(notes)  # type: ignore[attr-defined]
    return made


def take_traceback(made: BaseException, group: BaseException) -> None:
    """Gives an exception the traceback of another one."""


@rule(take_traceback, ExceptionVar, ExceptionVar)
def take_traceback_(tx: Frame, made: ExceptionVar, group: ExceptionVar) -> Var:
    made.traceback = group.traceback
    return ConstVar(None)


def split(error: Any, kinds: Any) -> tuple[Any, Any]:
    return divide(error, lambda item: isinstance(item, kinds))


def subgroup(error: Any, kinds: Any) -> Any:
    return select(error, lambda item: isinstance(item, kinds))


@rule(BaseExceptionGroup.split, GroupVar)
def split_(tx: Frame, group: GroupVar, condition: Var) -> Var:
    function = divide if isinstance(condition, FunctionVar) else split
    return inline_stand_in(tx, function, [group, checked(condition)], {})


@rule(BaseExceptionGroup.subgroup, GroupVar)
def subgroup_(tx: Frame, group: GroupVar, condition: Var) -> Var:
    function = select if isinstance(condition, FunctionVar) else subgroup
    return inline_stand_in(tx, function, [group, checked(condition)], {})


@rule(BaseExceptionGroup.derive, GroupVar)
def derive(tx: Frame, group: GroupVar, errors: Var) -> Var:
    return tx.call(tx.trace.wrap(BaseExceptionGroup, None), [group.message, errors], {})


def checked(condition: Var) -> Var:
    """A condition that eager takes, too."""
    kinds = condition.items if isinstance(condition, TupleVar) else [condition]
    if not isinstance(condition, FunctionVar) and not all(map(is_exception_class, kinds)):
        raise Break("argument_mismatch", f"a group is split by {condition!r}")
    return condition


def is_exception_class(var: Var) -> bool:
    return isinstance(var, ClassVar) and issubclass(var.cls, BaseException)


# -- except* -----------------------------------------------------------------------------------


def match_star(error: Any, kinds: Any) -> tuple[Any, Any]:
    """(what is left, what an `except* kinds` handles)."""
    if error is None:
        return None, None
    if isinstance(error, kinds):
        if isinstance(error, BaseExceptionGroup):
            return None, error
        return None, BaseExceptionGroup("", (error,))
    if not isinstance(error, BaseExceptionGroup):
        return error, None
    match, rest = error.split(kinds)
    return rest, match


def join_raised(error: Any, errors: list[Any]) -> Any:
    """What leaves a `try` with `except*`: `error` was caught, `errors` are what is left of it and
    what the handlers have raised."""
    errors = [item for item in errors if item is not None]
    if not errors or not isinstance(error, BaseExceptionGroup):
        return errors[0] if errors else None
    again = [item for item in errors if is_raised_again(item, error)]
    raised = [item for item in errors if not is_raised_again(item, error)]
    leaves = [leaf for item in again for leaf in leaves_of(item)]
    left = among(error, leaves)
    if left is not None:
        raised.append(left)
    if len(raised) > 1:
        return BaseExceptionGroup("", raised)
    return raised[0] if raised else None


def leaves_of(error: Any) -> list[Any]:
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    return [leaf for item in error.exceptions for leaf in leaves_of(item)]


def among(error: Any, leaves: list[Any]) -> Any:
    """The part of the group that is made of these exceptions."""
    if not isinstance(error, BaseExceptionGroup):
        return error if any(error is leaf for leaf in leaves) else None
    found = [among(item, leaves) for item in error.exceptions]
    return narrow(error, [item for item in found if item is not None])


def is_raised_again(error: BaseException, caught: BaseException) -> bool:
    """True for a part of the caught group that a bare `raise` passes on, or nobody has taken."""
    raise NotImplementedError  # a trace asks the rule; nothing calls it


@rule(is_raised_again)
def is_raised_again_(tx: Frame, error: Var, caught: Var) -> Var:
    if not isinstance(error, GroupVar) or not isinstance(caught, GroupVar):
        if error.source is not None:
            raise Break("traceback_read", repr(error))
        return ConstVar(False)
    same = error.traceback is caught.traceback
    for a, b in ((error.cause, caught.cause), (error.context, caught.context)):
        same = same and (a is b or (a.is_constant() and b.is_constant()))
    return ConstVar(same)
