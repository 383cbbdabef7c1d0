"""The `try` and `with` blocks around an instruction: who sees an error that it raises."""

from __future__ import annotations

import builtins
import contextlib
import threading
from collections.abc import Iterator

from dynamo.base.user_lines import TORCH
from dynamo.bytecode.decode import Instruction
from dynamo.symbolic.core.constant import NullVar
from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.lookup import module_of
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.python.generators import GeneratorVar
from dynamo.symbolic.python.objects import ObjectVar

# What the handler of a `with` block begins with, behind the exception's push.
WITH_BLOCK = "WITH_EXCEPT_START"
# Handlers that only tidy up, and raise again. From Python 3.12 on, a comprehension is part of its
# function; its own (SWAP) drops the unfinished list and gives the function's names their values.
TIDYING = frozenset({"COPY", "STOPITERATION_ERROR", "SWAP"})
# What the class of an `except` clause is read with.
NAMES_OF_CLASSES = frozenset(
    {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_ATTR", "LOAD_FAST", "LOAD_DEREF", "BUILD_TUPLE"})
# Not of the errors of operations that depend on values, which are RuntimeError, IndexError and
# ValueError; that something is not implemented depends on types.
OTHER_ERRORS = frozenset({
    TypeError, AttributeError, KeyError, ImportError, ModuleNotFoundError, NotImplementedError,
    NameError, AssertionError, StopIteration, OSError, FileNotFoundError, ZeroDivisionError,
    OverflowError, KeyboardInterrupt, GeneratorExit, RecursionError, UnicodeError, EOFError,
})  # fmt: skip
# Managers outside of torch that do not look at errors.
BLIND = frozenset({contextlib.nullcontext, type(threading.Lock()), type(threading.RLock())})


def catches(frame: Frame) -> bool:
    """True where the frame is inside of a `try` that may end an error of an operation that fails by
    values, or of a `with` whose manager looks at errors. `finally` ends none. What torch's own code
    does there is to tidy up."""
    return not frame.code.co_filename.startswith(TORCH) and any(
        may_end_errors(frame, target) if second != WITH_BLOCK else not is_blind(
            exit_method(frame, depth))
        for second, target, depth in handlers(frame)
    )


def sees_errors(frame: Frame) -> bool:
    """True where the frame is inside of a `try`, or of a `with` whose manager looks at errors, or
    does something when one passes."""
    return any(
        second != WITH_BLOCK or looks_at_errors(exit_method(frame, depth))
        for second, _, depth in handlers(frame)
    )


def exit_method(frame: Frame, depth: int) -> Var:
    """The `__exit__` of a `with` block, by the depth of its handler; NULL may lie above it."""
    above = frame.stack[depth - 1]
    return frame.stack[depth - 2] if isinstance(above, NullVar) else above


def looks_at_errors(leave: Var) -> bool:
    """True for an `__exit__` that is not the same with an error and without."""
    generator = generator_of(leave)
    return not is_blind(leave) if generator is None else generator.frame.has_cleanup()


def may_end_errors(frame: Frame, target: int) -> bool:
    """True for the handler of a `try` statement that is no mere `finally`, nor `except` of classes
    that no such error has. target: where it begins."""
    instructions = frame.decoded.instructions
    first = start = target + 1  # behind the exception's push
    while True:
        at = start
        while instructions[at].op in NAMES_OF_CLASSES:
            at += 1
        if instructions[at].op != "CHECK_EXC_MATCH":
            break
        if at != start + 1 or not is_other_error(frame, instructions[start]):
            return True
        start = instructions[at + 1].target  # the next clause
    if start != first:  # behind the last clause, the error goes on
        return instructions[start].op != "RERAISE"
    ends = [item.op for item in instructions[first:] if item.op in ("POP_EXCEPT", "RERAISE")]
    return instructions[first].op == "POP_TOP" or ends[0] != "RERAISE"


def is_other_error(frame: Frame, load: Instruction) -> bool:
    """True for the name of a built-in class that no error of an operation by values has."""
    name = load.arg[0] if isinstance(load.arg, tuple) else load.arg
    if load.op != "LOAD_GLOBAL" or name in frame.globals:
        return False
    cls = getattr(builtins, str(name), None)
    return isinstance(cls, type) and cls in OTHER_ERRORS


def is_blind(leave: Var) -> bool:
    """True for the `__exit__` of a manager that does the same with an error and without, or of one
    made of a generator function that lets the error pass."""
    manager = getattr(leave, "receiver", None)
    if not isinstance(manager, Var):
        return False
    if getattr(manager, "lets_errors_pass", False):
        return True
    generator = generator_of(leave)
    if generator is not None:
        return not catches(generator.frame)
    kind = manager.python_type()
    return kind in BLIND or module_of(kind).partition(".")[0] == "torch"


def generator_of(leave: Var) -> GeneratorVar | None:
    """The generator of a manager that `contextlib.contextmanager` has made, by its `__exit__`."""
    manager = getattr(leave, "receiver", None)
    if isinstance(manager, ObjectVar) and manager.cls is contextlib._GeneratorContextManager:
        generator = manager.written.get("gen")
        return generator if isinstance(generator, GeneratorVar) else None
    return None


def handles(frame: Frame) -> bool:
    """True where the frame is inside of a `try` or a `with`."""
    return next(handlers(frame), None) is not None


def handlers(frame: Frame) -> Iterator[tuple[str, int, int]]:
    """The handlers around the current instruction, innermost first: what each begins with, behind
    the exception's push, where, and how high the stack is there."""
    decoded = frame.decoded
    handler = decoded.handlers[frame.current.index]
    while handler is not None:
        first, second = decoded.instructions[handler.target : handler.target + 2]
        if first.op not in TIDYING:
            yield second.op, handler.target, handler.depth
        handler = decoded.handlers[handler.target]
