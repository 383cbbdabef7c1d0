"""Additions at computed places, against eager in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import dynamo
from inductor import metrics

Tensor = torch.Tensor
ROWS = torch.tensor([0, 3, 3, -1, 2, 3])


def rows(x: Tensor, y: Tensor) -> Tensor:
    return x.index_put((ROWS,), y[:6] * 2, accumulate=True)


def columns(x: Tensor, y: Tensor) -> Tensor:
    return torch.ops.aten.index_put(x, [None, ROWS], y[:, :6], True)


def elements(x: Tensor, y: Tensor) -> Tensor:
    return x.index_put((ROWS[:, None], ROWS[:4].abs()), y[:6, :4], accumulate=True)


def one_number(x: Tensor, y: Tensor) -> Tensor:
    return x.index_put((ROWS, ROWS.flip(0)), y[0, 0], accumulate=True)


def in_place(x: Tensor, y: Tensor) -> Tensor:
    z = x.t() + 1
    z.index_put_((ROWS,), y[:6], accumulate=True)
    return z * y


def index_add(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    at = ROWS.clamp(0)
    doubled = x.index_add(0, at, y[:6], alpha=2)
    return x.index_add(0, at, y[:6]), x.t().index_add(-1, at, y[:, :6]), doubled


def scatter_add(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    at = (y.abs() * 2).long().clamp(0, 7)
    return x.scatter_add(0, at, y), x.scatter_add(1, at[:5, :3], y), x.scatter_add(1, at, y.sin())


def whole_numbers(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    a, b = (x * 9).long(), (y * 9).int()
    return a.index_put((ROWS,), b[:6].long(), accumulate=True), b.index_add(0, ROWS.abs(), b[:6])


def halves(x: Tensor, y: Tensor) -> Tensor:
    return x.bfloat16().index_put((ROWS,), y[:6].bfloat16(), accumulate=True)


def gradients(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return F.embedding(ROWS.clamp(0), x).sin().sum(), x[ROWS, ROWS.abs()].exp().sum(), x.gather(
        1, ROWS.abs()[None].expand(8, -1)).square().sum()


PROGRAMS: list[Callable[..., Any]] = [
    rows, columns, elements, one_number, in_place, index_add, scatter_add, whole_numbers, halves,
]


def flat(value: Any) -> list[Tensor]:
    return list(value) if isinstance(value, tuple) else [value]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_additions(program: Callable[..., Any]) -> None:
    compiled = dynamo.compile(program, backend="inductor")
    for _ in range(2):
        x, y = torch.randn(8, 8), torch.randn(8, 8)
        for want, got in zip(flat(program(x, y)), flat(compiled(x, y)), strict=True):
            torch.testing.assert_close(got, want)
            assert got.stride() == want.stride()


def test_gradients() -> None:
    before = metrics.fallbacks().get("aten.index_put.default", 0)
    compiled = dynamo.compile(gradients, backend="inductor")
    x, y = torch.randn(8, 8), torch.randn(8, 8)
    wide, mine = x.double().requires_grad_(), x.clone().requires_grad_()
    sum(gradients(wide, y)).backward()
    sum(compiled(mine, y)).backward()
    torch.testing.assert_close(mine.grad.double(), wide.grad, rtol=1e-5, atol=1e-5)
    assert metrics.fallbacks().get("aten.index_put.default", 0) == before


def test_many_values_at_few_places_in_threads() -> None:
    """Threads must not meet at one element."""
    at, values = torch.randint(0, 3, (20000,)), torch.randn(20000, 64)
    compiled = dynamo.compile(lambda v: torch.zeros(3, 64).index_add(0, at, v), backend="inductor")
    exact = torch.zeros(3, 64, dtype=torch.float64).index_add(0, at, values.double())
    torch.testing.assert_close(compiled(values).double(), exact, rtol=1e-4, atol=1e-3)


def test_additions_within_rows_keep_their_order_in_threads() -> None:
    """Rows are shared out, and each is walked as eager walks it: no bit differs."""
    at, values = torch.randint(0, 16, (40, 96)), torch.randn(24, 40, 96)

    def program(v: Tensor) -> Tensor:
        return v.new_zeros(24, 40, 16).scatter_add(-1, at.expand(24, 40, 96), v)

    compiled = dynamo.compile(program, backend="inductor")
    for scale in (1.0, 3.0):
        assert torch.equal(compiled(values * scale), program(values * scale))


def test_additions_along_the_middle_axis() -> None:
    at, values = torch.randint(0, 9, (33, 24, 40)), torch.randn(33, 24, 40)
    compiled = dynamo.compile(lambda x, v: x.scatter_add(1, at, v), backend="inductor")
    x = torch.randn(33, 9, 40)
    exact = x.double().scatter_add(1, at, values.double())
    torch.testing.assert_close(compiled(x, values).double(), exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("bad", [8, -9])
def test_places_outside(bad: int) -> None:
    compiled = dynamo.compile(
        lambda x, at: x.index_put((at,), x[:2], accumulate=True), backend="inductor"
    )
    x = torch.randn(8, 8)
    with pytest.raises(IndexError):
        compiled(x, torch.tensor([0, bad]))


def test_one_number_at_many_places() -> None:
    def program(i: Tensor, j: Tensor, x: Tensor) -> tuple[Tensor, ...]:
        kept = x.clone()
        kept.scatter_(1, i, float("-inf"))
        return (
            torch.zeros(5, 7).scatter_(1, i, 1.0), torch.zeros(5, 7, dtype=torch.bool).scatter_(1, i, True),
            torch.ones(5, 7, dtype=torch.int32).scatter_(0, j, -3), torch.zeros_like(x).scatter(1, i, 2.5) * 2, kept,
            torch.zeros(5, 7, dtype=torch.int64).scatter_(1, i, 1.5),
        )  # fmt: skip

    compiled = dynamo.compile(program)
    i, j = torch.randint(0, 7, (5, 3)), torch.randint(0, 5, (2, 7))
    metrics.reset()
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.randn(5, 7, dtype=dtype)
        for found, wanted in zip(compiled(i, j, x), program(i, j, x), strict=True):
            torch.testing.assert_close(found, wanted, rtol=0, atol=0)
    assert not metrics.fallbacks()
    for bad in (7, -1):
        i[1, 1] = bad
        with pytest.raises(RuntimeError, match=f"index {bad} is out of bounds for dimension 1 with size 7"):
            compiled(i, j, x)
