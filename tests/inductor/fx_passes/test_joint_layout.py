"""Channels-last convolutions and their biases in a joint graph: what training on a GPU gets, here on a CPU."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from dynamo.aot.api import compile_training
from dynamo.aot.capture import capture_forward
from inductor.driver.from_aten import compile_aten
from inductor.fx_passes import bias
from inductor.fx_passes.layout import channels_last
from inductor.fx_passes.pipeline import decompositions, laid_out
from inductor.lowering.registry import LOWERINGS

aten = torch.ops.aten


def net(x: torch.Tensor, w1: torch.Tensor, b1: torch.Tensor, w2: torch.Tensor, b2: torch.Tensor) -> torch.Tensor:
    hidden = F.max_pool2d(F.relu(F.conv2d(x, w1, b1, padding=1)), 2)
    return F.conv2d(hidden, w2, b2, stride=2).relu()


def captured() -> fx.GraphModule:
    return fx.symbolic_trace(net)


def values() -> list[torch.Tensor]:
    shapes = ((2, 3, 12, 12), (8, 3, 3, 3), (8,), (4, 8, 3, 3), (4,))
    return [torch.randn(shape).requires_grad_() for shape in shapes]


@pytest.mark.parametrize("biases_apart", [False, True])
def test_values_gradients_and_strides(biases_apart: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bias, "_has_bias_on_gpu", lambda node: node.args[2] is not None)
    seen: list[fx.GraphModule] = []

    def rewrite(module: fx.GraphModule) -> fx.GraphModule:
        if biases_apart:
            module = bias.unfuse_convolution_biases(module)
        seen.append(channels_last(module, LOWERINGS.__contains__))
        return seen[-1]

    inputs = values()
    compiled = compile_training(captured(), inputs, compile_aten, compile_aten, rewrite=rewrite)
    again = [value.detach().clone().requires_grad_() for value in inputs]
    found, expected = compiled(*inputs), net(*again)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-4)  # sums of 72 products
    assert found.stride() == expected.stride()
    probe = torch.randn_like(expected)
    found.backward(probe)
    expected.backward(probe)
    for one, other in zip(inputs, again, strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-4)
        assert one.grad.stride() == other.grad.stride()
    nodes = seen[0].graph.nodes
    backward = [node for node in nodes if node.target is aten.convolution_backward.default]
    assert len(backward) == 2
    for node in backward:
        assert all(arg.meta["val"].is_contiguous(memory_format=torch.channels_last) for arg in node.args[:2])
    forward = [node for node in nodes if node.target is aten.convolution.default]
    assert [node.args[2] is None for node in forward] == [biases_apart] * 2


@pytest.mark.parametrize("one_fake", [False, True])
def test_a_bias_is_added_where_layouts_stay(one_fake: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What reads the sum does not read the convolution: not even where a pass, a user's, say, has
    given the fake of one to the other, so that the sum looks like a view of the convolution."""
    monkeypatch.setattr(bias, "_has_bias_on_gpu", lambda node: node.args[2] is not None)

    def rewrite(module: fx.GraphModule) -> fx.GraphModule:
        module = bias.unfuse_convolution_biases(module)
        for total in module.graph.find_nodes(op="call_function", target=aten.add.Tensor):
            convolution = total.args[0]
            assert convolution.meta["val"] is not total.meta["val"]
            if one_fake:
                convolution.meta["val"] = total.meta["val"]
        return module

    inputs = values()
    compiled = compile_training(captured(), inputs, compile_aten, compile_aten,
                                decompositions=decompositions(), rewrite=rewrite)
    torch.testing.assert_close(compiled(*inputs), net(*inputs), rtol=1e-5, atol=1e-4)


def test_biases_stay_on_a_cpu() -> None:
    graph = fx.Graph()
    x, w, b = (graph.placeholder(name) for name in "xwb")
    for node, shape in ((x, (1, 3, 5, 5)), (w, (2, 3, 3, 3)), (b, (2,))):
        node.meta["val"] = torch.empty(shape)
    rest = ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    node = graph.call_function(aten.convolution.default, (x, w, b, *rest))
    node.meta["val"] = torch.empty(1, 2, 3, 3)
    graph.output((node,))
    bias.unfuse_convolution_biases(fx.GraphModule(nn.Module(), graph))
    assert node.args[2] is b


def test_a_whole_step_on_a_cpu_keeps_its_layout() -> None:
    """A graph of forward and backward has no channels-last copies, one of forward alone has."""
    def forward(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.conv2d(x, weight, padding=1).relu()

    def step(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        rest = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
        y = aten.convolution(x, weight, None, *rest).relu()
        return aten.convolution_backward(y, x, weight, None, *rest, [False, True, False])[1]

    x, weight = torch.randn(2, 8, 10, 10), torch.randn(8, 8, 3, 3)
    for program, is_copied in ((forward, True), (step, False)):
        mode = FakeTensorMode()
        fakes = [mode.from_tensor(value) for value in (x, weight)]
        module = laid_out(capture_forward(fx.symbolic_trace(program), fakes).module)
        lasts = [node for node in module.graph.nodes
                 if node.kwargs.get("memory_format") is torch.channels_last]  # fmt: skip
        assert bool(lasts) == is_copied


def up(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    large = F.interpolate(F.conv2d(x, w, padding=1), scale_factor=2.0)
    joined = torch.cat([large, F.conv2d(y, v, padding=1)], 1)
    return F.conv2d(F.silu(joined), torch.cat([w, v]), padding=1).sum((2, 3))


def test_what_upsampling_picks_stays_channels_last() -> None:
    """So does what is joined with it, of which backward would keep both forms."""
    seen: list[fx.GraphModule] = []

    def rewrite(module: fx.GraphModule) -> fx.GraphModule:
        seen.append(channels_last(module, LOWERINGS.__contains__))
        return seen[-1]

    shapes = ((2, 8, 6, 6), (2, 8, 12, 12), (4, 8, 3, 3), (4, 8, 3, 3))
    inputs = [torch.randn(shape).requires_grad_() for shape in shapes]
    compiled = compile_training(
        fx.symbolic_trace(up), inputs, compile_aten, compile_aten, decompositions=decompositions(), rewrite=rewrite)
    again = [value.detach().clone().double().requires_grad_() for value in inputs]
    found, expected = compiled(*inputs), up(*again)
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-4)
    found.square().sum().backward()
    expected.square().sum().backward()
    for one, other in zip(inputs, again, strict=True):
        assert (one.grad.double() - other.grad).norm() < 1e-5 * other.grad.norm()
    graph = seen[0].graph
    (picked,) = graph.find_nodes(op="call_function", target=aten._unsafe_index.Tensor)
    (copy,) = picked.users
    (joined,) = (node for node in graph.find_nodes(op="call_function", target=aten.cat.default) if copy in node.args[0])
    assert all(node.meta["val"].is_contiguous(memory_format=torch.channels_last) for node in (copy, joined))
    assert not [user for user in joined.users if user.target is aten.clone.default]
