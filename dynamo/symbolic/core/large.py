"""Values that would cost the compiler gigabytes or minutes: the graph breaks, and plain Python
makes them, or raises its error."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Sequence
from typing import Any

from dynamo.base.errors import Break

MOST_ITEMS = 1 << 17  # of a sequence that the compiler reads or makes
MOST_TAKEN = 1 << 15  # of an iterator, which need not end
MOST_CHARACTERS = 1 << 24
MOST_BITS = 1 << 20
MOST_FACTORS = 1 << 14
LONG = re.compile(r"\d{8}")
WIDE, STARRED = re.compile(r"%[^a-zA-Z%]*\d{8}"), re.compile(r"%[^a-zA-Z%]*\*")
WIDE_FIELD, NESTED = re.compile(r":[^}]*\d{8}"), re.compile(r":[^}]*\{")


def break_where_many(taken: int) -> None:
    """Breaks the graph where an iterator has given very many items: it may never end, and no
    instruction of the program is counted meanwhile."""
    if taken > MOST_TAKEN:
        raise Break("value_too_large", f"{taken} items of an iterator")


def repeated(items: Any, times: int) -> bool:
    most = MOST_CHARACTERS if isinstance(items, str | bytes | bytearray) else MOST_ITEMS
    return times > 0 and len(items) * times > most


def product(a: Any, b: Any) -> bool:
    if isinstance(a, int) and isinstance(b, int):
        return a.bit_length() + b.bit_length() > MOST_BITS
    if isinstance(b, int) and hasattr(type(a), "__len__"):
        return repeated(a, b)
    return isinstance(a, int) and hasattr(type(b), "__len__") and repeated(b, a)


def power(a: Any, b: Any, modulus: Any = None) -> bool:
    if not isinstance(a, int) or not isinstance(b, int) or modulus is not None:
        return False
    return abs(a) > 1 and a.bit_length() * b > MOST_BITS


def shift(a: Any, b: Any) -> bool:
    return isinstance(a, int) and isinstance(b, int) and a != 0 and b > MOST_BITS


def modulo(a: Any, b: Any) -> bool:
    if isinstance(a, bytes | bytearray):
        a = a.decode("latin-1")
    if not isinstance(a, str):
        return False
    operands = b if isinstance(b, tuple) else (b,)
    return bool(WIDE.search(a)) or (bool(STARRED.search(a)) and width(*operands))


def fields(template: Any, *args: Any) -> bool:
    if not isinstance(template, str):
        return False
    return bool(WIDE_FIELD.search(template)) or (bool(NESTED.search(template)) and width(*args))


def formatted(value: Any, spec: Any = "") -> bool:
    return isinstance(spec, str) and bool(LONG.search(spec))


def width(*args: Any) -> bool:
    return any(isinstance(arg, int) and arg > MOST_CHARACTERS for arg in args)


def factors(*args: Any) -> bool:
    return any(isinstance(arg, int) and arg > MOST_FACTORS for arg in args)


CHECKS: dict[Any, Callable[..., bool]] = {
    bytes: width, bytearray: width, pow: power, format: formatted, str.format: fields,
    math.factorial: factors, math.comb: factors, math.perm: factors,
    operator.mul: product, operator.imul: product, int.__mul__: product, int.__rmul__: product,
    operator.pow: power, operator.ipow: power, int.__pow__: power,
    operator.lshift: shift, operator.ilshift: shift, int.__lshift__: shift,
    operator.mod: modulo, operator.imod: modulo,
}
for kind in (str, bytes, bytearray):
    CHECKS[kind.__mod__] = modulo
    CHECKS[kind.__mul__] = CHECKS[kind.__rmul__] = product
    for method in ("ljust", "rjust", "center", "zfill", "expandtabs"):
        CHECKS[getattr(kind, method)] = width


def break_where_large(function: Any, args: Sequence[Any]) -> None:
    """Breaks the graph for a call on known values whose result would be too large."""
    try:
        check = CHECKS.get(function)
    except TypeError:  # it has no hash
        return
    try:
        is_large = check is not None and check(*args)
    except TypeError:  # it gets other arguments: Python says so
        return
    if is_large:
        raise Break("value_too_large", f"of {getattr(function, '__name__', function)}")
