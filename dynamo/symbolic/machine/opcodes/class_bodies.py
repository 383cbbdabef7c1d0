"""Names in the body of a class, which live in a mapping of their own (`frame.namespace`)."""

from __future__ import annotations

import builtins

from dynamo.base.errors import Break
from dynamo.bytecode.decode import Instruction
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.var import ObservedException, Var
from dynamo.symbolic.machine.opcodes.table import opcode
from dynamo.symbolic.machine.protocols import RunningFrame
from dynamo.symbolic.python.dicts import DictVar
from dynamo.symbolic.python.global_names import GlobalNames

BUILD_CLASS = builtins.__build_class__


def namespace_of(frame: RunningFrame, op: str) -> Var:
    """The mapping; frames that are traced from outside have none."""
    if frame.namespace is None:
        raise Break("class_definition", op)
    return frame.namespace


def look_up(frame: RunningFrame, namespace: Var, name: str) -> Var | None:
    """`namespace[name]`, None where it is not there."""
    key = ConstVar(name)
    if type(namespace) is DictVar:
        found = namespace.lookup(frame, key)
        return None if found is None else namespace.get_item(frame, key)
    try:
        return namespace.get_item(frame, key)
    except ObservedException as error:
        if issubclass(error.value.python_type(), KeyError):
            return None
        raise


@opcode
def LOAD_BUILD_CLASS(frame: RunningFrame, arg: None, instruction: Instruction) -> None:
    frame.trace.state(GlobalNames).expect_builtin(frame, BUILD_CLASS)
    frame.push(frame.trace.wrap(BUILD_CLASS, None))


@opcode
def LOAD_LOCALS(frame: RunningFrame, arg: None, instruction: Instruction) -> None:
    frame.push(namespace_of(frame, "LOAD_LOCALS"))


@opcode
def LOAD_NAME(frame: RunningFrame, arg: str, instruction: Instruction) -> None:
    found = look_up(frame, namespace_of(frame, "LOAD_NAME"), arg)
    frame.push(found if found is not None else frame.trace.state(GlobalNames).load(frame, arg))


@opcode
def LOAD_CLASSDEREF(frame: RunningFrame, arg: str, instruction: Instruction) -> None:
    frame.push(namespace_of(frame, "LOAD_CLASSDEREF"))
    LOAD_FROM_DICT_OR_DEREF(frame, arg, instruction)


@opcode
def LOAD_FROM_DICT_OR_DEREF(frame: RunningFrame, arg: str, instruction: Instruction) -> None:
    found = look_up(frame, frame.pop(), arg)
    if found is None:
        found = frame.cells[arg].load(frame, arg, free=arg in frame.code.co_freevars)
    frame.push(found)


@opcode
def LOAD_FROM_DICT_OR_GLOBALS(frame: RunningFrame, arg: str, instruction: Instruction) -> None:
    found = look_up(frame, frame.pop(), arg)
    frame.push(found if found is not None else frame.trace.state(GlobalNames).load(frame, arg))


@opcode
def STORE_NAME(frame: RunningFrame, arg: str, instruction: Instruction) -> None:
    namespace_of(frame, "STORE_NAME").set_item(frame, ConstVar(arg), frame.pop())


@opcode
def DELETE_NAME(frame: RunningFrame, arg: str, instruction: Instruction) -> None:
    namespace = namespace_of(frame, "DELETE_NAME")
    if look_up(frame, namespace, arg) is None:
        frame.trace.raise_name_error(arg, f"name '{arg}' is not defined")
    namespace.del_item(frame, ConstVar(arg))


@opcode
def SETUP_ANNOTATIONS(frame: RunningFrame, arg: None, instruction: Instruction) -> None:
    namespace = namespace_of(frame, "SETUP_ANNOTATIONS")
    if look_up(frame, namespace, "__annotations__") is None:
        namespace.set_item(frame, ConstVar("__annotations__"), DictVar())
