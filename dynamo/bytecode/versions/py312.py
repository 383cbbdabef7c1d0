"""Python 3.12: superinstructions of locals, END_FOR, intrinsics, LOAD_ATTR for methods too."""

from __future__ import annotations

from dynamo.bytecode.versions.facts import (
    CONDITIONS,
    SHARED_JUMPS,
    SHARED_ROWS,
    SLOT_OPS,
    Row,
    VersionFacts,
    _same,
)

# Instrumented forms never appear in `co_code`; they are listed so that each opcode has a row.
INSTRUMENTED: dict[str, Row] = {
    name: ("INSTRUMENTED", "none")
    for name in """INSTRUMENTED_LOAD_SUPER_ATTR INSTRUMENTED_POP_JUMP_IF_NONE
    INSTRUMENTED_POP_JUMP_IF_NOT_NONE INSTRUMENTED_RESUME INSTRUMENTED_CALL
    INSTRUMENTED_RETURN_VALUE INSTRUMENTED_YIELD_VALUE INSTRUMENTED_CALL_FUNCTION_EX
    INSTRUMENTED_JUMP_FORWARD INSTRUMENTED_JUMP_BACKWARD INSTRUMENTED_RETURN_CONST
    INSTRUMENTED_FOR_ITER INSTRUMENTED_POP_JUMP_IF_FALSE INSTRUMENTED_POP_JUMP_IF_TRUE
    INSTRUMENTED_END_FOR INSTRUMENTED_END_SEND INSTRUMENTED_INSTRUCTION INSTRUMENTED_LINE
    INTERPRETER_EXIT RESERVED""".split()
}

ROWS_SINCE_312: dict[str, Row] = {
    **SHARED_ROWS,
    **INSTRUMENTED,
    **_same("none", "END_FOR END_SEND CLEANUP_THROW BINARY_SLICE STORE_SLICE LOAD_LOCALS"),
    **_same("slot", "LOAD_FAST_AND_CLEAR LOAD_FROM_DICT_OR_DEREF"),
    "LOAD_FROM_DICT_OR_GLOBALS": ("LOAD_FROM_DICT_OR_GLOBALS", "name"),
    "LOAD_FAST_CHECK": ("LOAD_FAST", "slot"),
    "LOAD_ATTR": ("LOAD_ATTR", "attr"),
    "LOAD_SUPER_ATTR": ("LOAD_SUPER_ATTR", "super_attr"),
    "RETURN_CONST": ("RETURN_CONST", "return_const"),
    "CALL_INTRINSIC_1": ("CALL_INTRINSIC_1", "intrinsic_1"),
    "CALL_INTRINSIC_2": ("CALL_INTRINSIC_2", "intrinsic_2"),
    **{f"POP_JUMP_{test}": (f"POP_JUMP_{test}", "jump") for test in CONDITIONS},
}

ROWS: dict[str, Row] = {
    **ROWS_SINCE_312,
    "KW_NAMES": ("NOP", "call_part"),
    "FORMAT_VALUE": ("FORMAT_VALUE", "format"),
}

JUMPS = {**SHARED_JUMPS, **{f"POP_JUMP_{test}": 1 for test in CONDITIONS}}

FACTS = VersionFacts(
    rows=ROWS,
    jumps=JUMPS,
    slot_ops=SLOT_OPS,
    slot_pair_ops=frozenset(),
    null_first=True,
    precall=False,
    needs_bool=False,
    jump_if={f"POP_JUMP_{test}": (f"POP_JUMP_{test}", "") for test in CONDITIONS},
    exhausted=("END_FOR",),
    send_keeps_receiver=True,
    make_function_flags=True,
    compare_shift=4,
    attr_flag=True,
    call_kw=False,
)
