"""Reductions of rows of any length: the rest behind the last whole vector, NaN, and long sums."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynamo
from inductor.driver.from_aten import compile_aten
from tests.inductor.symbolic.for_all_sizes import capture

LENGTHS = (2, 15, 16, 17, 31, 33, 40, 48, 1023, 1025, 4096, 4097, 9000)
SPECIAL = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0])


def masked(x: torch.Tensor) -> torch.Tensor:
    n = x.size(-1)
    hidden = torch.ones(x.size(0), n, dtype=torch.bool).tril(n // 2).logical_not()
    return x.masked_fill(hidden, -float("inf")).softmax(-1)


PROGRAMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "extremes": lambda x: (x.amax(-1), x.amin(-1), (x * 2).argmax(-1), x.argmin(-1)),
    "sums": lambda x: (x.sum(-1), (x.exp() + 1).mean(-1), (x > 0).any(-1), (x < 9).all(-1)),
    "products": lambda x: ((x * 0.01 + 1).prod(-1), x.to(torch.int32).sum(-1)),
    "division": lambda x: ((x.to(torch.int64) // 3).sum(-1), (5 / (x.abs() + 1)).amax(-1)),
    "softmax": lambda x: (masked(x), x.log_softmax(-1)),
    "moments": lambda x: (torch.nn.functional.layer_norm(x, x.shape[-1:]), x.var(-1)),
}


@pytest.mark.parametrize("first", [40, 200])  # short rows have code of their own
@pytest.mark.parametrize("name", PROGRAMS)
def test_rows(name: str, first: int) -> None:
    program = PROGRAMS[name]
    compiled = compile_aten(capture(program, [torch.randn(5, first)]), [])
    torch.manual_seed(first)  # a sum of thousands may by chance be nearly nothing
    for length in LENGTHS:
        x = torch.randn(3, length)
        found, wanted = compiled(x), program(x.double())
        for ours, exact in zip(found, wanted, strict=True):
            assert ours.shape == exact.shape
            torch.testing.assert_close(ours.to(exact.dtype), exact, rtol=2e-5, atol=2e-5)


def test_special_values() -> None:
    program = PROGRAMS["extremes"]
    compiled = compile_aten(capture(program, [torch.randn(5, 40)]), [])
    for length in LENGTHS[:7]:
        for value in SPECIAL:
            for at in range(length):
                x = torch.randn(2, length)
                x[:, at] = value
                torch.testing.assert_close(
                    compiled(x)[:2], program(x)[:2], rtol=0, atol=0, equal_nan=True)


TURNED: dict[str, Callable[[torch.Tensor], Any]] = {
    "turned": lambda x: (x.t() * 2).contiguous(),
    "turned and straight": lambda x: x.reshape(-1)[: x.size(1) ** 2].view(x.size(1), -1).t() + 1,
    "batches": lambda x: (torch.stack([x, -x]).transpose(1, 2) + 1).contiguous(),
}
EDGES = (15, 16, 17, 63, 64, 65, 81)


@pytest.mark.parametrize("name", TURNED)
def test_tiles_at_the_edge(name: str) -> None:
    """A transposition walks square tiles, whole ones and those that are cut off."""
    program = TURNED[name]
    compiled = compile_aten(capture(program, [torch.randn(82, 70)]), [])
    for rows in EDGES:
        for columns in EDGES:
            x = torch.randn(max(rows, columns) if "straight" in name else rows, columns)
            torch.testing.assert_close(compiled(x)[0], program(x), rtol=0, atol=0)


@pytest.mark.parametrize("rows", [80, 65])
def test_tiles_of_known_sizes(rows: int) -> None:
    x = torch.randn(rows, 81)
    compiled = dynamo.compile(TURNED["turned"], dynamic=False)
    torch.testing.assert_close(compiled(x), TURNED["turned"](x), rtol=0, atol=0)
