"""Which convolutions become sums over large windows; here on a CPU, where ATen is their implementation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx

import dynamo
from dynamo.aot.capture import capture_forward
from inductor.config import config
from inductor.fx_passes import large_windows
from inductor.fx_passes.large_windows import sum_large_windows

aten = torch.ops.aten
SUMS = torch.ops.dynamo_jit.window_sums.default
FORM = ([1, 1], [4, 5], [1, 1], False, [0, 0], 3)


@pytest.fixture(autouse=True)
def on_a_gpu(as_on_gpu: Callable[..., None]) -> None:
    as_on_gpu(large_windows)


def rewritten(program: Callable[..., Any], *given: torch.Tensor) -> fx.GraphModule:
    module = sum_large_windows(capture_forward(fx.symbolic_trace(program), [*given]).module)
    module.graph.lint()
    return module


def count(module: fx.GraphModule, target: Any) -> int:
    return len(module.graph.find_nodes(op="call_function", target=target))


def same(found: Any, wanted: Any) -> None:
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
        assert one.stride() == other.stride()


@pytest.mark.parametrize("last", [False, True], ids=["row-major", "channels last"])
def test_values(last: bool) -> None:
    x, weight, bias = torch.randn(2, 3, 14, 17), torch.randn(3, 1, 9, 11), torch.randn(3)
    if last:
        x = x.to(memory_format=torch.channels_last)

    def program(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> Any:
        return aten.convolution(x, weight, None, *FORM), aten.convolution(x, weight, bias, *FORM)

    module = rewritten(program, x, weight, bias)
    assert count(module, SUMS) == 2 and not count(module, aten.convolution.default)
    same(module(x, weight, bias), program(x, weight, bias))


@pytest.mark.parametrize("wanted", [(True, True, True), (True, False, False), (False, True, False)], ids=str)
def test_gradients(wanted: Any) -> None:
    x, weight, grad = torch.randn(2, 3, 14, 17), torch.randn(3, 1, 9, 11), torch.randn(2, 3, 14, 17)

    def program(grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> Any:
        found = aten.convolution_backward(grad, x, weight, [3], *FORM, wanted)
        return [found[n] for n in range(3) if wanted[n]]

    module = rewritten(program, grad, x, weight)
    assert count(module, SUMS) == wanted[0]
    assert count(module, aten.convolution_backward.default) == any(wanted[1:])
    same(module(grad, x, weight), program(grad, x, weight))


@pytest.mark.parametrize("more", [
    {"stride": 2}, {"dilation": 2}, {"groups": 1}, {"window": 7}, {"dtype": torch.float64}, {"results": 6},
], ids=str)  # fmt: skip
def test_others_stay(more: dict[str, Any]) -> None:
    form = {"stride": 1, "dilation": 1, "groups": 3, "window": 9, "dtype": torch.float32, "results": 3} | more
    x = torch.randn(2, 3, 24, 24, dtype=form["dtype"])
    weight = torch.randn(form["results"], 3 // form["groups"], form["window"], form["window"], dtype=form["dtype"])

    def program(x: torch.Tensor, weight: torch.Tensor) -> Any:
        pairs = [[form["stride"]] * 2, [4, 4], [form["dilation"]] * 2]
        return aten.convolution(x, weight, None, *pairs, False, [0, 0], form["groups"])

    module = rewritten(program, x, weight)
    assert not count(module, SUMS) and count(module, aten.convolution.default) == 1


def test_images_that_int32_does_not_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight = torch.randn(2, 3, 24, 24), torch.randn(3, 1, 9, 11)
    program = lambda x, weight: aten.convolution(x, weight, None, *FORM)  # noqa: E731
    for most, found in ((3 * 42 * 46, 1), (3 * 42 * 46 - 1, 0)):
        monkeypatch.setattr(large_windows, "MOST_PLACE", most)
        assert count(rewritten(program, x, weight), SUMS) == found


def test_the_library_alone() -> None:
    x, weight = torch.randn(2, 3, 24, 24), torch.randn(3, 1, 9, 11)
    with config.patch(leave_out="templates"):
        module = rewritten(lambda x, weight: aten.convolution(x, weight, None, *FORM), x, weight)
    assert not count(module, SUMS)


def test_structural_similarity() -> None:
    """A loss as people write it, with the gradient of the image."""
    window = torch.outer(*[torch.hann_window(13)[1:-1]] * 2).expand(3, 1, 11, 11).contiguous() / 30

    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        mean, other = (F.conv2d(each, window, padding=5, groups=3) for each in (x, y))
        xx, yy, xy = (F.conv2d(each, window, padding=5, groups=3) for each in (x * x, y * y, x * y))
        up = (2 * mean * other + 1e-4) * (2 * (xy - mean * other) + 9e-4)
        return 1 - (up / ((mean**2 + other**2 + 1e-4) * (xx - mean**2 + yy - other**2 + 9e-4))).mean()

    x, y = torch.rand(2, 3, 24, 24, requires_grad=True), torch.rand(2, 3, 24, 24)
    wanted = loss(x, y)
    (slope,) = torch.autograd.grad(wanted, x)
    dynamo.reset()
    found = dynamo.compile(loss, fullgraph=True, options={"graph_cache": False})(x, y)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(torch.autograd.grad(found, x)[0], slope, rtol=1e-3, atol=1e-5)
