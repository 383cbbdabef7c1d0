"""Convolutions over three axes: oneDNN's where ATen would take a slower kernel, right for all."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import dynamo
from dynamo.aot.capture import capture_forward
from dynamo.store.content import cache_store
from inductor.autotune.library_convolutions import has_onednn
from inductor.autotune.library_kernels import choose_library_kernels
from inductor.ir.graph import ExternKernel
from inductor.lowering.run import lower_graph

pytestmark = pytest.mark.usefixtures("nothing_is_said")

aten = torch.ops.aten
HOW = ({}, {"stride": (1, 2, 2)}, {"padding": (2, 1, 0)}, {"dilation": (2, 1, 1)}, {"groups": 2})


def convolved(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None, how: Any) -> torch.Tensor:
    return F.relu(F.conv3d(x * 2, w, b, **how)) + 1


def chosen(*inputs: torch.Tensor) -> list[Any]:
    """What computes the only call of a graph."""
    module = torch.fx.symbolic_trace(lambda x, w: F.conv3d(x, w))
    graph = lower_graph(capture_forward(module, list(inputs)).module).graph
    graph = choose_library_kernels(graph, cache_store(), 1)
    return [node.target for node in graph.nodes if isinstance(node, ExternKernel)]


@pytest.mark.parametrize("how", HOW, ids=str)
@pytest.mark.parametrize("last", (False, True), ids=("rows", "channels last"))
@pytest.mark.parametrize("images", (1, 2))
def test_results_and_strides(how: Any, last: bool, images: int) -> None:
    torch.manual_seed(0)
    layout = torch.channels_last_3d if last else torch.contiguous_format
    x = torch.randn(images, 4, 5, 8, 9).to(memory_format=layout)
    groups = how.get("groups", 1)
    for bias in (None, torch.randn(6)):
        w = torch.randn(6, 4 // groups, 3, 3, 3)
        compiled = dynamo.compile(convolved, fullgraph=True)
        want = convolved(x.double(), w.double(), None if bias is None else bias.double(), how)
        got = compiled(x, w, bias, how)
        torch.testing.assert_close(got.double(), want, atol=1e-4, rtol=1e-5)
        assert got.stride() == convolved(x, w, bias, how).stride()


def test_a_module_and_its_gradients() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv3d(3, 8, 3, padding=1), nn.SiLU(), nn.Conv3d(8, 4, 1))
    x = torch.randn(1, 3, 4, 6, 6, requires_grad=True)
    compiled = dynamo.compile(model)
    results = []
    for form in (model, compiled):
        model.zero_grad()
        x.grad = None
        out = form(x)
        out.square().sum().backward()
        assert x.grad is not None
        results.append([out.detach(), x.grad.clone(), *(p.grad.clone() for p in model.parameters())])
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want, atol=1e-3, rtol=1e-4)


def test_weights_that_change_are_seen() -> None:
    model = nn.Conv3d(2, 3, 3).eval()
    compiled = dynamo.compile(model)
    x = torch.randn(1, 2, 4, 5, 5)
    with torch.no_grad():
        compiled(x)
        model.weight.mul_(-2)
        torch.testing.assert_close(compiled(x), model(x))


def test_who_computes_it() -> None:
    if not has_onednn():
        pytest.skip("torch without oneDNN")
    x, w = torch.randn(1, 4, 5, 8, 9), torch.randn(6, 4, 3, 3, 3)
    assert chosen(x, w) == [aten.mkldnn_convolution.default]
    assert chosen(x.double(), w.double()) == [aten.convolution.default]
    with torch.backends.mkldnn.flags(enabled=False):
        assert chosen(x, w) == [aten.convolution.default]


def test_symbolic_sizes() -> None:
    w = torch.randn(6, 4, 3, 3, 3)
    compiled = dynamo.compile(lambda x: F.conv3d(x, w).relu(), dynamic=True)
    for frames in (4, 5, 9):
        x = torch.randn(1, 4, frames, 8, 9)
        torch.testing.assert_close(compiled(x), F.conv3d(x, w).relu(), atol=1e-4, rtol=1e-5)
