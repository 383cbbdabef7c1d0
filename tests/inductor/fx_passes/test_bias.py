"""GEMMs with a bias become a GEMM and an addition where kernels read them, and only there."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from inductor.fx_passes.bias import unfuse_biases

aten = torch.ops.aten
COMPUTED = {aten.add.Tensor, aten.relu.default, aten.view.default, aten.clone.default}


def module_of(
    reader: Callable[[fx.Graph, fx.Node], fx.Node],
    device: str = "cuda", dtype: torch.dtype = torch.float32, bias: tuple[int, ...] = (4,),
) -> fx.GraphModule:
    graph = fx.Graph()
    inputs = [graph.placeholder(name) for name in ("b", "x", "w")]
    gemm = graph.call_function(aten.addmm.default, tuple(inputs))
    mode = FakeTensorMode()
    for node, shape in zip([*inputs, gemm], [bias, (3, 5), (5, 4), (3, 4)], strict=True):
        like = torch.empty(shape, dtype=dtype, device="meta")
        node.meta["val"] = FakeTensor(mode, like, torch.device(device))
    graph.output((reader(graph, gemm),))
    return fx.GraphModule({}, graph)


def relu(graph: fx.Graph, node: fx.Node) -> fx.Node:
    return graph.call_function(aten.relu.default, (node,))


def relu_of_view(graph: fx.Graph, node: fx.Node) -> fx.Node:
    return relu(graph, graph.call_function(aten.view.default, (node, [4, 3])))


def gemm_of_view(graph: fx.Graph, node: fx.Node) -> fx.Node:
    view = graph.call_function(aten.view.default, (node, [4, 3]))
    relu(graph, view)
    return graph.call_function(aten.mm.default, (view, view))


def itself(graph: fx.Graph, node: fx.Node) -> fx.Node:
    return node


def targets(module: fx.GraphModule) -> list[object]:
    return [node.target for node in module.graph.nodes if node.op == "call_function"]


@pytest.mark.parametrize("reader", [relu, relu_of_view])
def test_unfused(reader: Callable[..., fx.Node]) -> None:
    module = unfuse_biases(module_of(reader), COMPUTED.__contains__)
    assert targets(module)[:2] == [aten.mm.default, aten.add.Tensor]
    gemm, total = [node for node in module.graph.nodes if node.op == "call_function"][:2]
    assert gemm.meta["val"].shape == total.meta["val"].shape  # not of one fake, or views
    assert gemm.meta["val"] is not total.meta["val"]
    b, x, w = torch.randn(4), torch.randn(3, 5), torch.randn(5, 4)
    (got,) = module(b, x, w)
    want = torch.addmm(b, x, w).relu().view(got.shape)
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize(("reader", "changes"), [
    (gemm_of_view, {}), (itself, {}), (relu, {"device": "cpu"}),
    (relu, {"dtype": torch.bfloat16}), (relu, {"bias": (3, 4)}), (relu, {"bias": (1,)}),
])  # fmt: skip
def test_kept(reader: Callable[..., fx.Node], changes: dict[str, object]) -> None:
    module = unfuse_biases(module_of(reader, **changes), COMPUTED.__contains__)
    assert aten.addmm.default in targets(module)
