"""Results of a graph that ATen's kernels give as views may be written into, as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import dynamo

ENDS_IN_A_VIEW: dict[str, Callable[[Any], Any]] = {
    "adaptive_avg_pool1d": lambda x: F.adaptive_avg_pool1d(x[None], 2),
    "max_pool1d": lambda x: F.max_pool1d(x[None], 2),
    "conv1d": lambda x: F.conv1d(x, torch.ones(2, 3, 2)),
    "einsum": lambda x: torch.einsum("ij,ik->jk", x, x),
    "tensordot": lambda x: torch.tensordot(x, x, ([1], [1])),
    "transposed": lambda x: (x * 2).t(),
    "transposed, saved by backward": lambda x: x.exp().t(),
    "flattened": lambda x: (x * 2).flatten(),
    "diagonal": lambda x: (x * 2).diagonal(),
}


@pytest.mark.parametrize("backend", ("aot_eager", "inductor"))
@pytest.mark.parametrize("name", ENDS_IN_A_VIEW)
def test_a_result_is_written_into(name: str, backend: str) -> None:
    action = ENDS_IN_A_VIEW[name]

    def f(x: Any) -> Any:
        y = action(x)
        dynamo.graph_break()
        with torch.no_grad():
            y.add_(1)
        return y * 3

    def g(x: Any) -> Any:
        return action(x) * 3 + 3

    x = torch.randn(3, 4, requires_grad=True)
    y = dynamo.compile(f, backend=backend)(x)
    torch.testing.assert_close(y, g(x))
    [got] = torch.autograd.grad(y.sum(), x)
    [expected] = torch.autograd.grad(g(x).sum(), x)
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("backend", ("aot_eager", "inductor"))
def test_a_factor_with_a_gradient_is_written_into_a_result(backend: str) -> None:
    def f(x: Any, w: Any) -> Any:
        y = F.adaptive_avg_pool1d(x[None] * 2, 2)
        dynamo.graph_break()
        return y.mul_(w)

    x, w = torch.randn(3, 4, requires_grad=True), torch.tensor(3.0, requires_grad=True)
    compiled = dynamo.compile(f, backend=backend)
    found = [torch.autograd.grad(g(x, w).sum(), (x, w)) for g in (f, compiled)]
    torch.testing.assert_close(*found)
