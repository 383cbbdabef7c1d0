"""Constants, locals, cells, globals, attributes, imports, and shuffling of the stack."""

from __future__ import annotations

import builtins
from typing import Any

from dynamo.base.errors import SkipFrame
from dynamo.bytecode.decode import Instruction
from dynamo.guards.sources import ObjectSource
from dynamo.symbolic.core.constant import ConstVar, NullVar
from dynamo.symbolic.core.stack_values import UnreadVar
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.machine.imports import import_from, import_module
from dynamo.symbolic.machine.opcodes.table import breaks_with, opcode, opcode_named
from dynamo.symbolic.machine.protocols import RunningFrame
from dynamo.symbolic.python.cells import CellVar
from dynamo.symbolic.python.classes import ClassVar
from dynamo.symbolic.python.exceptions import read_attribute
from dynamo.symbolic.python.global_names import GlobalNames

NULL = NullVar()
BUILD_CLASS = builtins.__build_class__


def push_with_null(frame: RunningFrame, value: Var, place: str) -> None:
    """Pushes a callable, with NULL below it ("first") or above it ("last")."""
    if place == "first":
        frame.push(NULL)
    frame.push(value)
    if place == "last":
        frame.push(NULL)


@opcode
def NOP(frame: RunningFrame, arg: Any, instruction: Instruction) -> None:
    pass


@opcode
def POP_TOP(frame: RunningFrame, arg: None, instruction: Instruction) -> None:
    frame.pop()


@opcode
def PUSH_NULL(frame: RunningFrame, arg: None, instruction: Instruction) -> None:
    frame.push(NULL)


@opcode
def SWAP(frame: RunningFrame, arg: int, instruction: Instruction) -> None:
    stack = frame.stack
    stack[-arg], stack[-1] = stack[-1], stack[-arg]


@opcode
def COPY(frame: RunningFrame, arg: int, instruction: Instruction) -> None:
    frame.push(frame.stack[-arg])


@opcode
def LOAD_CONST(frame: RunningFrame, arg: Any, instruction: Instruction) -> None:
    # A constant tuple is one object, however often its instruction runs.
    if type(arg) is tuple and arg:
        frame.push(frame.trace.wrap(arg, ObjectSource(arg, "constant")))
    else:
        frame.push(frame.trace.constant(arg))


# -- locals and cells --------------------------------------------------------------------------


@opcode
def LOAD_FAST(frame: RunningFrame, arg: str, instruction: Instruction) -> None:
    value = frame.locals.get(arg)
    if value is None:
        frame.trace.raise_exception(
            UnboundLocalError,
            f"cannot access local variable '{arg}' where it is not associated with a value",
        )
    if frame.cells or type(value) is UnreadVar:
        value = frame.load_local(arg) or value
    frame.push(value)


def check_single(frame: RunningFrame, name: str) -> None:
    """Since 3.12 a comprehension may have a variable of the name of a free one; both have that name
    in the same frame."""
    if name in frame.code.co_freevars:
        raise SkipFrame(f"{name} is a free variable and one of a comprehension")


@opcode
def LOAD_FAST_AND_CLEAR(frame: RunningFrame, arg: str, instruction: Instruction) -> None:
    check_single(frame, arg)
    if arg in frame.cells:
        frame.push(frame.cells.pop(arg))
    else:
        frame.push(frame.locals.pop(arg, NULL))


@opcode
def STORE_FAST(frame: RunningFrame, arg: str, instruction: Instruction) -> None:
    value = frame.pop()
    if value is NULL:
        frame.locals.pop(arg, None)
    else:
        frame.locals[arg] = value


@opcode
def DELETE_FAST(frame: RunningFrame, arg: str, instruction: Instruction) -> None:
    if arg not in frame.locals:
        frame.trace.raise_exception(
            UnboundLocalError,
            f"cannot access local variable '{arg}' where it is not associated with a value",
        )
    del frame.locals[arg]


@opcode
def MAKE_CELL(frame: RunningFrame, arg: str, instruction: Instruction) -> None:
    check_single(frame, arg)
    value = frame.locals.pop(arg, None)
    if value is not None:
        value = frame.read(value)
    frame.cells[arg] = CellVar(None, value)


@opcode
def LOAD_CLOSURE(frame: RunningFrame, arg: str, instruction: Instruction) -> None:
    if arg in frame.cells:
        frame.push(frame.cells[arg])
    else:  # since 3.12 a name may be a plain variable in one comprehension, a cell in another
        LOAD_FAST(frame, arg, instruction)


@opcode
def STORE_CLOSURE(frame: RunningFrame, arg: str, instruction: Instruction) -> None:
    value = frame.stack[-1]
    if isinstance(value, CellVar):
        frame.cells[arg] = value
        frame.stack.pop()
        frame.locals.pop(arg, None)
    else:
        frame.cells.pop(arg, None)
        STORE_FAST(frame, arg, instruction)


