"""Python 3.13: NULL above the callable, CALL_KW, TO_BOOL, pairs of locals in one instruction."""

from __future__ import annotations

from dynamo.bytecode.versions.facts import CONDITIONS, SLOT_OPS, Row, VersionFacts, _same
from dynamo.bytecode.versions.py312 import JUMPS, ROWS_SINCE_312

ROWS: dict[str, Row] = {
    **{name: row for name, row in ROWS_SINCE_312.items() if name != "LOAD_CLOSURE"},
    **_same("none", "TO_BOOL"),
    "CALL_KW": ("CALL_KW", "int"),
    "CONVERT_VALUE": ("CONVERT_VALUE", "int"),
    "FORMAT_SIMPLE": ("FORMAT_VALUE", "format_simple"),
    "FORMAT_WITH_SPEC": ("FORMAT_VALUE", "format_with_spec"),
    "SET_FUNCTION_ATTRIBUTE": ("SET_FUNCTION_ATTRIBUTE", "int"),
    "EXIT_INIT_CHECK": ("INSTRUMENTED", "none"),
    "ENTER_EXECUTOR": ("INSTRUMENTED", "none"),
    "INSTRUMENTED_CALL_KW": ("INSTRUMENTED", "none"),
}

FACTS = VersionFacts(
    rows=ROWS,
    jumps=JUMPS,
    slot_ops=SLOT_OPS,
    slot_pair_ops=frozenset(
        ("LOAD_FAST_LOAD_FAST", "STORE_FAST_LOAD_FAST", "STORE_FAST_STORE_FAST")
    ),
    null_first=False,
    precall=False,
    needs_bool=True,
    jump_if={f"POP_JUMP_{test}": (f"POP_JUMP_{test}", "") for test in CONDITIONS},
    exhausted=("END_FOR", "POP_TOP"),
    send_keeps_receiver=True,
    make_function_flags=False,
    compare_shift=5,
    attr_flag=True,
    call_kw=True,
)
