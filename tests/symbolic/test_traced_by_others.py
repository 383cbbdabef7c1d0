"""Compiled functions inside of torch's own tracers: these record the operations, not the calls."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

import dynamo


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("used", [False, True])
def test_jit_trace(backend: str, used: bool) -> None:
    module = nn.Sequential(nn.Linear(4, 3), nn.GELU())
    compiled = dynamo.compile(module, backend=backend)
    if used:
        compiled(torch.randn(2, 4))
    traced = torch.jit.trace(compiled, torch.randn(2, 4), check_trace=False)
    x = torch.randn(5, 4)
    torch.testing.assert_close(traced(x), module(x))
    assert "gelu" in str(traced.inlined_graph)
    torch.testing.assert_close(compiled(x), module(x))


def test_jit_trace_of_a_function_with_a_compiled_one_in_it() -> None:
    inner = dynamo.compile(lambda x: x.sin() * 2, backend="eager")
    inner(torch.randn(3))
    traced = torch.jit.trace(lambda x: inner(x) + 1, torch.randn(3))
    x = torch.randn(4)
    assert torch.equal(traced(x), x.sin() * 2 + 1)


@pytest.mark.parametrize("used", [False, True])
def test_make_fx(used: bool) -> None:
    compiled = dynamo.compile(lambda x: x.sin() * 2, backend="eager")
    if used:
        compiled(torch.randn(3))
    graph = make_fx(compiled)(torch.randn(3))
    x = torch.randn(3)
    assert torch.equal(graph(x), x.sin() * 2) and len(graph.graph.nodes) == 4


@pytest.mark.parametrize("used", [False, True])
def test_export_and_symbolic_trace(used: bool) -> None:
    module = nn.Sequential(nn.Linear(4, 3), nn.GELU())
    compiled = dynamo.compile(module, backend="eager")
    x = torch.randn(2, 4)
    if used:
        compiled(x)
    torch.testing.assert_close(torch.export.export(compiled, (x,)).module()(x), module(x))
    torch.testing.assert_close(torch.fx.symbolic_trace(compiled)(x), module(x))
