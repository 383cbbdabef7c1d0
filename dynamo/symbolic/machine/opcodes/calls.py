"""Calls and the making of functions."""

from __future__ import annotations

from typing import Any

from dynamo.base.errors import Break
from dynamo.bytecode.decode import Instruction
from dynamo.bytecode.versions import VERSION
from dynamo.symbolic.core.constant import NullVar
from dynamo.symbolic.core.table import first_rule
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.machine.opcodes.table import opcode
from dynamo.symbolic.machine.protocols import RunningFrame
from dynamo.symbolic.python.cells import CellVar
from dynamo.symbolic.python.dicts import DictVar
from dynamo.symbolic.python.functions import FunctionVar, keywords_of
from dynamo.symbolic.python.sized import is_iterable, unpack_for_tuple

DEFAULTS, KWDEFAULTS, ANNOTATIONS, CLOSURE, ANNOTATE = 1, 2, 4, 8, 16


def _call(frame: RunningFrame, count: int, keywords: tuple[str, ...]) -> None:
    args = frame.pop_many(count)
    below, above = frame.pop_many(2)
    if isinstance(below, NullVar):
        function = above
    else:
        function = below
        if not isinstance(above, NullVar):
            args.insert(0, above)
    positional = len(args) - len(keywords)
    kwargs = dict(zip(keywords, args[positional:], strict=True))
    frame.push(function.call(frame, args[:positional], kwargs))


@opcode
def CALL(frame: RunningFrame, arg: tuple[int, tuple[str, ...]], instruction: Instruction) -> None:
    _call(frame, *arg)


@opcode
def CALL_KW(frame: RunningFrame, arg: int, instruction: Instruction) -> None:
    _call(frame, arg, frame.pop().as_constant())


@opcode
def CALL_FUNCTION_EX(frame: RunningFrame, arg: int, instruction: Instruction) -> None:
    keywords: Var = frame.pop() if arg & 1 else NullVar()
    kwargs = {} if isinstance(keywords, NullVar) else keywords_of(frame, keywords)
    values = frame.pop()
    below, above = frame.pop_many(2)
    function = above if isinstance(below, NullVar) else below
    if not is_iterable(frame.trace, values):
        raise Break("argument_mismatch", f"{function!r} with *{values!r}")
    args = unpack_for_tuple(frame, values)
    frame.push(function.call(frame, args, kwargs))


@first_rule([locals, vars, dir])
def look_at_frame(tx: RunningFrame, *args: Var) -> Var | None:
    """Without an argument these need the real frame."""
    if not args:
        raise Break("frame_introspection")
    return None


@first_rule([eval, exec])
def run_text(tx: RunningFrame, *args: Var) -> Var | None:
    """Text that runs in the real frame."""
    raise Break("frame_introspection")


# -- functions ---------------------------------------------------------------------------------


@opcode
def MAKE_FUNCTION(frame: RunningFrame, arg: int, instruction: Instruction) -> None:
    code = frame.pop().as_constant()
    flags = arg if VERSION.make_function_flags else 0
    closure = frame.pop() if flags & CLOSURE else None
    annotations = frame.pop() if flags & ANNOTATIONS else None
    kwdefaults = frame.pop() if flags & KWDEFAULTS else None
    defaults = frame.pop() if flags & DEFAULTS else None
    frame.push(
        FunctionVar(
            code=code,
            globals=frame.globals,
            defaults=defaults.unpack(frame) if defaults is not None else (),
            kwdefaults=keywords_of(frame, kwdefaults) if kwdefaults is not None else None,
            closure=_cells(frame, closure) if closure is not None else (),
            annotations=annotations,
        )
    )


def _cells(frame: RunningFrame, closure: Var) -> list[CellVar]:
    cells = closure.unpack(frame)
    return [cell for cell in cells if isinstance(cell, CellVar)]


@opcode
def SET_FUNCTION_ATTRIBUTE(frame: RunningFrame, arg: int, instruction: Instruction) -> None:
    value, function = frame.pop_many(2)
    if not isinstance(function, FunctionVar) or function.real is not None:
        raise Break("opcode_unknown", "SET_FUNCTION_ATTRIBUTE of an existing function")
    parts: dict[str, Any] = {
        "code": function.code,
        "globals": function.globals,
        "defaults": function._defaults or (),
        "kwdefaults": function._kwdefaults,
        "closure": function._closure or (),
        "annotations": function.annotations,
    }
    if arg & DEFAULTS:
        parts["defaults"] = value.unpack(frame)
    elif arg & KWDEFAULTS:
        assert isinstance(value, DictVar)
        parts["kwdefaults"] = keywords_of(frame, value)
    elif arg & (ANNOTATIONS | ANNOTATE):
        parts["annotations"] = value
    else:
        parts["closure"] = _cells(frame, value)
    frame.push(FunctionVar(**parts))
