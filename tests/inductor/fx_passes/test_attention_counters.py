"""Zeros by which programs of attention count themselves; here on a CPU, where ATen is its implementation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx

import dynamo
from inductor.fx_passes import pipeline
from inductor.fx_passes.attention import counters

ours = torch.ops.dynamo_jit.attention.default
zeros = torch.ops.dynamo_jit.zero_counters.default


@pytest.fixture(autouse=True)
def graphs(as_on_gpu: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> list[fx.Graph]:
    """What the pass leaves."""
    seen: list[fx.Graph] = []

    def noting(module: fx.GraphModule) -> fx.GraphModule:
        made = counters.count_programs(module)
        made.graph.lint()
        seen.append(fx.Graph())
        seen[-1].graph_copy(made.graph, {})
        return made

    as_on_gpu(counters)
    monkeypatch.setattr(pipeline, "count_programs", noting)
    return seen


def decoder(layers: int, lse: bool = False) -> Callable[..., Any]:
    def program(x: torch.Tensor, k: torch.Tensor) -> Any:
        for _ in range(layers):
            out, sums = torch.ops.dynamo_jit.attention(x, k, k * 2, None, None, False, 0.5, 0, 0.0, False, lse)
            x = x + out.sin()
        return x + sums.sum()

    return program


def run(program: Callable[..., Any], queries: int = 1, keys: int = 600, batch: int = 32) -> None:
    dynamo.reset()
    x, k = torch.randn(batch, 4, queries, 16), torch.randn(batch, 2, keys, 16)
    compiled = dynamo.compile(program, fullgraph=True, options={"graph_cache": False})
    for _ in range(2):
        torch.testing.assert_close(compiled(x, k), program(x, k))


@pytest.mark.parametrize("layers", [3, 7])
def test_each_call_has_its_own(graphs: list[fx.Graph], layers: int) -> None:
    run(decoder(layers))
    (made,) = graphs[-1].find_nodes(op="call_function", target=zeros)
    parts = [call.args[11] for call in graphs[-1].find_nodes(op="call_function", target=ours)]
    places = sorted(part.args[2:] for part in parts)
    assert len(parts) == layers and all(part.args[0] is made for part in parts)
    assert all(begin % 32 == 0 and end - begin >= 4 for begin, end in places)
    assert all(end <= begin for (_, end), (begin, _) in zip(places, places[1:], strict=False))
    assert places[-1][1] <= made.args[1]


@pytest.mark.parametrize("program, sizes", [
    (decoder(2), {}), (decoder(4), {"queries": 17}), (decoder(4), {"keys": 200}), (decoder(4, lse=True), {}),
    (decoder(4), {"batch": 400}), (decoder(4), {"batch": 2}), (decoder(4), {"keys": 1200}),
])  # fmt: skip
def test_where_they_are_of_no_use(graphs: list[fx.Graph], program: Callable[..., Any], sizes: dict[str, int]) -> None:
    run(program, **sizes)
    assert graphs and not graphs[-1].find_nodes(op="call_function", target=zeros)
