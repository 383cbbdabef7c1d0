"""Shape guards: the C++ stack machine against Python."""

from __future__ import annotations

import decimal
import itertools
import re
from typing import Any

import pytest
import torch

from dynamo.guards.build import build_program
from dynamo.guards.explain import failures
from dynamo.guards.records import Guard
from dynamo.guards.shape_code import Fact, ShapeFacts
from dynamo.guards.sources import LocalSource, Scope

X, N = LocalSource("x"), LocalSource("n")
NAMES = {"s0": Fact(X, "size", 0), "s1": Fact(X, "size", 1), "t0": Fact(X, "stride", 0),
         "o": Fact(X, "storage_offset"), "d": Fact(X, "dim"), "e": Fact(X, "numel"),
         "n": Fact(N, "value")}
EXPRESSIONS = [
    "s0 == s1", "s0 % 2 == 0 and s1 >= 2", "s0 * s1 // 3 == n", "2 <= s0 < 5", "-s0 // 2 == -2",
    "n / 2 == 1.5", "max(s0, s1, n) == n", "min(s0, n) <= abs(-n)", "not (n > 3 or s1 == 1)",
    "s0 ** 2 != 9", "t0 == s1 and o == 0 and d == 2 and e == s0 * s1", "n % -3 == -1",
    "s0 // (n - 3) >= 0", "n * 9223372036854775807 > 0", "n + 0.5 > s0", "sqrt(n) > 1.2",
    "log(s0 + 0.5) + log2(s1) < log10(s0) + log1p(n)", "exp(n) > 800 * s0", "sin(n) < cos(s0)",
    "tanh(n / 2) * s1 != 1", "power(s0, 0.5) > power(0.9, n)",
]


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_machine_agrees_with_python(text: str) -> None:
    used = {name: fact for name, fact in NAMES.items() if re.search(rf"\b{name}\b", text)}
    guard = Guard("SHAPE", None, ShapeFacts(text, used))
    program = build_program([guard])
    for rows, columns, n in itertools.product(range(1, 5), range(1, 5), (-4, 0, 1, 3, 4, 2.5)):
        if n == 4 and "922337" in text:
            continue
        values: dict[str, Any] = {"x": torch.empty(rows, columns), "n": n}
        held = program.run(values, {}, {})[2]
        expected = not failures([guard], Scope(values, {}, {}))
        big = "922337" in text and abs(n) > 1 and not isinstance(n, float)
        assert held == (False if big else expected), (rows, columns, n)


@pytest.mark.parametrize("operator", ["//", "%"])
def test_division_of_floats_is_exact(operator: str) -> None:
    """As in Python, where 1.0 // 0.1 is 9."""
    values = [0.1, -0.1, 0.3, 1.0, 1.1, 3.0, -3.0, 0.7, 1e17, 2.5, -7.3]
    for left, right in itertools.product(values, values):
        expected = eval(f"{left!r} {operator} {right!r}")
        guard = Guard("SHAPE", None, ShapeFacts(
            f"n {operator} {right!r} == {expected!r}", {"n": NAMES["n"]}))
        assert build_program([guard]).run({"n": left}, {}, {})[2], (left, right)


@pytest.mark.parametrize("text", ["n > 3", "n % 2 == 0"])
def test_a_number_that_compares_with_nothing_fails(text: str) -> None:
    guard = Guard("SHAPE", None, ShapeFacts(text, {"n": NAMES["n"]}))
    values = {"n": decimal.Decimal("sNaN")}
    assert len(failures([guard], Scope(values, {}, {}))) == 1
    assert not build_program([guard]).run(values, {}, {})[2]


def test_sentence() -> None:
    guard = Guard("SHAPE", None, ShapeFacts("s0 % 8 == 0", {"s0": NAMES["s0"]}))
    scope = Scope({"x": torch.empty(3, 1)}, {}, {})
    assert failures([guard], scope) == [
        "x.size(0) % 8 == 0 no longer holds, now that x.size(0) is 3"]


def test_unknown_expressions_are_refused() -> None:
    with pytest.raises(ValueError, match="can't contain"):
        build_program([Guard("SHAPE", None, ShapeFacts("s0.bit_length()", NAMES))])


def test_ints_beyond_doubles() -> None:
    """Python compares an int with a float exactly; such an int is never taken for another."""
    for integer, number in itertools.product((2**53, 2**53 + 1, -(2**53) - 1, 2**62 + 1), repeat=2):
        for operator in ("==", "<", ">", "<=", ">=", "!="):
            text = f"n {operator} {float(number)!r}"
            guard = Guard("SHAPE", None, ShapeFacts(text, {"n": NAMES["n"]}))
            held = build_program([guard]).run({"n": integer}, {}, {})[2]
            assert not held or eval(text, {"n": integer}), (integer, text)
    guard = Guard("SHAPE", None, ShapeFacts(f"n / 3 == {(2**62 + 3) / 3!r}", {"n": NAMES["n"]}))
    assert not build_program([guard]).run({"n": 2**62}, {}, {})[2] or 2**62 / 3 == (2**62 + 3) / 3


def test_quotients_of_the_least_ints() -> None:
    least = -(2**63)
    for left, right in itertools.product((least, least + 1, -7, 7, 2**63 - 1), (2, 3, -3, 10)):
        guard = Guard("SHAPE", None, ShapeFacts(
            f"n // {right} == {left // right}", {"n": NAMES["n"]}))
        assert build_program([guard]).run({"n": left}, {}, {})[2], (left, right)
