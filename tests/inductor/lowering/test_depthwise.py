"""Depthwise convolutions on a GPU: as loops, interpreted here."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from test_gpu_training import CLOSE, interpreted, lowered

from inductor.ir import interpret
from inductor.ir.graph import ExternKernel
from inductor.lowering import depthwise
from inductor.lowering.run import lower_graph
from inductor.scheduler.run import schedule_graph

aten = torch.ops.aten
Tensor = torch.Tensor
# window, stride, padding, dilation, results of each channel
FORMS = [
    ((3, 3), (1, 1), (1, 1), (1, 1), 1), ((3, 3), (2, 2), (1, 1), (1, 1), 2), ((5, 5), (1, 1), (2, 2), (1, 1), 1),
    ((5, 3), (1, 3), (0, 2), (2, 1), 1), ((7, 2), (2, 1), (3, 0), (1, 2), 3), ((1, 11), (1, 2), (0, 5), (1, 1), 1),
]  # fmt: skip


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Buffers lie in memory that is here."""
    monkeypatch.setattr(interpret, "_allocate", lambda layout: torch.empty(
        layout.storage_elements(), dtype=layout.dtype))


def assert_near(found: Tensor, exact: Tensor, dtype: torch.dtype, terms: int) -> None:
    assert found.dtype is dtype
    close = CLOSE[dtype]
    torch.testing.assert_close(found.double(), exact, rtol=close, atol=close * math.sqrt(terms))


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_forward_and_gradients(
    dtype: Any, form: Any, last: bool, turned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """turned: the weight is laid out anew first, as for large images."""
    monkeypatch.setattr(depthwise, "MANY_READS", 0 if turned else 1 << 60)
    size, stride, padding, dilation, multiple = form
    x = torch.randn(2, 6, 16, 21).to(dtype)
    weight, bias = torch.randn(6 * multiple, 1, *size).to(dtype), torch.randn(6 * multiple).to(dtype)
    if last:
        x = x.to(memory_format=torch.channels_last)
    rest = (stride, padding, dilation, False, (0, 0), 6)

    def forward(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return aten.convolution(x, weight, bias, *rest)

    (found,) = interpreted(forward, [x, weight, bias])
    eager = forward(x, weight, bias)
    assert found.stride() == eager.stride()
    exact = forward(x.double(), weight.double(), bias.double())
    assert_near(found, exact, dtype, math.prod(size))
    grad = torch.randn_like(eager)

    def backward(grad: Tensor, x: Tensor, weight: Tensor) -> Any:
        return aten.convolution_backward(grad, x, weight, [6 * multiple], *rest, [True] * 3)

    results = interpreted(backward, [grad, x, weight])
    expected = backward(grad.double(), x.double(), weight.double())
    for one, other in zip(results, expected, strict=True):
        assert_near(one, other, dtype, grad[:, 0].numel())


def test_lines() -> None:
    x, weight, grad = torch.randn(3, 6, 20), torch.randn(6, 1, 4), torch.randn(3, 6, 23)
    rest = ([1], [3], [1], False, [0], 6)
    (found,) = interpreted(lambda x, w: aten.convolution(x, w, None, *rest), [x, weight])
    torch.testing.assert_close(found, aten.convolution(x, weight, None, *rest))

    def backward(grad: Tensor, x: Tensor, weight: Tensor) -> Any:
        return aten.convolution_backward(grad, x, weight, None, *rest, [True, True, False])[:2]

    for one, other in zip(interpreted(backward, [grad, x, weight]), backward(grad, x, weight), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=2e-5)


def test_what_follows_is_in_the_same_kernel() -> None:
    def program(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
        return torch.relu(aten.convolution(x, weight, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 32) * scale)

    x = torch.empty(4, 32, 14, 14, dtype=torch.float16, device="meta").to(memory_format=torch.channels_last)
    weight = torch.empty(32, 1, 3, 3, dtype=torch.float16, device="meta")
    made = lowered(program, [x, weight, torch.empty(32, 1, 1, dtype=torch.float16, device="meta")])
    assert len(list(schedule_graph(made.graph, 8).kernels())) == 1


@pytest.mark.parametrize("dtype, last, ours", [
    (torch.float32, True, 1), (torch.float32, False, 3), (torch.float16, True, 1), (torch.bfloat16, False, 2)])
def test_large_ones(dtype: Any, last: bool, ours: int) -> None:
    """Of forward and two gradients, those that are the library's where it is faster."""
    def program(grad: Tensor, x: Tensor, weight: Tensor) -> Any:
        rest = ([1, 1], [1, 1], [1, 1], False, [0, 0], 32)
        y = aten.convolution(x, weight, None, *rest)
        grads = aten.convolution_backward(grad, x, weight, None, *rest, [True, True, False])
        return y, grads[0], grads[1]

    x = torch.empty(16, 32, 56, 56, dtype=dtype, device="meta")
    if last:
        x = x.to(memory_format=torch.channels_last)
    nodes = lowered(program, [x, x, torch.empty(32, 1, 3, 3, dtype=dtype, device="meta")]).graph.nodes
    calls = [node.target for node in nodes if isinstance(node, ExternKernel)]
    assert (aten.convolution.default in calls) == (dtype is not torch.float32)
    if dtype is torch.float32 and last:  # both gradients by one call
        assert calls == [aten.convolution_backward.default]
    else:
        assert len(calls) == 3 - ours


@pytest.mark.parametrize("groups, size, convolves", [(2, 3, True), (1, 3, True), (8, 9, True), (8, 3, False)])
def test_others_are_the_librarys(groups: int, size: int, convolves: bool, monkeypatch: Any) -> None:
    def program(x: Tensor, weight: Tensor) -> Tensor:
        return aten.convolution(x, weight, None, [1, 1], [1, 1], [1, 1], False, [0, 0], groups)

    monkeypatch.setattr("test_gpu_training.lower_graph", lambda module: lower_graph(module, convolves=convolves))
    x, weight = torch.empty(2, 8, 14, 14, device="meta"), torch.empty(8, 8 // groups, size, size, device="meta")
    (node,) = lowered(program, [x, weight]).graph.nodes
    assert isinstance(node, ExternKernel)
