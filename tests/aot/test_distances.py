"""`torch.cdist` of many rows: a GEMM and what stands around it, as ATen computes it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

import dynamo
from dynamo.aot.decompositions import euclidean_dist
from dynamo.testing import assert_compiled
from inductor import metrics

SIZES = {"plain": ((40, 17), (60, 17)), "batches": ((2, 30, 6), (2, 50, 6)), "broadcast": ((3, 1, 33, 5), (2, 26, 5)),
         "one column": ((64, 1), (64, 1)), "few rows": ((4, 7), (5, 7)), "no rows": ((0, 7), (30, 7))}  # fmt: skip


def step(x: Tensor, y: Tensor) -> Any:
    found = torch.cdist(x, y)
    return found, found.argmin(-1) if found.numel() else found


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", SIZES)
def test_equals_eager(name: str, dtype: torch.dtype, backend: str) -> None:
    results = []
    for call in (step, dynamo.compile(step, backend=backend, fullgraph=True)):
        torch.manual_seed(0)
        x, y = (torch.randn(size, dtype=dtype, requires_grad=True) for size in SIZES[name])
        found, nearest = call(x, y)
        found.square().sum().backward()
        results.append((found.detach(), nearest, x.grad, y.grad))
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-4)
    assert_compiled()


def test_no_call_of_it_is_left() -> None:
    metrics.reset()
    torch.testing.assert_close(
        dynamo.compile(torch.cdist)(torch.ones(40, 8), torch.zeros(30, 8)), torch.full((40, 30), 8.0).sqrt())
    assert not metrics.fallbacks()


def test_zero_distances_have_no_gradient() -> None:
    for call in (torch.cdist, dynamo.compile(torch.cdist)):
        x = torch.ones(40, 4, requires_grad=True)
        call(x, x.detach()).sum().backward()
        assert torch.equal(x.grad, torch.zeros(40, 4))


@pytest.mark.parametrize("columns", [4, 254, 256])
def test_rows_of_a_gpu_begin_at_whole_words(columns: int) -> None:
    x = torch.empty(40, columns, device="meta")
    graph = make_fx(euclidean_dist)(x, x)
    (gemm,) = [node for node in graph.graph.nodes if node.target is torch.ops.aten.mm.default]
    assert gemm.args[0].meta["val"].shape[1] == -(-(columns + 2) // 4) * 4
