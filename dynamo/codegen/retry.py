"""What the new code does when its graph raises: the frame's own code runs again, as it is.

Nothing of the program has happened by then: effects are made behind the graph. So the frame starts
again without the compiler, and all of it (handlers, `with` blocks, effects before the error, the
error's text) is what Python makes of it. A graph that draws random numbers, or writes into its
inputs, can't be run twice, and Ctrl-C, or what the handler of another signal raises, is not to
start it again: then the error comes where the frame begins, as `throw` does it.

In: what the errors of the graph mean. Out: the instructions for its error (`emit_handler`).
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from types import CellType, CodeType, FunctionType
from typing import Any, NamedTuple

from torch.utils.checkpoint import _StopRecomputationError

from dynamo.base import logs
from dynamo.base.errors import DynamoError
from dynamo.base.signals import is_of_signal
from dynamo.bytecode.emit import Emitter
from dynamo.bytecode.raw import Raw
from dynamo.graph_operators.cuts import Unforeseen
from dynamo.hook import Disabled

NOT_THE_PROGRAMS = (DynamoError, _StopRecomputationError)


class Raising(NamedTuple):
    """What raises an exception where a frame begins.

    code: that of a function of what the frame is given and the exception (in the place of one that
    the frame is to raise itself); handled: which argument of the frame is its exception by then.
    """

    code: CodeType
    handled: int | None


def emit_handler(
    emitter: Emitter, call: tuple[Raw, Raw], code: CodeType, raising: Raising | None,
    repeatable: bool, tests: bool, restore: Callable[[], None],
) -> None:
    """The handler of the graph's call, where the program could tell it from eager's.

    call: its first and last instruction; code: what the frame starts with; raising: see
    `throw`; repeatable: True where the graph may run again;
    tests: True where it tests what the trace has expected, before anything that can't run again;
    restore: emits what undoes the draws of Python's random numbers.
    """
    if raising is None and not repeatable and not tests:
        return
    handler = emitter.emit("PUSH_EXC_INFO")
    error = emitter.store_fresh("exception")
    emitter.emit("POP_EXCEPT")
    if repeatable or tests:
        restore()
    caught = Exception if repeatable else Unforeseen if tests else ()
    _emit_run(emitter, error, caught, raising, code)
    emitter.protect(*call, handler, 0)


def emit_thrower(
    emitter: Emitter, ranges: Sequence[tuple[Raw, Raw]], code: CodeType, raising: Raising | None,
    restore: Callable[[], None] | None,
) -> None:
    """The handler of what is done around the graph: an error there is a signal's, or that of a
    `print`. It comes where the frame begins, with the modes of that place.

    ranges: first and last instructions; restore: sets the modes, None where they are kept.
    """
    handler = emitter.emit("PUSH_EXC_INFO")
    error = emitter.store_fresh("exception")
    emitter.emit("POP_EXCEPT")
    if restore is not None:
        restore()
    if raising is None:
        emitter.load_fast(error)
        emitter.delete_fast(error)
        emitter.emit("RERAISE", 0)
    else:
        _emit_run(emitter, error, (), raising, code)
    for first, last in ranges:
        emitter.protect(first, last, handler, 0)


def _emit_run(
    emitter: Emitter, error: str, seen: type[Exception] | tuple[()], raising: Raising | None,
    code: CodeType,
) -> None:
    emitter.start_call_const(rerun)
    emitter.load_fast(error)
    emitter.delete_fast(error)
    emitter.load_const(seen)
    emitter.load_const(raising)
    _load_frame(emitter, code)
    emitter.call(7)
    emitter.emit("RETURN_VALUE")


def _load_frame(emitter: Emitter, code: CodeType) -> None:
    """The frame's code, its closure, positional arguments and keywords."""
    names = code.co_varnames
    first, end = code.co_argcount, code.co_argcount + code.co_kwonlyargcount
    emitter.load_const(code)
    for name in code.co_freevars:
        emitter.load_closure(name)
    emitter.emit("BUILD_TUPLE", len(code.co_freevars))
    emitter.emit("BUILD_LIST", _load_all(emitter, names[:first]))
    more = bool(code.co_flags & inspect.CO_VARARGS)
    if more:
        emitter.load_fast(names[end])
        emitter.emit("LIST_EXTEND", 1)
    for name in names[first:end]:
        emitter.load_const(name)
        emitter.load_fast(name)
    emitter.emit("BUILD_MAP", end - first)
    if code.co_flags & inspect.CO_VARKEYWORDS:
        emitter.load_fast(names[end + more])
        emitter.emit("DICT_UPDATE", 1)


def _load_all(emitter: Emitter, names: Sequence[str]) -> int:
    for name in names:
        emitter.load_fast(name)
    return len(names)


# -- called by the new code ------------------------------------------------------------------------


def rerun(
    error: BaseException, seen: type[Exception] | tuple[()], raising: Raising | None,
    code: CodeType, closure: tuple[CellType, ...], args: list[Any], keywords: dict[str, Any],
) -> Any:
    """What the frame gives without the compiler after an error of the graph that is a `seen` one,
    which the program may see; others come where the frame begins. A checkpoint ends its
    recomputation by an exception where it has all tensors: no others may follow."""
    module_globals = sys._getframe(1).f_globals  # a constant with them would keep them alive
    try:
        if (not isinstance(error, seen) or isinstance(error, NOT_THE_PROGRAMS)
                or is_of_signal(error)):
            return throw(error, raising, module_globals, closure, args)
        text = f"the graph of {code.co_name} raised {type(error).__name__}; it runs again in eager"
        logs.log("dynamo").emit(text)
    finally:
        del error
    function = FunctionType(code, module_globals, code.co_name, None, closure)
    return Disabled(function)(*args, **keywords)


def throw(
    error: BaseException, raising: Raising | None, module_globals: dict[str, Any],
    closure: tuple[CellType, ...], args: Sequence[Any],
) -> Any:
    """What a frame gives that meets the error where it begins, with the handlers and `with` blocks
    that are around that; raising: None where none are; args: what the frame got."""
    try:
        if raising is None:
            raise error
        code, handled = raising
        given = args[: code.co_argcount - 1]
        if handled is not None and error.__context__ is None:
            error.__context__ = args[handled]
        function = FunctionType(code, module_globals, code.co_name, None, closure)
        return Disabled(function)(*given, error)
    finally:
        del error, args
