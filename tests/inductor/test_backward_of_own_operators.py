"""An operator of the program whose backward looks at values runs as it is; what is around it is compiled."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import dynamo
from inductor import metrics


@pytest.fixture
def grouped() -> Any:
    """Rows of x times the matrix of their group; backward asks where the groups end."""
    with torch.library._scoped_library("grouped_rows", "DEF"):

        @torch.library.custom_op("grouped_rows::product", mutates_args=())
        def product(x: torch.Tensor, w: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
            out, start = torch.zeros(len(x), w.shape[2], dtype=x.dtype), 0
            for group, end in enumerate(ends.tolist()):
                out[start:end] = x[start:end] @ w[group]
                start = end
            return out

        @product.register_fake
        def _(x: torch.Tensor, w: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
            return x.new_empty(x.shape[0], w.shape[2])

        def setup(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.save_for_backward(inputs[0], inputs[1])
            ctx.ends = inputs[2]

        def backward(ctx: Any, grad: torch.Tensor) -> Any:
            x, w = ctx.saved_tensors
            dx, dw, start = torch.zeros_like(x), torch.zeros_like(w), 0
            for group, end in enumerate(ctx.ends.tolist()):
                dx[start:end] = grad[start:end] @ w[group].T
                dw[group] = x[start:end].T @ grad[start:end]
                start = end
            return dx, dw, None

        product.register_autograd(backward, setup_context=setup)
        yield product


@pytest.mark.parametrize("dynamic", [False, True])
def test_backward_that_looks_at_values(grouped: Any, dynamic: bool) -> None:
    dynamo.reset()
    dynamo.counters.clear()
    before = metrics.snapshot()["kernels"]

    def program(x: torch.Tensor, w: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        return grouped(x.sin() * 2, w.cos(), ends).tanh().square()

    compiled = dynamo.compile(program, fullgraph=True, dynamic=dynamic)
    for rows in (6, 6, 9):
        ends = torch.tensor([2, 3, rows])
        given = [torch.randn(rows, 4, requires_grad=True), torch.randn(3, 4, 5, requires_grad=True)]
        twins = [x.detach().clone().requires_grad_() for x in given]
        found, wanted = compiled(*given, ends), program(*twins, ends)
        torch.testing.assert_close(found, wanted)
        found.sum().backward()
        wanted.sum().backward()
        for one, other in zip(given, twins, strict=True):
            torch.testing.assert_close(one.grad, other.grad)
    assert not dynamo.counters["not_compiled"]
    assert metrics.snapshot()["kernels"] >= before + 3  # before it, behind it, and backward
