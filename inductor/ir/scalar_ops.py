"""The scalar language: every operation that a loop body may hold, one row each.

A row gives a name, the number of operands, the dtype rule, the C++ and Triton spelling, and a
Python reference over tensors (used by the interpreter of the tests). Spellings are format strings:
`{0}`, `{1}`, ... are operand texts, `{T}` the type of the result, `{S}` the type of operand 0.
C++ spellings that begin with `k_` are functions of the kernel prelude, overloaded by type.

Arithmetic is never done in half precision: lowerings convert float16 and bfloat16 to float32,
compute, and convert back, so such values only meet `load`, `store` and `to_dtype`. Both operands of
an arithmetic or comparing row have one dtype; nothing is promoted here. Integers wrap around.

Rows without a reference are structural; printers treat them by name:

    constant      imm: Python number                        value of `dtype`
    index_expr    index: Index                              value of the index as int64 (or `dtype`)
    load          buffer, index; args: () or (mask,)        element; where the mask is false nothing
                                                            is read and the value is 0
    indirect      args: (value,) or (value, mask); imm: IndirectVar(var, wrap, check)
                                                            makes `var` usable in later indices:
                                                            value + size where negative (if `wrap`);
                                                            out of range raises IndexError (if
                                                            `check`, and where the mask is true;
                                                            where it is false, var is 0)
    reduction     imm: kind, args: (value,) or, for argmax and argmin, (value, position)
                                                            reduced over all r variables
    scan          imm: kind, args: (value,)                 what stands at or before an element of a
                                                            row, all r variables, reduced; for GPUs
                                                            alone, and rows that are one tile
    sort          args: (key,)                              the place of the element that comes here
                                                            in order; for the same rows
    keep          args: (seed, offset, position); imm: Draw whether dropout keeps an element (bool):
                                                            see `philox`; for GPUs alone
    store         buffer, index, args: (value,); imm: "set" | "add" (accumulate into the element)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

SAME, BOOL, GIVEN = "same", "bool", "given"


@dataclass(frozen=True, slots=True)
class ScalarOp:
    """One operation. `result` is SAME (dtype of the last operand), BOOL, or GIVEN (by the caller).

    accepts: kinds of operand dtypes that have a meaning: letters of b(ool) i(nteger) f(loat).
    """

    name: str
    arity: int
    result: str
    accepts: str
    cpp: str
    triton: str
    reference: Callable[..., Any] | None
    doc: str = ""


def _trunc_div(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.div(a, b, rounding_mode="trunc")


def _floor_div(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.div(a, b, rounding_mode="floor")


_NIBBLES_IN_CPP = " + ".join(
    f"k_convert<f32>(({{0}} >> i32({4 * at})) & i32(15)) * {{{at + 1}}}" for at in range(8)
)

_BINARY = [
    ScalarOp("add", 2, SAME, "if", "({T})({0} + {1})", "({0} + {1})", torch.add),
    ScalarOp("sub", 2, SAME, "if", "({T})({0} - {1})", "({0} - {1})", torch.sub),
    ScalarOp("mul", 2, SAME, "if", "({T})({0} * {1})", "({0} * {1})", torch.mul),
    ScalarOp("truediv", 2, SAME, "f", "({0} / {1})", "k_truediv({0}, {1})", torch.div),
    ScalarOp(
        "floordiv", 2, SAME, "if", "k_floordiv({0}, {1})", "k_floordiv({0}, {1})", _floor_div,
        "quotient rounded to minus infinity; integer division by zero is undefined",
    ),
    ScalarOp("truncdiv", 2, SAME, "i", "k_truncdiv({0}, {1})", "({0} // {1})", _trunc_div),
    ScalarOp(
        "remainder", 2, SAME, "if", "k_remainder({0}, {1})", "k_remainder({0}, {1})",
        torch.remainder, "has the sign of the divisor",
    ),
    ScalarOp(
        "fmod", 2, SAME, "if", "k_fmod({0}, {1})", "k_fmod({0}, {1})", torch.fmod,
        "has the sign of the dividend",
    ),
    ScalarOp("pow", 2, SAME, "if", "k_pow({0}, {1})", "k_pow({0}, {1})", torch.pow),
    ScalarOp("atan2", 2, SAME, "f", "k_atan2({0}, {1})", "libdevice.atan2({0}, {1})", torch.atan2),
    ScalarOp("hypot", 2, SAME, "f", "k_hypot({0}, {1})", "libdevice.hypot({0}, {1})", torch.hypot),
    ScalarOp(
        "copysign", 2, SAME, "f", "k_copysign({0}, {1})", "libdevice.copysign({0}, {1})",
        torch.copysign,
    ),
    ScalarOp(
        "nextafter", 2, SAME, "f", "k_nextafter({0}, {1})", "libdevice.nextafter({0}, {1})",
        torch.nextafter,
    ),
    ScalarOp(
        "maximum", 2, SAME, "bif", "k_maximum({0}, {1})",
        "k_maximum({0}, {1})", torch.maximum, "NaN wins",
    ),
    ScalarOp(
        "minimum", 2, SAME, "bif", "k_minimum({0}, {1})",
        "k_minimum({0}, {1})", torch.minimum, "NaN wins",
    ),
    ScalarOp("bitwise_and", 2, SAME, "bi", "({T})({0} & {1})", "({0} & {1})", torch.bitwise_and),
    ScalarOp("bitwise_or", 2, SAME, "bi", "({T})({0} | {1})", "({0} | {1})", torch.bitwise_or),
    ScalarOp("bitwise_xor", 2, SAME, "bi", "({T})({0} ^ {1})", "({0} ^ {1})", torch.bitwise_xor),
    ScalarOp(
        "shift_left", 2, SAME, "i", "k_shift_left({0}, {1})", "k_shift_left({0}, {1})",
        torch.bitwise_left_shift,
    ),
    ScalarOp(
        "shift_right", 2, SAME, "i", "k_shift_right({0}, {1})", "k_shift_right({0}, {1})",
        torch.bitwise_right_shift, "arithmetic",
    ),
]

_COMPARISONS = [
    ScalarOp("eq", 2, BOOL, "bif", "({0} == {1})", "({0} == {1})", torch.eq),
    ScalarOp("ne", 2, BOOL, "bif", "({0} != {1})", "({0} != {1})", torch.ne),
    ScalarOp("lt", 2, BOOL, "bif", "({0} < {1})", "({0} < {1})", torch.lt),
    ScalarOp("le", 2, BOOL, "bif", "({0} <= {1})", "({0} <= {1})", torch.le),
    ScalarOp("gt", 2, BOOL, "bif", "({0} > {1})", "({0} > {1})", torch.gt),
    ScalarOp("ge", 2, BOOL, "bif", "({0} >= {1})", "({0} >= {1})", torch.ge),
]


def _math(name: str, function: Callable[..., Any], triton: str = "", doc: str = "") -> ScalarOp:
    """A float function of one operand with the usual spellings."""
    spelled = triton or f"libdevice.{name}({{0}})"
    return ScalarOp(name, 1, SAME, "f", f"k_{name}({{0}})", spelled, function, doc)


_UNARY = [
    ScalarOp("neg", 1, SAME, "if", "({T})(-{0})", "k_neg({0})", torch.neg),
    ScalarOp("abs", 1, SAME, "if", "k_abs({0})", "tl.abs({0})", torch.abs),
    ScalarOp("sign", 1, SAME, "if", "k_sign({0})", "k_sign({0})", torch.sign, "0 for 0 and NaN"),
    ScalarOp("bitwise_not", 1, SAME, "i", "({T})(~{0})", "(~{0})", torch.bitwise_not),
    ScalarOp("logical_not", 1, BOOL, "b", "(!{0})", "(~{0})", torch.logical_not),
    ScalarOp("isnan", 1, BOOL, "f", "({0} != {0})", "({0} != {0})", torch.isnan),
    ScalarOp("isinf", 1, BOOL, "f", "k_isinf({0})", "k_isinf({0})", torch.isinf),
    ScalarOp("signbit", 1, BOOL, "f", "k_signbit({0})", "k_signbit({0})", torch.signbit),
    _math("exp", torch.exp),
    _math("exp2", torch.exp2),
    _math("expm1", torch.expm1),
    _math("log", torch.log),
    _math("log2", torch.log2),
    _math("log10", torch.log10),
    _math("log1p", torch.log1p),
    _math("sqrt", torch.sqrt, "k_sqrt({0})"),
    _math("rsqrt", torch.rsqrt),
    _math("sin", torch.sin),
    _math("cos", torch.cos),
    _math("tan", torch.tan),
    _math("asin", torch.asin),
    _math("acos", torch.acos),
    _math("atan", torch.atan),
    _math("sinh", torch.sinh),
    _math("cosh", torch.cosh),
    _math("tanh", torch.tanh),
    _math("asinh", torch.asinh),
    _math("acosh", torch.acosh),
    _math("atanh", torch.atanh),
    _math("erf", torch.erf),
    _math("erfc", torch.erfc),
    _math("sigmoid", torch.sigmoid, "k_sigmoid({0})"),
    _math("lgamma", torch.lgamma),
    _math("floor", torch.floor),
    _math("ceil", torch.ceil),
    _math("trunc", torch.trunc),
    _math("round", torch.round, "libdevice.rint({0})", "halves go to even"),
]


def _where(mask: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.where(mask, a, b)


def _fma(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    return torch.addcmul(c, a, b)


_SPECIAL = [
    ScalarOp("where", 3, SAME, "bif", "({0} ? {1} : {2})", "tl.where({0}, {1}, {2})", _where),
    ScalarOp(
        "fma", 3, SAME, "f", "k_fma({0}, {1}, {2})", "tl.fma({0}, {1}, {2})", _fma,
        "a * b + c, rounded once on processors that have it, as by ATen's kernels",
    ),
    ScalarOp(
        "to_dtype", 1, GIVEN, "bif", "k_convert<{T}>({0})", "{0}.to({T})", None,
        "as Tensor.to: towards zero for float to integer, != 0 for bool, nearest even for half",
    ),
    ScalarOp(
        "bitcast", 1, GIVEN, "if", "__builtin_bit_cast({T}, {0})", "{0}.to({T}, bitcast=True)",
        None, "the same bits as another dtype of the same width",
    ),
    ScalarOp(
        "above_one", 2, GIVEN, "i", "__builtin_bit_cast(f32, ({0} & {1}) | 0x3F800000)",
        "k_above_one({0}, {1})", None, "1.0 whose mantissa has these bits of an int32",
    ),
    ScalarOp(
        "nibble", 2, GIVEN, "i", "((f32)(({0} >> {1}) & 15))",
        "((({0} >> {1}) & 15).to(tl.float32))", None,
        "the number in float32 that four bits of an int32 count, from the second operand's bit on",
    ),
    ScalarOp(
        "nibbles_dot", 9, GIVEN, "if", f"({_NIBBLES_IN_CPP})",
        "k_nibbles_dot({0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}, {8})", None,
        "the sum of eight numbers in float32, each times four bits of an int32, the lowest first",
    ),
]

STRUCTURAL = {
    "constant", "index_expr", "load", "store", "indirect", "reduction", "keep", "scan", "sort",
}
_STRUCTURAL = [
    ScalarOp(name, -1, GIVEN, "bif", "", "", None, "see the top of the file")
    for name in sorted(STRUCTURAL)
]

SCALAR_OPS: dict[str, ScalarOp] = {
    op.name: op for op in _BINARY + _COMPARISONS + _UNARY + _SPECIAL + _STRUCTURAL
}


def dtype_kind(dtype: torch.dtype) -> str:
    """'b', 'i', 'f' or 'c' for bool, integer, floating and complex dtypes."""
    if dtype is torch.bool:
        return "b"
    if dtype.is_floating_point:
        return "f"
    return "c" if dtype.is_complex else "i"
