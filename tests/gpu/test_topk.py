"""The greatest of short rows on a GPU: values and places as eager has them, equal values included."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import dynamo
import inductor
from tests.gpu.support import DEVICE


@pytest.mark.parametrize("size, k, dtype", [
    (8, 2, torch.float32), (64, 6, torch.bfloat16), (64, 8, torch.float32), (128, 8, torch.float16), (256, 8, torch.float32),
    (5, 1, torch.bfloat16), (1024, 8, torch.float32), (40, 7, torch.bfloat16),
])  # fmt: skip
def test_values_and_places(size: int, k: int, dtype: torch.dtype) -> None:
    def program(*given: Any) -> Any:
        return [part for x in given for largest in (True, False) for ordered in (True, False)
                for part in torch.topk(x, k, -1, largest, ordered)]

    inductor.metrics.reset()
    inputs = [x.to(dtype) for x in (
        torch.randn(700, size, device=DEVICE), torch.randint(-3, 3, (513, size), device=DEVICE) / 2,
        torch.zeros(3, size, device=DEVICE), torch.randn(size, device=DEVICE))]
    for found, wanted in zip(dynamo.compile(program, dynamic=False)(*inputs), program(*inputs), strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)
    assert not inductor.metrics.fallbacks()


@pytest.mark.parametrize("rows, size, k, dtype", [
    (1, 128256, 200, torch.bfloat16), (8, 32000, 50, torch.float32), (64, 4096, 8, torch.float16), (2, 1 << 20, 1024, torch.float32),
    (3, 50257, 1, torch.float32), (4, 9001, 1000, torch.int32),
])  # fmt: skip
def test_few_long_rows(rows: int, size: int, k: int, dtype: torch.dtype) -> None:
    def program(*given: Any) -> Any:
        return [part for x in given for largest in (True, False) for part in torch.topk(x, k, -1, largest)]

    inductor.metrics.reset()
    x = torch.randn(rows, size, device=DEVICE)
    some = torch.where(x > 1, torch.nan, x) if dtype.is_floating_point else x * 1e9
    inputs = [each.to(dtype) for each in (x * 3, x.sort(-1)[0] * 9, torch.zeros_like(x), some)]
    compiled = dynamo.compile(program, dynamic=False)
    for _ in range(2):
        found, wanted = compiled(*inputs), program(*inputs)
        for values, places, right, source in zip(
            found[::2], found[1::2], wanted[::2], [each for each in inputs for _ in range(2)], strict=True
        ):
            torch.testing.assert_close(values, right, rtol=0, atol=0, equal_nan=True)
            torch.testing.assert_close(source.gather(-1, places), values, rtol=0, atol=0, equal_nan=True)
            assert bool((places.sort(-1)[0].diff(dim=-1) > 0).all()), "no place comes twice"
    assert not inductor.metrics.fallbacks()


@pytest.mark.parametrize("tokens, experts, k", [(2048, 8, 2), (1000, 64, 8), (8192, 128, 4)])
def test_sorted_experts(tokens: int, experts: int, k: int) -> None:
    def program(z: Any) -> Any:
        chosen = torch.topk(z, k, -1)[1].reshape(-1)
        return *torch.sort(chosen), *torch.sort(chosen.int(), stable=True)

    inductor.metrics.reset()
    compiled = dynamo.compile(program, dynamic=False)
    for z in (torch.randn(tokens, experts, device=DEVICE), torch.zeros(tokens, experts, device=DEVICE)):
        for found, wanted in zip(compiled(z), program(z), strict=True):
            torch.testing.assert_close(found, wanted, rtol=0, atol=0)
    assert not {name for name in inductor.metrics.fallbacks() if "sort" in name}
