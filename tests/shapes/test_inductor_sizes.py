"""The default backend on symbolic graphs: compiled once for all sizes and ints; where that can't be
(floats that decide), for each set of them, up to a limit."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import dynamo
from inductor import metrics
from inductor.dynamic_shapes.specialise import LIMIT


def scaled(x: torch.Tensor, n: Any) -> Any:
    return torch.where(x > n, x, n) * n


def compiles() -> int:
    return metrics.snapshot()["sizes_compiled"]


def test_numbers_are_never_mixed_up() -> None:
    compiled, x = dynamo.compile(scaled), torch.randn(5, 3)
    before = compiles()
    for n in (2, 3, 2, 3, 4, 4, -1, 0, 1, 2**40):
        torch.testing.assert_close(compiled(x, n), scaled(x, n), rtol=0, atol=0)
    assert compiles() == before
    for n in (0.0, -0.0, 1.0, -0.0):
        torch.testing.assert_close(1 / compiled(x, n), 1 / scaled(x, n), rtol=0, atol=0)


def test_floats_are_arguments() -> None:
    compiled, x = dynamo.compile(scaled), torch.randn(5, 3)
    before, frames = compiles(), dynamo.counters["stats"]["frames"]
    for n in range(LIMIT + 6):
        torch.testing.assert_close(compiled(x, n / 4), scaled(x, n / 4), rtol=0, atol=0)
    assert compiles() == before
    assert dynamo.counters["stats"]["frames"] - frames == 2


def test_gradients_by_number() -> None:
    compiled = dynamo.compile(lambda x, n: (x.sin() * n).sum())
    for n in (2, 3, 5, 7, 3):
        x = torch.randn(4, dtype=torch.float64, requires_grad=True)
        compiled(x, n).backward()
        torch.testing.assert_close(x.grad, x.detach().cos() * n)


def test_sizes() -> None:
    def program(x: torch.Tensor) -> Any:
        y = (x @ x.t()).softmax(-1)
        return y.reshape(x.shape[0] * x.shape[0]) * x.shape[0], torch.arange(x.size(0)) + 1

    compiled = dynamo.compile(program)
    before, frames = metrics.snapshot(), dynamo.counters["stats"]["frames"]
    for rows in (2, 3, 4, 5, 4, 3, *range(6, 30)):
        x = torch.randn(rows, 7)
        torch.testing.assert_close(compiled(x), program(x))
    after = metrics.snapshot()
    assert after["symbolic_graphs"] - before["symbolic_graphs"] == 1
    assert after["graphs"] - before["graphs"] == 2  # two rows were compiled as a constant
    assert dynamo.counters["stats"]["frames"] - frames == 2


def test_gradients_by_size() -> None:
    weight = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    compiled = dynamo.compile(lambda x: (x @ weight).sin().sum(1) / len(x))
    for rows in (2, 3, 4, 5, 4):
        x = torch.randn(rows, 3, dtype=torch.float64, requires_grad=True)
        found = torch.autograd.grad(compiled(x).square().sum(), [x, weight])
        wanted = torch.autograd.grad(
            ((x @ weight).sin().sum(1) / len(x)).square().sum(), [x, weight])
        torch.testing.assert_close(found, wanted)


def sgd(x: torch.Tensor, gradient: torch.Tensor, rate: float, step: int) -> Any:
    return x - rate * gradient / (1 + step), (x * -rate).add_(step)


def test_rates_and_steps_are_free() -> None:
    compiled = dynamo.compile(sgd)
    before = compiles()
    for dtype in (torch.float32, torch.float64):
        for step in range(12):
            x, gradient = torch.randn(5, 3, dtype=dtype), torch.randn(5, 3, dtype=dtype)
            rate = 0.1 / (step + 1) * (-1) ** step
            found, wanted = compiled(x, gradient, rate, step), sgd(x, gradient, rate, step)
            torch.testing.assert_close(found, wanted, rtol=0, atol=0)
    assert compiles() - before <= 3


def test_numbers_that_decide_dtypes_are_not_free() -> None:
    def program(x: torch.Tensor, n: Any) -> Any:
        return x * n, x.long() * n, x.sum() * n, x.half() * n, n * 2 + x.shape[0], x * n * n

    compiled = dynamo.compile(program)
    for n in (2, 3, 0.25, 0.75, 1.25, -3, 2**40, 1e-45, 1e300):
        x = torch.randn(4, 2).square()
        found, wanted = compiled(x, n), program(x, n)
        for one, two in zip(found, wanted, strict=True):
            assert type(one) is type(two) and getattr(one, "dtype", 0) == getattr(two, "dtype", 0)
            torch.testing.assert_close(one, two, rtol=0, atol=0, equal_nan=True)


def test_roots_of_sizes() -> None:
    def program(x: torch.Tensor) -> Any:
        return x / x.shape[0] ** 0.5, x * math.sqrt(x.shape[0]), x * x.shape[1] ** -0.5

    compiled = dynamo.compile(program, dynamic=True)
    before = metrics.snapshot()["graphs"]
    for rows in (3, 4, 5, 6):
        x = torch.randn(rows, rows + 7, dtype=torch.float64)
        torch.testing.assert_close(compiled(x), program(x))
    assert metrics.snapshot()["graphs"] - before == 1


def test_numbers_of_which_one_stays() -> None:
    def program(x: torch.Tensor, n: int, m: int, r: float) -> Any:
        return x * (n * m), x + (n + 1), x * r, torch.where(x > 0, x, m)

    compiled = dynamo.compile(program)
    for n in range(2, 6):
        x = torch.randn(4, 2)
        found, wanted = compiled(x, n, n * 3, n / 7), program(x, n, n * 3, n / 7)
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)


# Sizes that are 1 for the first tensor only, and are broadcast then.
BROADCAST = {
    "product": lambda x: x.sqrt()[: len(x) // 2] * torch.ones(2),
    "where": lambda x: torch.where(x > 0, x[: len(x) // 2], 0.0),
    "expand": lambda x: torch.cat([x.sqrt()[: len(x) // 2].expand(2), x]),
    "copy": lambda x: torch.zeros(len(x)).copy_(x[: len(x) // 2].sqrt()),
    "squeeze": lambda x: x.sqrt()[: len(x) // 2].squeeze(0) * x[:, None],
    "uneven parts": lambda x: torch.mul(*x.sqrt().tensor_split(2, 0)),
    "sum to size": lambda x: (x[: len(x) // 2] * x).sum_to_size(len(x) // 2),
}


@pytest.mark.parametrize("name", BROADCAST)
def test_a_size_that_happens_to_be_1(name: str) -> None:
    program = BROADCAST[name]
    compiled = dynamo.compile(program, dynamic=True)
    for size in (3, 2, 5, 3, 4, 7):
        x = torch.rand(size)
        try:
            wanted = program(x)
        except RuntimeError:
            with pytest.raises(RuntimeError):
                compiled(x)
            continue
        torch.testing.assert_close(compiled(x), wanted)


@pytest.mark.parametrize("count", [1, 4])
def test_a_number_that_is_1_as_a_size(count: int) -> None:
    def program(x: torch.Tensor, n: int) -> torch.Tensor:
        return x.sqrt()[:n] * torch.ones(4)

    compiled = dynamo.compile(program, dynamic=True)
    for n in (count, 1, 4):
        x = torch.rand(5)
        torch.testing.assert_close(compiled(x, n), program(x, n))


def test_a_backward_whose_sizes_are_all_fixed() -> None:
    """By the equality of two symbolic sizes: its tangents have plain sizes, what it computes has not."""
    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rows = x.shape[0]
        return x[: rows - 6].sum(0), x[: rows - 4].mean(0)

    compiled = dynamo.compile(program)
    for rows in (6, 9, 7, 12, 8, 7):
        x = torch.randn(rows, 3, requires_grad=True)
        found, wanted = compiled(x), program(x)
        torch.testing.assert_close(found, wanted)
        grads = [torch.autograd.grad((a * b.sin()).sum(), x)[0] for a, b in (found, wanted)]
        torch.testing.assert_close(*grads)
