"""Writes into results whose memory has another order than rows: eager keeps the order, where the
functional form of the operation gives rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynamo
from tests.aot.compare import check

AT = torch.tensor([0, 2])
PLACES = torch.randint(0, 6, (8, 6))
ONES = torch.ones(8, 6)

WRITES: dict[str, Callable[[torch.Tensor], Any]] = {
    "scatter": lambda z: z.scatter_(0, PLACES, 1.0),
    "scatter_add": lambda z: z.scatter_add_(0, PLACES, ONES),
    "scatter_reduce": lambda z: z.scatter_reduce_(0, PLACES, ONES, "amax"),
    "index_add": lambda z: z.index_add_(0, AT, ONES[:2]),
    "index_copy": lambda z: z.index_copy_(0, AT, ONES[:2]),
    "masked_fill": lambda z: z.masked_fill_(z > 0, -torch.inf),
    "masked_scatter": lambda z: z.masked_scatter_(z > 0, ONES),
    "cumsum": lambda z: z.cumsum_(0),
    "tril": lambda z: z.tril_(),
    "renorm": lambda z: z.renorm_(2, 0, 1.0),
}


def fresh() -> tuple[torch.Tensor, ...]:
    return (torch.randn(6, 8),)


@pytest.mark.parametrize("name", WRITES)
def test_a_transposed_result(name: str) -> None:
    def f(x: torch.Tensor) -> Any:
        z = (x * 2).t()
        WRITES[name](z)
        return z, z.reshape(-1) + 1, z.stride()

    dynamo.counters.clear()
    check(f, dynamo.compile(f, fullgraph=True), fresh, views=False, exact=name != "renorm")
    assert not dynamo.counters["not_compiled"]


def test_the_base_and_another_view_see_the_write() -> None:
    def f(x: torch.Tensor) -> Any:
        base = x * 2
        row, z = base[1], base.t()
        z.masked_fill_(z > 0, 5.0)
        z[:4].scatter_(0, PLACES[:4] % 4, 1.0)
        return base, row.sum(), z

    dynamo.counters.clear()
    check(f, dynamo.compile(f, fullgraph=True), fresh, exact=False)
    assert not dynamo.counters["not_compiled"]


def test_a_permuted_image() -> None:
    """What it is viewed as later depends on the order in memory."""
    def f(x: torch.Tensor) -> Any:
        z = (x + 1).permute(0, 3, 1, 2)
        z.index_fill_(1, AT, 0.0).tril_()
        return z, z.permute(0, 2, 3, 1).view(2, -1), z.is_contiguous()

    dynamo.counters.clear()
    check(f, dynamo.compile(f, fullgraph=True), lambda: (torch.randn(2, 4, 5, 3),))
    assert not dynamo.counters["not_compiled"]


def test_scores_of_attention_are_trained() -> None:
    def f(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        scores = torch.einsum("bqd,bkd->bkq", q, k).transpose(1, 2) * 0.5
        scores.masked_fill_(torch.ones(5, 5, dtype=torch.bool).triu(1), -torch.inf)
        return scores.softmax(-1).square().sum()

    compiled = dynamo.compile(f, fullgraph=True)
    dynamo.counters.clear()
    inputs = [torch.randn(2, 5, 4, requires_grad=True) for _ in range(2)]
    expected = torch.autograd.grad(f(*inputs), inputs)
    torch.testing.assert_close(torch.autograd.grad(compiled(*inputs), inputs), expected)
    assert not dynamo.counters["not_compiled"]


def test_sizes_that_change() -> None:
    def f(x: torch.Tensor) -> Any:
        z = (x * 2).t()
        return z.masked_fill_(z > 0, 1.0).cumsum_(0), z.stride()

    compiled = dynamo.compile(f, fullgraph=True, dynamic=True)
    dynamo.counters.clear()
    for rows in (3, 7, 12):
        x = torch.randn(rows, 5)
        (ours, steps), (eagers, expected) = compiled(x), f(x)
        torch.testing.assert_close(ours, eagers)
        assert ours.stride() == eagers.stride() and steps == expected
    assert not dynamo.counters["not_compiled"]


def test_an_extent_of_one() -> None:
    """Two strides are equal there."""
    def f(x: torch.Tensor) -> Any:
        z = (x * 2).reshape(6, 8, -1).movedim(1, -1)
        return z.scatter_(-1, torch.zeros(6, 1, 2, dtype=torch.int64), 1.0), z.stride()

    dynamo.counters.clear()
    check(f, dynamo.compile(f, fullgraph=True), fresh, views=False)
    assert not dynamo.counters["not_compiled"]
