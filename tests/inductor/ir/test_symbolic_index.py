"""Indices with extents as ranges, strides and divisors, against plain numbers at many sizes."""

from __future__ import annotations

import operator
import random
from collections.abc import Callable
from typing import Any

import pytest

from inductor.ir.extent import Sizes
from inductor.ir.index import Index, constant, floordiv, mod, print_cpp, variable
from tests.seeds import drawn

NAMES = {"k_floordiv_index": operator.floordiv, "k_mod_index": operator.mod}
POINTS = [(2, 2), (2, 7), (3, 5), (16, 3), (17, 4)]
Plain = Callable[[dict[str, int]], int]


def grow(numbers: random.Random, symbols: list[Any], depth: int) -> tuple[Index, Plain]:
    """A random index, and the same as a function of the values of variables and symbols."""
    n, m = symbols
    if depth == 0:
        name, size = numbers.choice([("i0", n), ("i1", m), ("i2", 4), ("i3", n * m), ("c", 3)])
        if name == "c":
            return constant(3), lambda env: 3
        return variable(name, size), lambda env: env[name]
    inner, plain = grow(numbers, symbols, depth - 1)
    factor = numbers.choice([n, m, n * m, 4 * n, 4, 2, n - 1])
    value = lambda env: eval(str(factor), {**NAMES, **env})  # noqa: E731
    kind = numbers.choice("*+//%%")
    if kind == "*":
        return inner * factor, lambda env: plain(env) * value(env)
    if kind == "+":
        other, other_plain = grow(numbers, symbols, depth - 1)
        return inner * factor + other, lambda env: plain(env) * value(env) + other_plain(env)
    if kind == "/":
        return floordiv(inner, factor), lambda env: plain(env) // value(env)
    return mod(inner, factor), lambda env: plain(env) % value(env)


def environments(numbers: random.Random) -> list[dict[str, int]]:
    found = []
    for n, m in POINTS:
        tops = {"i0": n, "i1": m, "i2": 4, "i3": n * m}
        for _ in range(6):
            found.append({"k0": n, "k1": m} | {k: numbers.randrange(v) for k, v in tops.items()})
    return found


@pytest.mark.draws
@pytest.mark.parametrize("part", range(4))
def test_indices_have_the_value_of_plain_numbers(part: int) -> None:
    for seed in drawn(range(50 * part, 50 * part + 50)):
        check_indices_have_the_value_of_plain_numbers(seed)


def check_indices_have_the_value_of_plain_numbers(seed: int) -> None:
    numbers = random.Random(seed)
    sizes = Sizes()
    symbols = [sizes.symbol(8, 2), sizes.symbol(5, 2)]
    index, plain = grow(numbers, symbols, 4)
    for env in environments(numbers):
        wanted = plain(env)
        assert eval(repr(index), {**NAMES, **env}) == wanted
        text = print_cpp(index).replace("/", "//")
        assert eval(text, {**NAMES, **env}) == wanted
        low, high = (eval(str(bound), {**NAMES, **env}) for bound in (index.low, index.high))
        assert low <= wanted <= high
    assert not sizes.assumptions


def test_reshapes_leave_no_divisions() -> None:
    sizes = Sizes()
    n, m = sizes.symbol(8, 2), sizes.symbol(5, 2)
    i, j, h = variable("i0", n), variable("i1", m), variable("i2", 64)
    flat = (i * m + j) * 64 + h
    assert floordiv(flat, 64) == i * m + j
    assert mod(floordiv(flat, 64), m) == j and floordiv(flat, m * 64) == i
    assert mod(flat, 16) == mod(h, 16)
    whole = variable("i", n * m)
    assert floordiv(whole, m) * m + mod(whole, m) == whole
    assert not sizes.assumptions
