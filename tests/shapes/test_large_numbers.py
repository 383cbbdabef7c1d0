"""Ints beyond 64 bits, in numbers that change and in what is computed of them."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

import dynamo
from dynamo.testing import CompileCounter
from tests.shapes.test_numbers import assert_same

COMPARISONS = """n == n; n != n; n <= n; n < n; n - n == 0; min(n, n) > 3; n > 5; n == 5; n + 1 > n
    -n < 7; abs(n) > 2; n + n != 3; n * n > 5; n * n - n * n == 0; n ** 4 > 7; n * n % 7 == 1
    (n + 1) * n - n > 1; n << 5 > 1; n // 3 > 1; float(n) > 2; n in (n * n, 7)"""
ROWS = ([0, 2**40, 2**64, 31043, 2**64 + 1], [1, 2**62, 2**63 - 1, -2**63, -2**63 + 1, 2**33],
        [1, 2**64, 3, 2**40])


def of(comparison: str) -> Any:
    scope: dict[str, Any] = {}
    exec(f"def f(n, x): return x + (1 if {comparison} else 2)", scope)
    return scope["f"]


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("comparison", COMPARISONS.replace("\n    ", "; ").split("; "))
def test_guards_hold_for_the_values_they_were_made_from(
    comparison: str, dynamic: bool | None
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)  # says that a guard fails
        for row in ROWS:
            f, x = of(comparison), torch.rand(3)
            compiled = dynamo.compile(f, backend="eager", dynamic=dynamic)
            for n in row:
                assert_same(compiled(n, x), f(n, x))


@pytest.mark.parametrize("comparison", ["n == n", "n <= n", "n != n", "n - n == 0"])
def test_one_compile_for_a_number_compared_with_itself(comparison: str) -> None:
    counter = CompileCounter()
    f, x = of(comparison), torch.rand(3)
    compiled = dynamo.compile(f, backend=counter)
    for n in (5, 2**40, 31043, -3, 2**62, 7):
        assert_same(compiled(n, x), f(n, x))
    assert counter.frame_count == 2
