"""Extents against plain ints at many sizes: arithmetic, proofs, recorded assumptions."""

from __future__ import annotations

import operator
import random
from typing import Any

import pytest

from inductor.ir.extent import (
    Extent,
    Sizes,
    common_factor,
    divides,
    hint_of,
    surely_less,
    up_to_multiple,
)
from tests.seeds import drawn

NAMES = {"k_floordiv_index": operator.floordiv, "k_mod_index": operator.mod}
POINTS = [(2, 2, 3), (2, 7, 16), (3, 2, 129), (64, 5, 2), (17, 16, 7), (1000, 33, 64)]


def at(value: Any, point: tuple[int, ...]) -> Any:
    names = {f"k{n}": number for n, number in enumerate(point)}
    return eval(str(value), {**NAMES, **names})


def symbols(hints: tuple[int, ...] = (8, 5, 6)) -> tuple[Sizes, list[Any]]:
    sizes = Sizes()
    return sizes, [sizes.symbol(hint, 2) for hint in hints]


def grow(numbers: random.Random, symbols: list[Any], depth: int) -> tuple[Any, Any]:
    """A random expression and the same as a function of a point."""
    if depth == 0:
        if numbers.random() < 0.4:
            constant = numbers.choice([1, 2, 3, 8, 64])
            return constant, lambda point: constant
        which = numbers.randrange(len(symbols))
        return symbols[which], lambda point: point[which]
    left, left_at = grow(numbers, symbols, depth - 1)
    right, right_at = grow(numbers, symbols, depth - 1)
    function = numbers.choice([operator.add, operator.mul, operator.mul, operator.sub,
                               operator.floordiv, operator.mod])
    if function in (operator.floordiv, operator.mod) and (
        not surely_less(0, right) or not surely_less(-1, left)
    ):
        function = operator.add
    return function(left, right), lambda point: function(left_at(point), right_at(point))


@pytest.mark.draws
@pytest.mark.parametrize("part", range(3))
def test_expressions_have_the_value_of_ints(part: int) -> None:
    for seed in drawn(range(50 * part, 50 * part + 50)):
        check_expressions_have_the_value_of_ints(seed)


def check_expressions_have_the_value_of_ints(seed: int) -> None:
    numbers = random.Random(seed)
    sizes, found = symbols()
    value, plain = grow(numbers, found, 3)
    for point in POINTS:
        assert at(value, point) == plain(point)
    assert hint_of(value) == plain((8, 5, 6))
    other, other_at = grow(numbers, found, 2)
    for point in POINTS:
        if value == other:
            assert plain(point) == other_at(point)
        if surely_less(value, other):
            assert plain(point) < other_at(point)
    assert not sizes.assumptions
    factor = common_factor(value, other)
    for point in POINTS:
        if value == other == 0:
            assert factor == 0
            continue
        assert at(value, point) % at(factor, point) == at(other, point) % at(factor, point) == 0


@pytest.mark.parametrize("compare", [operator.lt, operator.le, operator.gt, operator.ge])
@pytest.mark.parametrize("seed", range(40))
def test_an_order_is_proved_or_recorded(seed: int, compare: Any) -> None:
    numbers = random.Random(seed)
    sizes, found = symbols()
    left, left_at = grow(numbers, found, 2)
    right, right_at = grow(numbers, found, 2)
    answer = compare(left, right)
    assert answer == compare(left_at((8, 5, 6)), right_at((8, 5, 6)))
    for point in POINTS:
        if all(at(text, point) for text in sizes.assumptions):
            assert compare(left_at(point), right_at(point)) == answer


def test_what_is_constant_is_an_int() -> None:
    _, (n, m, _) = symbols()
    assert type(n * m // n - m + 4) is int
    assert (n * m - 1) % m == m - 1 and (n * m - 1) // m == n - 1
    assert (n * 64 + 70) // 64 == n + 1
    assert divides(n, n * m * 3) and divides(8, n * 64) and not divides(8, n)
    assert up_to_multiple(n * 64, 64) == n
    assert common_factor(n * 64, 16) == 16 and common_factor(n * m, n) == n
    assert len({n * m, m * n, n}) == 2
    assert max(n - 1, 0) == n - 1


def test_a_number_that_is_taken_is_recorded() -> None:
    sizes, (n, m, _) = symbols()
    assert list(range(n)) == list(range(8)) and [0] * m == [0] * 5
    assert list(sizes.assumptions) == ["k0 == 8", "k1 == 5"]
    assert isinstance(n, Extent) and not isinstance(n, int)


def test_a_number_without_bounds_proves_nothing() -> None:
    sizes = Sizes()
    step = sizes.symbol(hint=3, low=None)
    assert not surely_less(0, step) and not surely_less(step, 0) and surely_less(step, step + 1)
    assert step > 0 and list(sizes.assumptions) == ["k0 > 0"]
    with pytest.raises(ValueError, match="not positive"):
        sizes.symbol(hint=4, low=2) // (step - 3)


def test_what_a_divisor_of_unproved_sign_divides_leaves_zero() -> None:
    _, (n, m, _) = symbols()
    rows = (1 - n) * (m // 2 - m)
    for times in (0, 1, m):
        assert type((rows * times) % rows) is int and (rows * times) % rows == 0
        assert str((rows * times) // rows) == str(times)


def test_a_quotient_times_its_divisor_is_not_above_the_number() -> None:
    sizes = Sizes()
    n = sizes.symbol(hint=17, low=2)
    windows, rest = n // 2, -n % 4
    assert surely_less(2 * windows - 1, n) and surely_less(4 * ((n + rest) // 4), n + rest + 1)
    assert not surely_less(2 * windows, n) and not surely_less(n, 2 * windows + 1)
    assert not surely_less(3 * windows, n + 1) and not surely_less(-2 * windows, -n)
    assert not sizes.assumptions
