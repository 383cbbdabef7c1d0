"""The record that describes one version's bytecode, and the rows that all versions share.

A row of `rows` says how a real opcode is read: the normalised opcode, and the kind of its
argument (a key of `decode.ARGUMENTS`). Numbers of opcodes and inline caches come from the
running interpreter's own tables.
"""

from __future__ import annotations

import dis
import opcode
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

Row = tuple[str, str]


@dataclass(frozen=True)
class VersionFacts:
    """Bytecode of one Python version.

    rows: real opcode -> (normalised opcode, kind of argument).
    jumps: real opcode -> 1 (forward) or -1 (backward), relative to the next instruction.
    slot_ops, slot_pair_ops: opcodes whose argument is a local or cell (or two of them).
    read_as: opcodes that are read as others of the same argument: loads that borrow from a local
        are right only where it outlives the use, and new code keeps values elsewhere.
    null_first: NULL lies below the callable (before 3.13) or above it.
    precall, call_kw: calling conventions.
    needs_bool: conditional jumps and UNARY_NOT take nothing but True and False.
    jump_if: normalised conditional jump -> (forward opcode, backward opcode).
    exhausted: instructions at the target of FOR_ITER that the evaluator jumps over, or that do what
        the normalised FOR_ITER has done.
    send_keeps_receiver: SEND leaves the receiver below the returned value.
    make_function_flags: MAKE_FUNCTION takes its parts from the stack by flags.
    call_ex_null: CALL_FUNCTION_EX always takes keywords, NULL for none.
    subscript: the argument of BINARY_OP for `a[b]`; None: BINARY_SUBSCR.
    common_constants: what LOAD_COMMON_CONSTANT loads.
    with_start: the instructions that do what BEFORE_WITH did; NULL lies above the method then.
    pops_null: POP_TOP may take NULL from the stack.
    long_texts: errors of `with` tell the module of the class and which method is missing.
    clears_last_first: a frame that returns lets go of its last local first.
    """

    rows: dict[str, Row]
    jumps: dict[str, int]
    slot_ops: frozenset[str]
    slot_pair_ops: frozenset[str]
    null_first: bool
    precall: bool
    needs_bool: bool
    jump_if: dict[str, tuple[str, str]]
    exhausted: tuple[str, ...]
    send_keeps_receiver: bool
    make_function_flags: bool
    compare_shift: int
    attr_flag: bool
    call_kw: bool
    read_as: dict[str, str] = field(default_factory=dict)
    call_ex_null: bool = False
    subscript: int | None = None
    common_constants: tuple[Any, ...] = ()
    with_start: tuple[tuple[str, int], ...] = ()
    pops_null: bool = False
    long_texts: bool = False
    clears_last_first: bool = False

    @cached_property
    def opmap(self) -> dict[str, int]:
        return dict(dis.opmap)

    @cached_property
    def opnames(self) -> list[str]:
        return list(dis.opname)

    @cached_property
    def caches(self) -> list[int]:
        """Number of inline cache units by opcode number."""
        entries = opcode._inline_cache_entries  # type: ignore[attr-defined]
        if isinstance(entries, dict):
            return [entries.get(name, 0) for name in dis.opname]
        return list(entries)

    @cached_property
    def cache_by_name(self) -> dict[str, int]:
        """Number of inline cache units by opcode name."""
        return {name: self.caches[number] for name, number in dis.opmap.items() if number < 256}


def _same(kind: str, names: str) -> dict[str, Row]:
    return {name: (name, kind) for name in names.split()}


# Opcodes that mean the same in every supported version.
SHARED_ROWS: dict[str, Row] = {
    **_same(
        "none",
        """POP_TOP PUSH_NULL UNARY_NEGATIVE UNARY_NOT UNARY_INVERT BINARY_SUBSCR GET_LEN
        MATCH_MAPPING MATCH_SEQUENCE MATCH_KEYS PUSH_EXC_INFO CHECK_EXC_MATCH CHECK_EG_MATCH
        WITH_EXCEPT_START GET_AITER GET_ANEXT BEFORE_ASYNC_WITH BEFORE_WITH END_ASYNC_FOR
        STORE_SUBSCR DELETE_SUBSCR GET_ITER GET_YIELD_FROM_ITER LOAD_BUILD_CLASS
        LOAD_ASSERTION_ERROR RETURN_GENERATOR RETURN_VALUE SETUP_ANNOTATIONS POP_EXCEPT""",
    ),
    **_same(
        "int",
        """UNPACK_SEQUENCE UNPACK_EX SWAP COPY BUILD_TUPLE BUILD_LIST BUILD_SET BUILD_MAP
        BUILD_SLICE BUILD_STRING BUILD_CONST_KEY_MAP LIST_APPEND SET_ADD MAP_ADD LIST_EXTEND
        SET_UPDATE DICT_MERGE DICT_UPDATE RERAISE RAISE_VARARGS GET_AWAITABLE MATCH_CLASS
        CALL_FUNCTION_EX MAKE_FUNCTION""",
    ),
    **_same(
        "name",
        """STORE_NAME DELETE_NAME STORE_ATTR DELETE_ATTR STORE_GLOBAL DELETE_GLOBAL LOAD_NAME
        IMPORT_NAME IMPORT_FROM""",
    ),
    **_same(
        "slot",
        """LOAD_FAST STORE_FAST DELETE_FAST MAKE_CELL LOAD_CLOSURE LOAD_DEREF STORE_DEREF
        DELETE_DEREF""",
    ),
    **_same("bool", "IS_OP CONTAINS_OP"),
    **_same("jump", "FOR_ITER"),
    "LOAD_CONST": ("LOAD_CONST", "const"),
    "COMPARE_OP": ("COMPARE_OP", "compare"),
    "BINARY_OP": ("BINARY_OP", "binary"),
    "LOAD_GLOBAL": ("LOAD_GLOBAL", "global"),
    "JUMP_FORWARD": ("JUMP", "jump"),
    "JUMP_BACKWARD": ("JUMP", "jump"),
    "JUMP_BACKWARD_NO_INTERRUPT": ("JUMP", "jump"),
    "SEND": ("SEND", "jump"),
    "YIELD_VALUE": ("YIELD_VALUE", "none"),
    "CALL": ("CALL", "call"),
    "NOP": ("NOP", "none"),
    "CACHE": ("NOP", "none"),
    "RESUME": ("NOP", "int"),
    "EXTENDED_ARG": ("NOP", "none"),
    "COPY_FREE_VARS": ("NOP", "none"),
}

SLOT_OPS = frozenset(
    """LOAD_FAST STORE_FAST DELETE_FAST MAKE_CELL LOAD_CLOSURE LOAD_DEREF STORE_DEREF DELETE_DEREF
    LOAD_CLASSDEREF LOAD_FAST_CHECK LOAD_FAST_AND_CLEAR LOAD_FROM_DICT_OR_DEREF""".split()
)
SHARED_JUMPS = {
    "JUMP_FORWARD": 1,
    "JUMP_BACKWARD": -1,
    "JUMP_BACKWARD_NO_INTERRUPT": -1,
    "FOR_ITER": 1,
    "SEND": 1,
}
CONDITIONS = ("IF_FALSE", "IF_TRUE", "IF_NONE", "IF_NOT_NONE")
