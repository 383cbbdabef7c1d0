"""How many stack items an instruction looks at and pops: one row per opcode that can break."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dynamo.base.errors import Break
from dynamo.bytecode.decode import Instruction
from dynamo.bytecode.versions import VERSION

# Opcode -> (items needed on the stack, items popped of these), by the argument.
OPERANDS: dict[str, Callable[[Any], tuple[int, int]]] = {
    "CALL": lambda arg: (arg[0] + 2,) * 2,
    "CALL_KW": lambda arg: (arg + 3,) * 2,
    "CALL_FUNCTION_EX": lambda arg: (3 + (arg & 1),) * 2,
    "BUILD_SLICE": lambda arg: (arg,) * 2,
    "BUILD_INTERPOLATION": lambda arg: (2 + (arg & 1),) * 2,
    "LOAD_SUPER_ATTR": lambda arg: (3, 3),
    "FORMAT_VALUE": lambda arg: (1 + arg[1],) * 2,
    "BUILD_MAP": lambda arg: (2 * arg,) * 2,
    "BUILD_CONST_KEY_MAP": lambda arg: (arg + 1,) * 2,
    "LIST_APPEND": lambda arg: (arg + 1, 1),
    "SET_ADD": lambda arg: (arg + 1, 1),
    "MAP_ADD": lambda arg: (arg + 2, 2),
    "LIST_EXTEND": lambda arg: (arg + 1, 1),
    "SET_UPDATE": lambda arg: (arg + 1, 1),
    "DICT_UPDATE": lambda arg: (arg + 1, 1),
    "DICT_MERGE": lambda arg: (arg + (3 if VERSION.null_first else 4), 1),  # as far as the callable
    "RAISE_VARARGS": lambda arg: (arg, arg),
    "RERAISE": lambda arg: (arg + 1, 1),
    "MATCH_CLASS": lambda arg: (3, 3),
    **{name: lambda arg: (arg, arg) for name in ("BUILD_TUPLE", "BUILD_LIST", "BUILD_SET",
                                                 "BUILD_STRING")},
    **{name: lambda arg: (0, 0) for name in """LOAD_GLOBAL LOAD_ASSERTION_ERROR LOAD_BUILD_CLASS
       LOAD_COMMON_CONSTANT
       DELETE_GLOBAL LOAD_CONST NOP JUMP PUSH_NULL LOAD_NAME DELETE_NAME SETUP_ANNOTATIONS
       LOAD_LOCALS LOAD_CLASSDEREF MAKE_CELL LOAD_CLOSURE""".split()},
    **{name: lambda arg: (1, 1) for name in """LOAD_ATTR LOAD_METHOD DELETE_ATTR STORE_GLOBAL
       UNARY_NEGATIVE UNARY_POSITIVE UNARY_INVERT UNARY_NOT TO_BOOL GET_ITER UNPACK_SEQUENCE
       UNPACK_EX LIST_TO_TUPLE CONVERT_VALUE BEFORE_WITH IMPORT_STAR POP_TOP STORE_FAST
       STORE_DEREF PRINT_EXPR GET_AWAITABLE GET_AITER BEFORE_ASYNC_WITH STORE_NAME
       CALL_INTRINSIC_1 LOAD_FROM_DICT_OR_DEREF LOAD_FROM_DICT_OR_GLOBALS""".split()},
    **{name: lambda arg: (2, 2) for name in """BINARY_OP COMPARE_OP IS_OP CONTAINS_OP
       BINARY_SUBSCR DELETE_SUBSCR STORE_ATTR IMPORT_NAME CHECK_EG_MATCH PREP_RERAISE_STAR
       CALL_INTRINSIC_2 BUILD_TEMPLATE""".split()},
    **{name: lambda arg: (3, 3) for name in "STORE_SUBSCR BINARY_SLICE".split()},
    "STORE_SLICE": lambda arg: (4, 4),
    "GET_LEN": lambda arg: (1, 0),
    "MATCH_MAPPING": lambda arg: (1, 0),
    "MATCH_SEQUENCE": lambda arg: (1, 0),
    "MATCH_KEYS": lambda arg: (2, 0),
    "IMPORT_FROM": lambda arg: (1, 0),
    "CHECK_EXC_MATCH": lambda arg: (2, 1),
    "WITH_EXCEPT_START": lambda arg: (5 if VERSION.with_start else 4, 0),
    "MAKE_FUNCTION": lambda arg: (1 + bin(arg).count("1"),) * 2,
}  # fmt: skip


def operands(instruction: Instruction) -> tuple[int, int]:
    """(needed, popped) of an instruction that is run in new code."""
    row = OPERANDS.get(instruction.op)
    if row is None:
        raise Break("opcode_unknown", f"{instruction} can't be run outside of its frame")
    return row(instruction.arg)
