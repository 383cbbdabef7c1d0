"""Python 3.14: items are a binary operator, borrowed loads, `with` in five opcodes."""

from __future__ import annotations

from dynamo.bytecode.versions import py313
from dynamo.bytecode.versions.facts import CONDITIONS, SLOT_OPS, Row, VersionFacts, _same

GONE = frozenset(
    """BINARY_SUBSCR BEFORE_WITH BEFORE_ASYNC_WITH LOAD_ASSERTION_ERROR BUILD_CONST_KEY_MAP
    RETURN_CONST INSTRUMENTED_RETURN_CONST""".split()
)

ROWS: dict[str, Row] = {
    **{name: row for name, row in py313.ROWS.items() if name not in GONE},
    **_same("none", "BUILD_TEMPLATE"),
    "BUILD_INTERPOLATION": ("BUILD_INTERPOLATION", "int"),
    "CALL_FUNCTION_EX": ("CALL_FUNCTION_EX", "call_ex"),
    "LOAD_COMMON_CONSTANT": ("LOAD_COMMON_CONSTANT", "common_constant"),
    "LOAD_SMALL_INT": ("LOAD_CONST", "small_int"),
    "LOAD_SPECIAL": ("LOAD_SPECIAL", "int"),
    "NOT_TAKEN": ("NOP", "none"),
    "POP_ITER": ("POP_TOP", "none"),
    **{
        name: ("INSTRUMENTED", "none")
        for name in """INSTRUMENTED_POP_ITER INSTRUMENTED_NOT_TAKEN
        INSTRUMENTED_END_ASYNC_FOR""".split()
    },
}

FACTS = VersionFacts(
    rows=ROWS,
    jumps={**py313.FACTS.jumps, "END_ASYNC_FOR": -1},
    slot_ops=SLOT_OPS,
    slot_pair_ops=py313.FACTS.slot_pair_ops,
    read_as={
        "LOAD_FAST_BORROW": "LOAD_FAST",
        "LOAD_FAST_BORROW_LOAD_FAST_BORROW": "LOAD_FAST_LOAD_FAST",
    },
    null_first=False,
    precall=False,
    needs_bool=True,
    jump_if={f"POP_JUMP_{test}": (f"POP_JUMP_{test}", "") for test in CONDITIONS},
    exhausted=("END_FOR", "POP_ITER"),
    send_keeps_receiver=True,
    make_function_flags=False,
    compare_shift=5,
    attr_flag=True,
    call_kw=True,
    call_ex_null=True,
    subscript=26,
    pops_null=True,
    long_texts=True,
    clears_last_first=True,
    common_constants=(AssertionError, NotImplementedError, tuple, all, any),
    with_start=(
        ("COPY", 1), ("LOAD_SPECIAL", 1), ("SWAP", 2), ("SWAP", 3),
        ("LOAD_SPECIAL", 0), ("CALL", 0),
    ),
)  # fmt: skip
