"""One instruction of the program in the new code: its copy there, and what it leaves."""

from __future__ import annotations

from collections.abc import Callable

from dynamo.bytecode.decode import Decoded, Instruction
from dynamo.bytecode.emit import Emitter, stack_effect
from dynamo.bytecode.raw import Raw, RawCode
from dynamo.bytecode.versions import VERSION

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


def null_place(instruction: Instruction) -> str:
    """Where the instruction leaves a NULL beside its result: "first", "last" or ""."""
    if instruction.op in ("LOAD_GLOBAL", "LOAD_METHOD", "LOAD_SUPER_ATTR"):
        return str(instruction.arg[-1])
    return ""


def net_effect(decoded: Decoded, instruction: Instruction) -> int:
    """By how many items the stack grows."""
    return sum(
        stack_effect(item)
        for item in decoded.raw.instructions[instruction.start : instruction.end]
    )
