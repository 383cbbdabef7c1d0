"""Grouped convolutions of single pixels as GEMMs: values, gradients, strides, and which they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx

from dynamo.aot.capture import capture_forward
from inductor.fx_passes import layout_choice
from inductor.fx_passes.grouped_pixels import grouped_pixels_as_gemms
from tests.inductor.fx_passes.comparisons import close

aten = torch.ops.aten
HALF = torch.float16


@pytest.fixture(autouse=True)
def on_a_gpu(as_on_gpu: Callable[..., None]) -> None:
    as_on_gpu(layout_choice)


def operands(groups: int, results: int, dtype: torch.dtype = HALF, size: tuple[int, ...] = (5, 7), window: int = 1) -> Any:
    x = torch.randn(2, 4 * groups, *size).to(dtype).to(memory_format=torch.channels_last)
    weight = torch.randn(results * groups, 4, window, window).to(dtype).to(memory_format=torch.channels_last)
    return x, weight, ([1, 1], [0, 0], [1, 1], False, [0, 0], groups)


@pytest.mark.parametrize("dtype", [HALF, torch.bfloat16])
@pytest.mark.parametrize("results", [1, 6])
@pytest.mark.parametrize("size", [(5, 7), (1, 1)], ids=str)
@pytest.mark.every_combination
def test_values(size: Any, results: int, dtype: torch.dtype) -> None:
    x, weight, form = operands(3, results, dtype, size)
    bias = torch.randn(3 * results).to(dtype)

    def program(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> Any:
        return aten.convolution(x, weight, None, *form), aten.convolution(x, weight, bias, *form)

    module = grouped_pixels_as_gemms(capture_forward(fx.symbolic_trace(program), [x, weight, bias]).module)
    module.graph.lint()
    assert not module.graph.find_nodes(op="call_function", target=aten.convolution.default)
    exact = program(x.double(), weight.double(), bias.double())
    for each in zip(fx.Interpreter(module).run(x, weight, bias), program(x, weight, bias), exact, strict=True):
        close(*each)


@pytest.mark.parametrize("wanted", [(True, True, True), (True, False, False), (False, True, False), (False, True, True)], ids=str)
@pytest.mark.parametrize("results", [1, 6])
@pytest.mark.every_combination
def test_gradients(results: int, wanted: Any) -> None:
    x, weight, form = operands(3, results)
    gradient = torch.randn_like(aten.convolution(x, weight, None, *form))

    def backward(gradient: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> Any:
        found = aten.convolution_backward(gradient, x, weight, [3 * results], *form, list(wanted))
        return [found[position] for position in range(3) if wanted[position]]

    module = grouped_pixels_as_gemms(capture_forward(fx.symbolic_trace(backward), [gradient, x, weight]).module)
    module.graph.lint()
    assert not module.graph.find_nodes(op="call_function", target=aten.convolution_backward.default)
    exact = backward(gradient.double(), x.double(), weight.double())
    for each in zip(fx.Interpreter(module).run(gradient, x, weight), backward(gradient, x, weight), exact, strict=True):
        close(*each)


@pytest.mark.parametrize("change", ["float32", "row-major", "window", "step", "one group", "depthwise"])
def test_what_is_left(change: str) -> None:
    x, weight, form = operands(3, 2, torch.float32 if change == "float32" else HALF, window=3 if change == "window" else 1)
    if change == "row-major":
        x = x.contiguous()
    elif change == "step":
        form = ([2, 2], *form[1:])
    elif change == "one group":
        form, weight = (*form[:-1], 1), torch.randn(6, 12, 1, 1).half()
    elif change == "depthwise":
        form, weight = (*form[:-1], 12), torch.randn(24, 1, 1, 1).half()

    def program(x: torch.Tensor, weight: torch.Tensor) -> Any:
        return aten.convolution(x, weight, None, *form)

    module = grouped_pixels_as_gemms(capture_forward(fx.symbolic_trace(program), [x, weight]).module)
    assert len(module.graph.find_nodes(op="call_function", target=aten.convolution.default)) == 1
