"""The greatest of short rows on a GPU: values and places as eager has them, equal values included."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import dynamo
import inductor
from tests.gpu.support import DEVICE


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size, k", [(8, 2), (64, 6), (64, 8), (128, 8), (256, 8), (5, 1), (1024, 16), (40, 12)])
def test_values_and_places(size: int, k: int, dtype: torch.dtype) -> None:
    inductor.metrics.reset()
    for largest in (True, False):
        for ordered in (True, False):
            for x in (torch.randn(700, size, device=DEVICE), torch.randint(-3, 3, (513, size), device=DEVICE) / 2,
                      torch.zeros(3, size, device=DEVICE), torch.randn(size, device=DEVICE)):
                x = x.to(dtype)

                def program(x: Any, largest: bool = largest, ordered: bool = ordered) -> Any:
                    return torch.topk(x, k, -1, largest, ordered)

                found, wanted = dynamo.compile(program, dynamic=False)(x), program(x)
                torch.testing.assert_close(found[0], wanted[0], rtol=0, atol=0)
                assert torch.equal(found[1], wanted[1])
                dynamo.reset()
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
