"""One instruction of the program in the new code: its copy there, and what it leaves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dynamo.bytecode.decode import Decoded, Instruction
from dynamo.bytecode.emit import Emitter, stack_effect
from dynamo.bytecode.raw import Raw, RawCode
from dynamo.bytecode.versions import VERSION
from dynamo.symbolic.core.lookup import find_in_mro
from dynamo.symbolic.machine.blocks import no_manager

# Kind of argument -> its translation into another code object's tables.
TRANSLATE: dict[str, Callable[[RawCode, RawCode, int], int]] = {
    "const": lambda old, new, arg: new.const(old.consts[arg]),
    "name": lambda old, new, arg: new.use_name(old.names[arg]),
    "method": lambda old, new, arg: new.use_name(old.names[arg]),
    "global": lambda old, new, arg: new.use_name(old.names[arg >> 1]) << 1 | arg & 1,
    "attr": lambda old, new, arg: new.use_name(old.names[arg >> 1]) << 1 | arg & 1,
    "super_attr": lambda old, new, arg: new.use_name(old.names[arg >> 2]) << 2 | arg & 3,
}


def copy_instruction(
    emitter: Emitter, decoded: Decoded, instruction: Instruction, without_null: bool
) -> None:
    """Appends the real instructions, with indices of this code.

    without_null: a load that makes room for NULL is turned into a plain one.
    """
    if instruction.op == "LOAD_METHOD":
        emitter.load_attr(instruction.arg[0])
        return
    if instruction.op == "BEFORE_WITH" and VERSION.with_start:
        _enter(emitter)
        return
    if instruction.op == "UNARY_NOT" and VERSION.needs_bool:
        emitter.emit("TO_BOOL")  # which stood before it, as an instruction that does nothing
    source = decoded.raw
    for item in source.instructions[instruction.start : instruction.end]:
        copy = Raw(item.name, item.arg, item.slots, None, item.position)
        kind = VERSION.rows[item.name][1]
        translate = TRANSLATE.get(kind)
        if item.name == "KW_NAMES":
            translate = TRANSLATE["const"]
        if translate is not None:
            copy.arg = translate(source, emitter.raw, item.arg)
        if without_null:
            copy.arg &= ~1
        emitter.append(copy)


def _enter(emitter: Emitter) -> None:
    """`__exit__` and what `__enter__` gives. The opcodes leave the method with its receiver or with
    NULL, which no continuation could get."""
    manager = emitter.store_fresh("manager")
    emitter.start_call_const(bound_exit)
    emitter.load_fast(manager)
    emitter.call(1)
    emitter.load_fast(manager)
    emitter.delete_fast(manager)
    emitter.emit(*VERSION.with_start[-2])
    emitter.emit(*VERSION.with_start[-1])


def bound_exit(manager: Any) -> Any:
    """`__exit__` as `with` finds it: by the type."""
    kind = type(manager)
    found = find_in_mro(kind, "__exit__")
    if found is None:
        raise TypeError(no_manager(kind, "__exit__"))
    bind = find_in_mro(type(found), "__get__")
    return found if bind is None else bind(found, manager, kind)


def null_place(instruction: Instruction) -> str:
    """Where the instruction leaves a NULL beside its results: "first", "middle", "last" or ""."""
    if instruction.op in ("LOAD_GLOBAL", "LOAD_METHOD", "LOAD_SUPER_ATTR"):
        return str(instruction.arg[-1])
    if instruction.op == "BEFORE_WITH":
        return instruction.arg or ""
    return ""


def net_effect(decoded: Decoded, instruction: Instruction) -> int:
    """By how many items the stack grows."""
    return sum(
        stack_effect(item)
        for item in decoded.raw.instructions[instruction.start : instruction.end]
    )
