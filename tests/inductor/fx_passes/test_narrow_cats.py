"""What is joined and then made narrower is joined in the narrow dtype."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

import dynamo
from inductor.fx_passes.narrow_cats import convert_before_joining

aten = torch.ops.aten


def chunks(x: Tensor) -> Tensor:
    a, b, c = x.float().chunk(3, -1)
    return (torch.softmax(a, -1) * b.exp() * c.tanh()).sum()


def sections(x: Tensor) -> Tensor:
    a, b = x.float().split([10, 14], 1)
    return a.square().sum() + b.sin().sum()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("program", [chunks, sections])
def test_gradients(program: Callable[[Tensor], Tensor], dtype: torch.dtype) -> None:
    x = torch.randn(6, 24, dtype=dtype, requires_grad=True)
    wanted, = torch.autograd.grad(program(x), x)
    found, = torch.autograd.grad(dynamo.compile(program, fullgraph=True)(x), x)
    assert found.dtype is dtype and found.stride() == wanted.stride()
    torch.testing.assert_close(found, wanted)


def joined(a: Tensor, b: Tensor) -> Any:
    return torch.cat([a.sin(), b], 1).to(torch.float16)


def used_twice(a: Tensor, b: Tensor) -> Any:
    both = torch.cat([a, b], 1)
    return both.to(torch.float16), both.sum()


def widened(a: Tensor, b: Tensor) -> Any:
    return torch.cat([a, b], 1).to(torch.float64)


def whole_numbers(a: Tensor, b: Tensor) -> Any:
    return torch.cat([a, b], 1).to(torch.int8)


@pytest.mark.parametrize("program, changes", [(joined, True), (used_twice, False), (widened, False), (whole_numbers, False)])
def test_which(program: Callable[[Tensor, Tensor], Any], changes: bool) -> None:
    a, b = torch.randn(3, 4), torch.randn(3, 5)
    graph = make_fx(program, tracing_mode="fake")(a, b)
    before = graph.code
    graph = convert_before_joining(graph)
    (cat,) = graph.graph.find_nodes(op="call_function", target=aten.cat.default)
    assert (cat.meta["val"].dtype is torch.float16) == changes == (graph.code != before)
    torch.testing.assert_close(graph(a, b), program(a, b))
