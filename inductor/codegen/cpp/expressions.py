"""One operation as C++ text.

In: an `Op` and the texts of its operands. Out: an expression (or, for stores, a statement). Buffers
are named by the caller: `memory(buffer, index)` gives the text of one element.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from inductor.codegen.cpp.types import HALF, UNSIGNED, literal, value_type
from inductor.ir.body import IndirectVar, Op
from inductor.ir.extent import Extent, Real
from inductor.ir.index import print_cpp
from inductor.ir.scalar_ops import SCALAR_OPS

MOVING = {"to_dtype", "where", "bitcast"}
"""Operations that half precision may meet; others would take its bits for a number."""

WRAPPING = {"add", "sub", "mul", "neg"}
"""Operations whose signed form is undefined in C++ where it overflows."""


def spell(op: Op, operands: Sequence[str], source: torch.dtype | None = None) -> str:
    """Text of an operation with plain operands.

    >>> spell(Op("add", (0, 1), torch.int32), ["v0", "v1"])
    '(i32)((u32)v0 + (u32)v1)'
    """
    if source in HALF and op.name not in MOVING:
        raise TypeError(f"{op} in half precision")
    row = SCALAR_OPS[op.name]
    texts = list(operands)
    if op.name in WRAPPING and op.dtype in UNSIGNED:
        texts = [f"({UNSIGNED[op.dtype]}){text}" for text in texts]
    names = {"T": value_type(op.dtype)}
    if source is not None:
        names["S"] = value_type(source)
    text = row.cpp.format(*texts, **names)
    return text.removeprefix(f"({names['T']})") if op.dtype.is_floating_point else text


def spell_constant(op: Op) -> str:
    assert isinstance(op.imm, bool | int | float | Extent | Real)
    return literal(op.imm, op.dtype)


def spell_index_value(op: Op) -> str:
    assert op.index is not None
    text = print_cpp(op.index)
    if -(2**31) <= op.index.low and op.index.high < 2**31:
        text = f"(i32)({text})"  # more of them fit into a vector
    if op.dtype is torch.int64:
        return f"(i64)({text})"
    return f"k_convert<{value_type(op.dtype)}>({text})"


def spell_load(op: Op, element: str, mask: str | None) -> str:
    """An element of a buffer; `mask`: text of the condition under which it may be read."""
    loaded = f"({element} != 0)" if op.dtype is torch.bool else element
    if mask is None:
        return loaded
    return f"({mask} ? {loaded} : {zero(op.dtype)})"


def zero(dtype: torch.dtype) -> str:
    return f"({value_type(dtype)})0"


def indirect_lines(op: Op, operands: Sequence[str], error: str) -> list[str]:
    """Statements that define the variable of an `indirect` op; `error` collects bad values."""
    imm = op.imm
    assert isinstance(imm, IndirectVar)
    name, size = imm.var.name, imm.var.size
    value, *mask = operands
    raw, lines = f"{name}_raw", []
    lines.append(f"const i64 {raw} = (i64){value};")
    text = f"({raw} < 0 ? {raw} + {size} : {raw})" if imm.wrap else raw
    if imm.check:
        lines.append(f"const i64 {name}_at = {text};")
        good = f"(u64){name}_at < (u64){size}"
        lines.append(f"const bool {name}_ok = {good};")
        wrong = f"!{name}_ok" + (f" & {mask[0]}" if mask else "")
        lines.append(f"{error} = k_worst({error}, {wrong}, {raw});")
        keep = f"{name}_ok" + (f" & {mask[0]}" if mask else "")
        lines.append(f"const i64 {name} = ({keep}) ? {name}_at : 0;")
    elif mask:
        lines.append(f"const i64 {name} = {mask[0]} ? {text} : 0;")
    else:
        lines.append(f"const i64 {name} = {text};")
    return lines
