"""Python 3.11."""

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

ROWS: dict[str, Row] = {
    **SHARED_ROWS,
    **_same(
        "none",
        "UNARY_POSITIVE PRINT_EXPR LIST_TO_TUPLE IMPORT_STAR ASYNC_GEN_WRAP PREP_RERAISE_STAR",
    ),
    "LOAD_CLASSDEREF": ("LOAD_CLASSDEREF", "slot"),
    "LOAD_ATTR": ("LOAD_ATTR", "name"),
    "LOAD_METHOD": ("LOAD_METHOD", "method"),
    "JUMP_IF_FALSE_OR_POP": ("JUMP_IF_FALSE_OR_POP", "jump"),
    "JUMP_IF_TRUE_OR_POP": ("JUMP_IF_TRUE_OR_POP", "jump"),
    "PRECALL": ("NOP", "call_part"),
    "KW_NAMES": ("NOP", "call_part"),
    "FORMAT_VALUE": ("FORMAT_VALUE", "format"),
    **{f"POP_JUMP_FORWARD_{test}": (f"POP_JUMP_{test}", "jump") for test in CONDITIONS},
    **{f"POP_JUMP_BACKWARD_{test}": (f"POP_JUMP_{test}", "jump") for test in CONDITIONS},
}

FACTS = VersionFacts(
    rows=ROWS,
    jumps={
        **SHARED_JUMPS,
        "JUMP_IF_FALSE_OR_POP": 1,
        "JUMP_IF_TRUE_OR_POP": 1,
        **{f"POP_JUMP_FORWARD_{test}": 1 for test in CONDITIONS},
        **{f"POP_JUMP_BACKWARD_{test}": -1 for test in CONDITIONS},
    },
    slot_ops=SLOT_OPS,
    slot_pair_ops=frozenset(),
    null_first=True,
    precall=True,
    needs_bool=False,
    jump_if={f"POP_JUMP_{test}": (f"POP_JUMP_FORWARD_{test}", f"POP_JUMP_BACKWARD_{test}")
             for test in CONDITIONS},
    exhausted=(),
    send_keeps_receiver=False,
    make_function_flags=True,
    compare_shift=0,
    attr_flag=False,
    call_kw=False,
)
