"""The greatest of few long rows by their kernels in Triton's interpreter (`TRITON_INTERPRET=1`)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from inductor.kernels.gpu import long_topk
from inductor.kernels.gpu.long_topk import DTYPES, LongTopkCall, prepare


@pytest.fixture(autouse=True)
def few_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a row of some hundred elements has many programs: the interpreter is slow."""
    monkeypatch.setattr(long_topk, "LEAST_GROUPS", 32)
    monkeypatch.setattr(long_topk, "ENOUGH_PROGRAMS", 2)
    monkeypatch.setattr(long_topk, "TILE", 64)


def check(x: torch.Tensor, k: int) -> None:
    """Values as ATen has them, and the places of a stable sort."""
    for largest in (True, False):
        values, places = LongTopkCall()(x, k, largest)
        wanted = torch.topk(x, k, -1, largest)[0]
        torch.testing.assert_close(values, wanted, rtol=0, atol=0, equal_nan=True)
        assert values.is_contiguous() and places.is_contiguous() and places.dtype is torch.int64
        y = x + 0 if x.is_floating_point() else x  # zeros of either sign are in the order of keys
        picked = y.gather(-1, places)
        torch.testing.assert_close(picked, values, rtol=0, atol=0, equal_nan=True)
        assert all(len(set(row)) == k for row in places.reshape(-1, k).tolist())
        equal = values[..., 1:] == values[..., :-1]
        equal &= torch.signbit(values[..., 1:]) == torch.signbit(values[..., :-1])
        assert bool((places[..., 1:] > places[..., :-1])[equal].all()), "the first comes first"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size, k", [(64, 1), (301, 20)])
def test_dtypes(size: int, k: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    if dtype.is_floating_point:
        check(torch.randn(2, size).to(dtype), k)
    else:
        least = 0 if dtype is torch.uint8 else -100
        check(torch.randint(least, 100, (2, size)).to(dtype), k)


@pytest.mark.parametrize("k", [30])
def test_whole_range_of_integers(k: int) -> None:
    x = torch.randint(-2**31, 2**31 - 1, (2, 256)).int()
    x[0, 7], x[1, 9] = -2**31, 2**31 - 1
    check(x, k)


def halves(x: torch.Tensor) -> torch.Tensor:
    x[:, : x.shape[1] // 2] = -torch.inf
    return x


def columns(x: torch.Tensor) -> torch.Tensor:
    """All that is great is in a few columns of the matrix that a row is for the kernels."""
    x[:, 5::32] += 100
    x[:, 6::32] -= 100
    return x


ROWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "zeros": torch.zeros_like,
    "zeros of two signs": lambda x: x.sign() * 0,
    "steps": lambda x: (x * 2).round() / 2,
    "ascending": lambda x: x.sort(-1)[0],
    "descending": lambda x: x.sort(-1, descending=True)[0],
    "columns": columns,
    "one greater": lambda x: torch.zeros_like(x).index_fill_(-1, torch.tensor(x.shape[-1] - 1), 1),
    "all infinite": lambda x: torch.full_like(x, -torch.inf),
    "half infinite": halves,
    "NaN": lambda x: torch.full_like(x, torch.nan),
    "some NaN": lambda x: torch.where(x > 1, torch.nan, x),
    "few numbers": lambda x: torch.where(x > 2.5, x, -torch.inf),
    "tiny": lambda x: x * 1e-40,
    "huge": lambda x: x * 3e38,
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_rows(name: str) -> None:
    torch.manual_seed(1)
    x = ROWS[name](torch.randn(1, 307))
    check(x, 8)
    check(x.bfloat16(), 3)


def test_other_forms() -> None:
    torch.manual_seed(2)
    x = torch.randn(300, 3, 2)
    for given in (x.permute(2, 1, 0), x[:, 0, 0], x[:, 1].t(), x.permute(1, 2, 0)[:, ::2, 50:]):
        found, wanted = LongTopkCall()(given, 9, True), torch.topk(given, 9)
        torch.testing.assert_close(found, tuple(wanted), rtol=0, atol=0)


def test_whole_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    torch.manual_seed(3)
    x = torch.randn(1, 12001, dtype=torch.bfloat16)
    values, places = LongTopkCall()(x, 200, True)
    torch.testing.assert_close(values, torch.topk(x, 200)[0], rtol=0, atol=0)
    torch.testing.assert_close(x.gather(1, places), values, rtol=0, atol=0)


def test_space_suffices() -> None:
    """All that can be collected is: what is great fills as many columns as a limit leaves."""
    size, k, groups, depth = 256, 8, 32, 8
    enough = k + k // 4 + 4
    x = torch.randn(1, size)
    x.view(depth, groups)[:, :enough] += 100
    calls, _ = prepare(x, k, True)
    assert calls.space().numel() == groups + enough * depth + 1
    check(x, k)
