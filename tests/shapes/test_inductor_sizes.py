"""The default backend on symbolic graphs: compiled for each set of sizes and numbers, up to a limit."""

from __future__ import annotations

from typing import Any

import torch

import dynamo
from inductor import metrics
from inductor.specialise import LIMIT


def scaled(x: torch.Tensor, n: Any) -> Any:
    return torch.relu(x * n) + n


def compiles() -> int:
    return metrics.snapshot()["sizes_compiled"]


def test_numbers_are_never_mixed_up() -> None:
    compiled, x = dynamo.compile(scaled), torch.randn(5, 3)
    before = compiles()
    for n in (2, 3, 2, 3, 4, 4):
        torch.testing.assert_close(compiled(x, n), scaled(x, n), rtol=0, atol=0)
    assert compiles() - before == 3
    for n in (0.0, -0.0, 1.0, -0.0):
        torch.testing.assert_close(1 / compiled(x, n), 1 / scaled(x, n), rtol=0, atol=0)


def test_limit() -> None:
    compiled, x = dynamo.compile(scaled), torch.randn(5, 3)
    before, frames = compiles(), dynamo.counters["stats"]["frames"]
    for n in range(LIMIT + 6):
        torch.testing.assert_close(compiled(x, n), scaled(x, n), rtol=0, atol=0)
    assert compiles() - before == LIMIT
    assert dynamo.counters["stats"]["frames"] - frames == 2


def test_gradients_by_number() -> None:
    compiled = dynamo.compile(lambda x, n: (x.sin() * n).sum())
    for n in (2, 3, 5, 7, 3):
        x = torch.randn(4, dtype=torch.float64, requires_grad=True)
        compiled(x, n).backward()
        torch.testing.assert_close(x.grad, x.detach().cos() * n)
