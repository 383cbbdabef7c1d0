"""Index expressions: every simplification keeps the value, at every point of the loops."""

import itertools
import random

import pytest

from inductor.ir.index import Index, floordiv, mod, variable
from tests.seeds import drawn

SIZES = {"i0": 4, "i1": 6, "r0": 5}


def random_index(rng: random.Random, depth: int) -> tuple[Index, object]:
    """A random expression, built simplified and as a plain Python function."""
    if depth == 0:
        name = rng.choice(list(SIZES))
        return variable(name, SIZES[name]), lambda values: values[name]
    left, left_value = random_index(rng, depth - 1)
    right, right_value = random_index(rng, depth - 1)
    n = rng.choice([2, 3, 4, 6, 12, 24])
    kind = rng.choice(["sum", "floordiv", "mod", "join"])
    if kind == "floordiv":
        return floordiv(left + 1, n), lambda v: (left_value(v) + 1) // n
    if kind == "mod":
        return mod(left - right, n), lambda v: (left_value(v) - right_value(v)) % n
    if kind == "join":
        joined = floordiv(left, n) * n + mod(left, n) + right
        return joined, lambda v: left_value(v) + right_value(v)
    return left * n - right + 3, lambda v: left_value(v) * n - right_value(v) + 3


@pytest.mark.draws
@pytest.mark.parametrize("part", range(5))
def test_value_and_bounds(part: int) -> None:
    for seed in drawn(range(60 * part, 60 * part + 60)):
        check_value_and_bounds(seed)


def check_value_and_bounds(seed: int) -> None:
    rng = random.Random(seed)
    index, plain = random_index(rng, rng.randint(1, 4))
    for point in itertools.product(*(range(size) for size in SIZES.values())):
        values = dict(zip(SIZES, point, strict=True))
        expected = plain(values)
        assert index.evaluate(values) == expected
        assert index.substitute(values) == expected
        assert index.low <= expected <= index.high


def test_split_loop_joins_again() -> None:
    x = variable("x", 192)
    parts = {"i0": floordiv(x, 48), "i1": mod(floordiv(x, 6), 8), "i2": mod(x, 6)}
    whole = variable("i0", 4) * 48 + variable("i1", 8) * 6 + variable("i2", 6)
    assert whole.substitute(parts) == x


def test_stride_of() -> None:
    i, j = variable("i0", 4), variable("i1", 6)
    assert (i * 6 + j).stride_of("i0") == 6
    assert (i * 6 + j).stride_of("r0") == 0
    assert mod(i * 5 + j, 7).stride_of("i0") is None