@opcode
def LOAD_DEREF(frame: RunningFrame, arg: str, instruction: Instruction) -> None:
    frame.push(frame.cells[arg].load(frame, arg, free=arg in frame.code.co_freevars))


@opcode
def STORE_DEREF(frame: RunningFrame, arg: str, instruction: Instruction) -> None:
    frame.cells[arg].store(frame, frame.pop())


@opcode
def DELETE_DEREF(frame: RunningFrame, arg: str, instruction: Instruction) -> None:
    cell = frame.cells[arg]
    cell.load(frame, arg, free=arg in frame.code.co_freevars)
    cell.delete(frame)


# -- globals -----------------------------------------------------------------------------------


@opcode
def LOAD_GLOBAL(frame: RunningFrame, arg: tuple[str, str], instruction: Instruction) -> None:
    push_with_null(frame, frame.trace.state(GlobalNames).load(frame, arg[0]), arg[1])


@opcode
def STORE_GLOBAL(frame: RunningFrame, arg: str, instruction: Instruction) -> None:
    frame.trace.state(GlobalNames).store(frame, arg, frame.pop())


@opcode
def DELETE_GLOBAL(frame: RunningFrame, arg: str, instruction: Instruction) -> None:
    frame.trace.state(GlobalNames).delete(frame, arg)


@opcode
def LOAD_BUILD_CLASS(frame: RunningFrame, arg: None, instruction: Instruction) -> None:
    frame.trace.state(GlobalNames).expect_builtin(frame, BUILD_CLASS)
    frame.push(frame.trace.wrap(BUILD_CLASS, None))


@opcode
def LOAD_ASSERTION_ERROR(frame: RunningFrame, arg: None, instruction: Instruction) -> None:
    frame.push(frame.trace.wrap(AssertionError, None))


@opcode
def LOAD_COMMON_CONSTANT(frame: RunningFrame, arg: Any, instruction: Instruction) -> None:
    frame.push(frame.trace.wrap(arg, None))


# -- attributes --------------------------------------------------------------------------------


@opcode
def LOAD_ATTR(frame: RunningFrame, arg: str, instruction: Instruction) -> None:
    frame.push(read_attribute(frame, frame.pop(), arg))


@opcode
def LOAD_METHOD(frame: RunningFrame, arg: tuple[str, str], instruction: Instruction) -> None:
    push_with_null(frame, read_attribute(frame, frame.pop(), arg[0]), arg[1])


@opcode
def STORE_ATTR(frame: RunningFrame, arg: str, instruction: Instruction) -> None:
    value, target = frame.pop_many(2)
    target.set_attr(frame, arg, value)


@opcode
def DELETE_ATTR(frame: RunningFrame, arg: str, instruction: Instruction) -> None:
    frame.pop().del_attr(frame, arg)


@opcode
def LOAD_SUPER_ATTR(
    frame: RunningFrame, arg: tuple[str, bool, str], instruction: Instruction
) -> None:
    name, given, place = arg
    function, cls, receiver = frame.pop_many(3)
    is_super = isinstance(function, ClassVar) and function.cls is super
    proxy = frame.call(function, [cls, receiver] if given or is_super else [], {})
    push_with_null(frame, proxy.get_attr(frame, name), place)


# -- imports -----------------------------------------------------------------------------------


@opcode
def IMPORT_NAME(frame: RunningFrame, arg: str, instruction: Instruction) -> None:
    level, names = frame.pop_many(2)
    found = import_module(frame, arg, names.as_constant(), level.as_constant())
    frame.push(found)


@opcode
def IMPORT_FROM(frame: RunningFrame, arg: str, instruction: Instruction) -> None:
    frame.push(import_from(frame, frame.stack[-1], arg))


@opcode_named("RETURN_VALUE")
def RETURN_VALUE(frame: RunningFrame, arg: None, instruction: Instruction) -> None:
    frame.result = frame.pop()


breaks_with(  # in the body of a class
    "class_definition",
    """LOAD_LOCALS LOAD_NAME LOAD_CLASSDEREF LOAD_FROM_DICT_OR_DEREF LOAD_FROM_DICT_OR_GLOBALS
    STORE_NAME DELETE_NAME SETUP_ANNOTATIONS""",
)
breaks_with(
    "opcode_unknown",
    """IMPORT_STAR PRINT_EXPR INSTRUMENTED CALL_INTRINSIC_1 CALL_INTRINSIC_2 RETURN_CONST
    BUILD_TEMPLATE BUILD_INTERPOLATION""",
)
NONE = ConstVar(None)
