"""How dtypes and numbers are spelled in generated C++.

`value_type` is what a scalar of a dtype is called; the names are aliases of the prelude. A bool in
memory is a byte that may hold anything but 0 for true, so buffers of bool are read as bytes.
"""

from __future__ import annotations

import math

import torch

from inductor.ir.extent import Extent, Real

CPP_TYPES: dict[torch.dtype, str] = {
    torch.float32: "f32",
    torch.float64: "f64",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.int8: "i8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.uint8: "u8",
    torch.bool: "bool",
}

UNSIGNED: dict[torch.dtype, str] = {
    torch.int8: "u8",
    torch.int16: "u16",
    torch.int32: "u32",
    torch.int64: "u64",
    torch.uint8: "u8",
}

HALF = (torch.float16, torch.bfloat16)
BYTES = (torch.int8, torch.uint8)


def value_type(dtype: torch.dtype) -> str:
    """Type of a scalar value.

    >>> value_type(torch.float32)
    'f32'
    """
    return CPP_TYPES[dtype]


def memory_type(dtype: torch.dtype) -> str:
    """Type of an element in a buffer."""
    return "u8" if dtype is torch.bool else CPP_TYPES[dtype]


def literal(value: bool | int | float, dtype: torch.dtype) -> str:
    """A number of a dtype, rounded as torch rounds a Python number.

    >>> literal(0.1, torch.float32), literal(-1, torch.int64)
    ('(f32)0.1', '(i64)-1')
    """
    if dtype is torch.bool:
        return "true" if value else "false"
    if isinstance(value, (Extent, Real)):
        kind = CPP_TYPES[dtype]
        return f"k_convert<{kind}>((f32){value})" if dtype in HALF else f"({kind}){value}"
    if not dtype.is_floating_point:
        return f"({CPP_TYPES[dtype]}){_integer(int(value))}"
    number = float(value)
    if math.isnan(number):
        text = '__builtin_nan("")'
    elif math.isinf(number):
        text = "__builtin_inf()" if number > 0 else "-__builtin_inf()"
    else:
        text = repr(number)
    if dtype in HALF:
        return f"k_convert<{CPP_TYPES[dtype]}>((f32){text})"
    return f"({CPP_TYPES[dtype]}){text}"


def lowest(dtype: torch.dtype) -> str:
    """The neutral element of max."""
    if dtype.is_floating_point:
        return literal(-math.inf, dtype)
    return literal(False if dtype is torch.bool else torch.iinfo(dtype).min, dtype)


def highest(dtype: torch.dtype) -> str:
    """The neutral element of min."""
    if dtype.is_floating_point:
        return literal(math.inf, dtype)
    return literal(True if dtype is torch.bool else torch.iinfo(dtype).max, dtype)


def _integer(value: int) -> str:
    if value == -(2**63):
        return "(-9223372036854775807L - 1)"
    return f"{value}L" if abs(value) >= 2**31 else str(value)
