"""Tables of constants that a program makes on the CPU for a GPU, which need not be there."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from inductor.fx_passes import host_tables
from inductor.fx_passes.host_tables import MOST_ELEMENTS, hold_tables

aten = torch.ops.aten
GPU = torch.device("cuda")
Make = Callable[[torch.fx.Graph, Callable[..., Any]], Any]


def graph_of(make: Make) -> torch.fx.GraphModule:
    """x * table for x on a GPU. make: the table's node, of a graph and a function that adds a node."""
    mode, graph = FakeTensorMode(allow_non_fake_inputs=True), torch.fx.Graph()

    def add(target: Any, *args: Any, **kwargs: Any) -> torch.fx.Node:
        node = graph.call_function(target, args, kwargs)
        given = torch.fx.map_arg((args, kwargs), lambda each: each.meta["val"])
        with mode:
            node.meta["val"] = target(*given[0], **given[1])
        return node

    x = graph.placeholder("x")
    with mode:
        x.meta["val"] = torch.empty(3, 8, device=GPU)
    table = make(graph, add)
    moved = add(aten._to_copy.default, table, device=GPU, dtype=torch.float32)
    graph.output((add(aten.mul.Tensor, x, moved), moved))
    return torch.fx.GraphModule(torch.nn.Module(), graph)


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_tables, "bring_over", lambda value, node: value.to(node.kwargs["dtype"]))


def frequencies(graph: Any, add: Callable[..., Any]) -> Any:
    places = add(aten.arange.start, 0, 8, dtype=torch.float32, device=torch.device("cpu"), pin_memory=False)
    scaled = add(aten.div.Tensor, add(aten.mul.Tensor, places, -math.log(10000)), 8)
    return add(aten.exp.default, scaled)


def test_a_table_is_made_once() -> None:
    module = hold_tables(graph_of(frequencies))
    module.graph.lint()
    targets = [node.target for node in module.graph.nodes if node.op == "call_function"]
    assert targets == [aten.clone.default, aten.mul.Tensor]
    (held,) = module.graph.find_nodes(op="get_attr")
    assert held.meta["val"].device.type == "cuda"
    wanted = torch.exp(-math.log(10000) * torch.arange(0, 8, dtype=torch.float32) / 8)
    torch.testing.assert_close(getattr(module, held.target), wanted, atol=0, rtol=0)


def drawn(graph: Any, add: Callable[..., Any]) -> Any:
    return add(aten.rand.default, [8], device=torch.device("cpu"))


def unwritten(graph: Any, add: Callable[..., Any]) -> Any:
    return add(aten.empty.memory_format, [8], device=torch.device("cpu"))


def great(graph: Any, add: Callable[..., Any]) -> Any:
    places = add(aten.arange.default, MOST_ELEMENTS * 8, device=torch.device("cpu"))
    return add(aten.slice.Tensor, places, 0, 0, 8)


def number(graph: Any, add: Callable[..., Any]) -> Any:
    return add(aten.full.default, [], 2.5, device=torch.device("cpu"))


@pytest.mark.parametrize("make", [drawn, unwritten, great, number])
def test_what_stays(make: Make) -> None:
    """What differs from call to call, great tables, and numbers, which another pass knows."""
    module = graph_of(make)
    before = [node.target for node in module.graph.nodes]
    assert [node.target for node in hold_tables(module).graph.nodes] == before
