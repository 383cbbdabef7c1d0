"""Spellings of dtypes, constants, indices, conversions and reductions in Triton."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from inductor.codegen.triton.launch import NotPrintable
from inductor.codegen.triton.numbers import Numbers, reaches
from inductor.ir.body import Immediate, is_small
from inductor.ir.extent import Extent, Real, hint_of, surely_less
from inductor.ir.index import FloorDiv, Index, Var

DTYPES = {
    torch.bool: "tl.int1",
    torch.int8: "tl.int8",
    torch.int16: "tl.int16",
    torch.int32: "tl.int32",
    torch.int64: "tl.int64",
    torch.uint8: "tl.uint8",
    torch.uint16: "tl.uint16",
    torch.uint32: "tl.uint32",
    torch.uint64: "tl.uint64",
    torch.float16: "tl.float16",
    torch.bfloat16: "tl.bfloat16",
    torch.float32: "tl.float32",
    torch.float64: "tl.float64",
    torch.float8_e4m3fn: "tl.float8e4nv",
    torch.float8_e5m2: "tl.float8e5",
}
HALVES = (torch.float16, torch.bfloat16)
NARROW = (torch.int8, torch.int16, torch.uint8, torch.uint16)
TO_SMALL = {torch.float8_e4m3fn: "k_to_e4m3", torch.float8_e5m2: "k_to_e5m2"}
BYTES = (torch.int8, torch.uint8)
ATOMIC_ADD = (
    torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64,
)


def print_dtype(dtype: torch.dtype) -> str:
    """`tl.float32` for torch.float32."""
    if dtype not in DTYPES:
        raise NotPrintable(f"no Triton type for {dtype}")
    return DTYPES[dtype]


def print_number(value: Immediate) -> str:
    """A Python literal that Triton reads too."""
    if isinstance(value, float) and (value != value or value in (float("inf"), -float("inf"))):
        return f'float("{value}")'
    if isinstance(value, (bool, int, float)):
        return repr(value)
    raise NotPrintable(f"no Triton constant for {value!r}")


def print_constant(value: Immediate, dtype: torch.dtype, shape: str, numbers: Numbers) -> str:
    """A tile of exactly `dtype`."""
    if isinstance(value, (Extent, Real)):
        held = "tl.float32" if dtype in HALVES else print_dtype(dtype)
        tile = f"tl.full({shape}, {numbers.exact(value)}, {held})"
        return f"{tile}.to({print_dtype(dtype)})" if dtype in HALVES else tile
    if dtype in HALVES:
        value = torch.tensor(value, dtype=dtype).item()
        return f"{_tile(value, 'tl.float32', shape)}.to({print_dtype(dtype)})"
    if not (dtype.is_floating_point or dtype is torch.bool):
        value = _wrapped(value, dtype)
    return _tile(value, print_dtype(dtype), shape)


def _tile(value: Immediate, kind: str, shape: str) -> str:
    """One value everywhere. Triton takes each zero for the positive one."""
    if isinstance(value, float) and value == 0.0 and math.copysign(1.0, value) < 0.0:
        return f"k_neg(tl.full({shape}, 0.0, {kind}))"
    return f"tl.full({shape}, {print_number(value)}, {kind})"


def _wrapped(value: Immediate, dtype: torch.dtype) -> int:
    """The number modulo the dtype's range, as C converts it; Triton refuses others."""
    low, values = torch.iinfo(dtype).min, 1 << torch.iinfo(dtype).bits
    return (int(value) - low) % values + low  # type: ignore[arg-type]


def print_index(index: Index, names: Mapping[str, str], numbers: Numbers) -> str:
    """An index, with variables renamed by `names`."""
    parts = []
    for atom, factor in index.terms:
        if isinstance(atom, Var):
            text = names[atom.name]
        else:
            base: Index = atom.base  # type: ignore[attr-defined]
            divisor = numbers.spell(atom.divisor)  # type: ignore[attr-defined]
            divides = isinstance(atom, FloorDiv)
            inner = print_index(base, names, numbers)
            if surely_less(-1, base.low):
                text = f"(({inner}) {'//' if divides else '%'} {divisor})"
            else:
                name = "k_floordiv_index" if divides else "k_mod_index"
                text = f"{name}({inner}, {divisor})"
        parts.append(text if factor == 1 else f"{numbers.spell(factor)}*{text}")
    if index.offset != 0 or not parts:
        parts.append(numbers.spell(index.offset))
    return " + ".join(parts)


def needs_int64(index: Index) -> bool:
    """Whether the index, or a part of it, may leave the range of int32."""
    if reaches(index.high, 1 << 31) or reaches(-index.low, (1 << 31) + 1):
        return True
    return any(
        hint_of(abs(factor)) >= 1 << 31 or (not isinstance(atom, Var) and needs_int64(atom.base))  # type: ignore[attr-defined]
        for atom, factor in index.terms
    )


def print_conversion(
    text: str, source: torch.dtype, goal: torch.dtype, is_loaded: bool = False
) -> str:
    """`Tensor.to`: floats go to narrow integers through int32, and to halves through float32."""
    if source in BYTES and goal in (torch.float32, *HALVES):
        name = "k_from_bytes" if is_loaded else "k_from_byte"
        text, source = f"{name}({text})", torch.float32
        if goal is torch.float32:
            return text
    if goal in TO_SMALL and source is not goal:
        return f"{TO_SMALL[goal]}({text}.to(tl.float32))"
    if is_small(source) and goal is not torch.float32:
        text, source = f"{text}.to(tl.float32)", torch.float32
    if source.is_floating_point and goal in NARROW:
        return f"{text}.to(tl.int32).to({print_dtype(goal)})"
    if goal in HALVES and source is not torch.float32:
        return f"{text}.to(tl.float32).to({print_dtype(goal)})"
    return f"{text}.to({print_dtype(goal)})"


COMBINE = {
    "sum": "{0} + {1}",
    "prod": "{0} * {1}",
    "max": "k_maximum({0}, {1})",
    "min": "k_minimum({0}, {1})",
    "any": "{0} | {1}",
}
COMBINE_FUNCTIONS = {
    "sum": "k_add", "prod": "k_mul", "max": "k_maximum", "min": "k_minimum", "any": "k_or",
    "argmax": "k_argmax", "argmin": "k_argmin",
}
SCAN_FUNCTIONS = {"sum": "k_add", "prod": "k_mul", "logaddexp": "k_logaddexp"}
SUM_OF_EXP = "sum_of_exp"  # of values v: the sum of exp(v - their maximum); see `online`
LAST_POSITION = (1 << 63) - 1


def neutral(kind: str, dtype: torch.dtype) -> bool | int | float:
    """The value that changes nothing in a reduction."""
    if kind in ("sum", "any"):
        return False if dtype is torch.bool else 0.0 if dtype.is_floating_point else 0
    if kind == "prod":
        return True if dtype is torch.bool else 1.0 if dtype.is_floating_point else 1
    least = kind in ("max", "argmax")
    if dtype is torch.bool:
        return not least
    if dtype.is_floating_point:
        return -float("inf") if least else float("inf")
    info = torch.iinfo(dtype)
    return info.min if least else info.max
