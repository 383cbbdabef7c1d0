"""Whole programs with gradients through `dynamo.compile`: one library for each half, all sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import dynamo
from inductor import metrics
from tests.parametrize import long_where

SIZES = ((5, 11), (3, 17), (2, 9), (7, 4), (4, 31), (6, 6), (16, 64), (2, 129))
R = torch.randn


def attention(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    b, n, _ = x.shape
    q, k, v = (x @ w).view(b, n, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
    scores = (q @ k.transpose(-1, -2) / 2).masked_fill(torch.ones(n, n).tril() == 0, -1e9)
    return (scores.softmax(-1) @ v).transpose(1, 2).reshape(b, n, 8)


def block(x: torch.Tensor, w: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    y = F.layer_norm(x + F.gelu(x @ w), (8,), g)
    return F.log_softmax(y, -1).mean((0, 1)) * y.size(1)


def rotary(x: torch.Tensor) -> torch.Tensor:
    half = x.size(-1) // 2
    angle = torch.arange(x.size(1))[:, None] * 0.1
    turned = torch.cat((-x[..., half:], x[..., :half]), -1)
    return x * angle.cos() + turned * angle.sin()


PROGRAMS: dict[str, tuple[Callable[..., Any], Callable[[int, int], list[Any]]]] = {
    "attention": (attention, lambda b, n: [R(b, n, 8), R(8, 24)]),
    "block": (block, lambda b, n: [R(b, n, 8), R(8, 8), R(8)]),
    "rotary": (rotary, lambda b, n: [R(b, n, 8)]),
    "variance": (lambda x: (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True),
                 lambda b, n: [R(b, n)]),
    "columns": (lambda x, y: ((x * y).sum(0), x.amax(0), (x + y).mean()),
                lambda b, n: [R(b, n), R(n)]),
    "embedding": (lambda w, i: F.embedding(i, w).tanh().sum(1),
                  lambda b, n: [R(13, 6), torch.randint(13, (b, n))]),
    "cross entropy": (lambda x, i: F.cross_entropy(x.flatten(0, 1), i.flatten()),
                      lambda b, n: [R(b, n, 10), torch.randint(10, (b, n))]),
    "joined": (lambda x, y: torch.cat((x[:, 1:], y), 1).softmax(1) * 2,
               lambda b, n: [R(b, n), R(b, n + 2)]),
    "number": (lambda x, k: (x * k).sin().sum(1) / (k + x.size(0)), lambda b, n: [R(b, n), b + n]),
}  # fmt: skip


def run(function: Callable[..., Any], inputs: list[Any]) -> list[torch.Tensor]:
    """Results and gradients."""
    given = [x.clone().requires_grad_() if is_float(x) else x for x in inputs]
    results = function(*given)
    results = list(results) if isinstance(results, tuple) else [results]
    numbers = torch.Generator().manual_seed(0)
    sum((r * torch.randn(r.shape, generator=numbers)).sum() for r in results).backward()
    return [*results, *(x.grad for x in given if is_float(x))]


def is_float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


# "block" has the operators of attention, "cross entropy" the columns of "columns".
@pytest.mark.parametrize("name", long_where(PROGRAMS, ("attention", "rotary", "columns", "variance")))
def test_values_and_gradients(name: str) -> None:
    program, make = PROGRAMS[name]
    compiled = dynamo.compile(program, dynamic=True)
    before = metrics.snapshot()
    for size in SIZES:
        inputs = make(*size)
        wide = [x.double() if is_float(x) else x for x in inputs]
        for ours, exact in zip(run(compiled, inputs), run(program, wide), strict=True):
            assert ours.dtype == torch.float32 and ours.shape == exact.shape, size
            torch.testing.assert_close(ours.double(), exact, rtol=1e-4, atol=1e-4)
    after = metrics.snapshot()
    assert after["symbolic_graphs"] - before["symbolic_graphs"] == 1
    assert after["sizes_compiled"] == before["sizes_compiled"]
    libraries = [after[name] - before[name] for name in ("libraries_built", "libraries_reused")]
    assert sum(libraries) == 2  # forward and backward
    assert after["sizes_bound"] - before["sizes_bound"] == 2 * len(SIZES)


def several(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    h = (x @ w).relu()
    return h.sin(), (y * h.sum(0)).log().sum(1), (x * y[: x.size(0)]).exp().sum(), y[1:] * 2


@pytest.mark.parametrize("used", long_where([(0,), (1,), (2,), (3,), (0, 2)], [(0,), (2,)]))
def test_an_unused_output_counts_for_nothing(used: tuple[int, ...]) -> None:
    compiled = dynamo.compile(several, dynamic=True)
    for n, m in ((5, 7), (3, 9), (6, 8)):
        inputs = [torch.randn(*size, dtype=torch.float64, requires_grad=True)
                  for size in ((n, 4), (m, 4), (4, 4))]  # fmt: skip
        found, wanted = (
            torch.autograd.grad(sum(f(*inputs)[at].pow(2).sum() for at in used), inputs,
                                allow_unused=True)
            for f in (compiled, several)
        )  # fmt: skip
        torch.testing.assert_close(found, wanted, equal_nan=True)
