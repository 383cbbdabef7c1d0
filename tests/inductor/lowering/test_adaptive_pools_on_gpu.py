"""Gradients of adaptive averages as they are lowered for a GPU, and interpreted here."""

from __future__ import annotations

import pytest
import torch
from torch import fx

from dynamo.shapes.fake import FakeWorld
from inductor.ir import interpret
from inductor.lowering.run import Lowered, lower_graph

aten = torch.ops.aten
GPU, CPU = torch.device("cuda", 0), torch.device("cpu")


def lowered(grad: torch.Tensor, x: torch.Tensor, device: torch.device) -> Lowered:
    graph, world = fx.Graph(), FakeWorld()
    nodes = [graph.placeholder(name) for name in ("grad", "x")]
    operator = aten._adaptive_avg_pool2d_backward if x.dim() == 4 else aten._adaptive_avg_pool3d_backward
    nodes.append(graph.call_function(operator.default, tuple(nodes)))
    for node, value in zip(nodes, (grad, x, x), strict=True):
        facts = world.cache.facts(tuple(value.shape), value.stride(), 0, value.dtype, device)
        node.meta["val"] = world.make(facts)
    graph.output((nodes[-1],))
    return lower_graph(fx.GraphModule({}, graph))


@pytest.mark.parametrize(("size", "result"), [
    ((2, 3, 33, 33), (6, 6)), ((2, 3, 33, 33), (3, 11)), ((1, 2, 7, 5), (2, 3)), ((1, 2, 7, 5), (7, 4)),
    ((2, 2, 36, 34), (6, 3)), ((1, 2, 5, 5), (1, 2)), ((1, 1, 5, 4, 7), (2, 4, 3)),
])  # fmt: skip
def test_each_element_gathers_its_windows(size, result, monkeypatch) -> None:
    monkeypatch.setattr(interpret, "_allocate", lambda layout: torch.empty(
        layout.storage_elements(), dtype=layout.dtype))
    x = torch.randn(size, requires_grad=True)
    pool = torch.nn.functional.adaptive_avg_pool2d if len(size) == 4 else torch.nn.functional.adaptive_avg_pool3d
    y = pool(x, result)
    grad = torch.randn_like(y)
    y.backward(grad)
    made = lowered(grad, x, GPU)
    assert not made.fallbacks
    (found,) = interpret.interpret_graph(made.graph, [grad, x.detach()])
    torch.testing.assert_close(found, x.grad)


def test_what_falls_back() -> None:
    assert lowered(torch.randn(1, 1, 9, 3), torch.randn(1, 1, 5, 5), GPU).fallbacks  # more windows than elements
    assert lowered(torch.randn(1, 1, 2, 2), torch.randn(1, 1, 5, 5), CPU).fallbacks
