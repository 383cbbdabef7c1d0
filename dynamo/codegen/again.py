"""What the new code does when its graph raises: the frame's own code runs again, as it is.

Nothing of the program has happened by then: effects are made behind the graph. So the frame starts
again without the compiler, and all of it (handlers, `with` blocks, effects before the error, the
error's text) is what Python makes of it. A graph that draws random numbers, or writes into its
inputs, can't be run twice: then the blocks in which the frame began are left with the error, which
goes on.

In: what the errors of the graph mean, the place that a continuation starts at (`blocks`).
Out: the instructions for its error (`emit_handler`).
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from types import CellType, CodeType, FunctionType
from typing import Any, NoReturn

from torch.utils.checkpoint import _StopRecomputationError

from dynamo.base import logs
from dynamo.base.cuts import Unforeseen
from dynamo.base.errors import DynamoError
from dynamo.bytecode.decode import Decoded
from dynamo.bytecode.emit import Emitter
from dynamo.bytecode.raw import Raw
from dynamo.hook import Disabled

WITH_BLOCK = "WITH_EXCEPT_START"


def blocks(decoded: Decoded, instruction: int) -> list[int]:
    """Where the exits of `with` blocks around an instruction lie on the stack, innermost first."""
    found = []
    handler = decoded.handlers[instruction]
    while handler is not None:
        if decoded.instructions[handler.target + 1].op == WITH_BLOCK:
            found.append(handler.depth - 1)
        handler = decoded.handlers[handler.target]
    return found


def emit_handler(
    emitter: Emitter, call: tuple[Raw, Raw], code: CodeType, exits: tuple[str, ...], again: bool,
    tests: bool, restore: Callable[[], None],
) -> None:
    """The handler of the graph's call, where the program could tell it from eager's.

    call: its first and last instruction; code: what the frame starts with; exits: locals with the
    exits of the blocks around its start; again: True where the graph may run again;
    tests: True where it tests what the trace has expected, before anything that can't run again;
    restore: emits what undoes the draws of Python's random numbers.
    """
    if not exits and not again and not tests:
        return
    handler = emitter.emit("PUSH_EXC_INFO")
    error = emitter.store_fresh("exception")
    emitter.emit("POP_EXCEPT")
    if again or tests:
        restore()
    emitter.start_call_const(run_again if again or tests else leave_blocks)
    emitter.load_fast(error)
    emitter.delete_fast(error)
    emitter.emit("BUILD_TUPLE", _load_all(emitter, exits))
    if again or tests:
        emitter.load_const(again)
        _load_frame(emitter, code)
    emitter.call(7 if again or tests else 2)
    emitter.emit("RETURN_VALUE")
    emitter.protect(*call, handler, 0)


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


def run_again(
    error: BaseException, leave: tuple[Callable[..., Any], ...], after_all: bool, code: CodeType,
    closure: tuple[CellType, ...], args: list[Any], keywords: dict[str, Any],
) -> Any:
    """What the frame gives without the compiler; only for errors that the program may see.

    after_all: also after errors of the graph, not only where a value was not as expected. By an
    exception, a checkpoint ends its recomputation where it has all tensors: no others may follow.
    """
    repeats = isinstance(error, Exception) if after_all else isinstance(error, Unforeseen)
    if not repeats or isinstance(error, (DynamoError, _StopRecomputationError)):
        leave_blocks(error, leave)
    text = f"the graph of {code.co_name} raised {type(error).__name__}; it runs again in eager"
    logs.log("dynamo").emit(text)
    del error
    # The caller's globals: a constant with them would keep them alive.
    function = FunctionType(code, sys._getframe(1).f_globals, code.co_name, None, closure)
    return Disabled(function)(*args, **keywords)


def leave_blocks(error: BaseException, leave: tuple[Callable[..., Any], ...]) -> NoReturn:
    """Leaves `with` blocks with the error, and raises it, whatever the exits say of it."""
    try:
        for function in leave:
            try:
                function(type(error), error, error.__traceback__)
            except BaseException as other:
                if other is not error and other.__context__ is None:
                    other.__context__ = error
                error = other
        raise error
    finally:
        del error
