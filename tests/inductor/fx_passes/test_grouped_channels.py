"""Groups of odd channels with zeros behind them: values, gradients, strides, infinities, and which they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx

from dynamo.aot.capture import capture_forward
from inductor.config import config
from inductor.fx_passes import layout_choice
from inductor.fx_passes.grouped_channels import pad_groups
from tests.inductor.fx_passes.comparisons import close

aten = torch.ops.aten
HALF = torch.float16
FORMS = [  # channels and results of a group, window, stride, padding, dilation
    (24, 24, (3, 3), [1, 1], [1, 1], [1, 1]), (3, 4, (3, 2), [2, 1], [0, 1], [1, 1]), (4, 5, (1, 3), [1, 1], [0, 2], [1, 2]),
    (6, 1, (1, 1), [2, 2], [0, 0], [1, 1]),
]  # fmt: skip


@pytest.fixture(autouse=True)
def on_a_gpu(as_on_gpu: Callable[..., None]) -> None:
    as_on_gpu(layout_choice)


def operands(form: Any, dtype: torch.dtype = HALF, groups: int = 3) -> Any:
    inputs, results, window, *rest = form
    x = torch.randn(2, inputs * groups, 6, 7).to(dtype).to(memory_format=torch.channels_last)
    weight = torch.randn(results * groups, inputs, *window).to(dtype).to(memory_format=torch.channels_last)
    return x, weight, (*rest, False, [0, 0], groups)


def widths(module: fx.GraphModule, target: Any) -> list[Any]:
    """Sizes of the weights of convolutions."""
    first = target is aten.convolution_backward.default
    return [node.args[1 + first].meta["val"].shape[:2] for node in module.graph.find_nodes(op="call_function", target=target)]


@pytest.mark.parametrize("dtype", [HALF, torch.bfloat16])
@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.every_combination
def test_values(form: Any, dtype: torch.dtype) -> None:
    x, weight, rest = operands(form, dtype)
    bias = torch.randn(weight.shape[0]).to(dtype)

    def program(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> Any:
        return aten.convolution(x, weight, None, *rest), aten.convolution(x, weight, bias, *rest)

    module = pad_groups(capture_forward(fx.symbolic_trace(program), [x, weight, bias]).module)
    module.graph.lint()
    for results, inputs in widths(module, aten.convolution.default):
        assert inputs in (4, 8, 32) and results in (3, 12, 24, 96)
    exact = program(x.double(), weight.double(), bias.double())
    for each in zip(fx.Interpreter(module).run(x, weight, bias), program(x, weight, bias), exact, strict=True):
        close(*each)


@pytest.mark.parametrize("wanted", [(True, True, True), (True, False, False), (False, True, True)], ids=str)
@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.every_combination
def test_gradients(form: Any, wanted: Any) -> None:
    x, weight, rest = operands(form)
    gradient = torch.randn_like(aten.convolution(x, weight, None, *rest))

    def backward(gradient: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> Any:
        found = aten.convolution_backward(gradient, x, weight, [weight.shape[0]], *rest, list(wanted))
        return [found[position] for position in range(3) if wanted[position]]

    module = pad_groups(capture_forward(fx.symbolic_trace(backward), [gradient, x, weight]).module)
    module.graph.lint()
    for results, inputs in widths(module, aten.convolution_backward.default):
        assert inputs in (4, 8, 32) and results in (3, 12, 24, 96)
    exact = backward(gradient.double(), x.double(), weight.double())
    for each in zip(fx.Interpreter(module).run(gradient, x, weight), backward(gradient, x, weight), exact, strict=True):
        close(*each)


@pytest.mark.parametrize(("form", "forward", "backward"), [
    ((48, 48), (48, 48), (64, 64)), ((56, 40), (56, 40), (64, 64)), ((20, 45), (24, 48), (32, 64)), ((3, 33), (16, 40), (4, 64)),
    ((70, 70), (72, 72), (70, 70)), ((64, 64), (64, 64), (64, 64)), ((32, 64), (32, 64), (32, 64)),
], ids=str)
def test_wide_groups(form: Any, forward: Any, backward: Any) -> None:
    """Those of a template are padded to whole words only, the library's gradients as others."""
    x, weight, rest = operands((*form, (2, 3), [2, 1], [1, 1], [1, 1]), groups=2)
    bias = torch.randn(weight.shape[0]).to(HALF)

    def program(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> Any:
        y = aten.convolution(x, weight, bias, *rest)
        found = aten.convolution_backward(y.clamp(-9, 9), x, weight, None, *rest, [True, True, False])
        return y, found[0], found[1]

    module = pad_groups(capture_forward(fx.symbolic_trace(program), [x, weight, bias]).module)
    for target, (inputs, results) in ((aten.convolution.default, forward), (aten.convolution_backward.default, backward)):
        assert widths(module, target) == [(2 * results, inputs)]
    exact = program(x.double(), weight.double(), bias.double())
    for each in zip(fx.Interpreter(module).run(x, weight, bias), program(x, weight, bias), exact, strict=True):
        close(*each)
    with config.patch(leave_out="templates"):
        module = pad_groups(capture_forward(fx.symbolic_trace(program), [x, weight, bias]).module)
    assert widths(module, aten.convolution.default) == widths(module, aten.convolution_backward.default)


def test_infinities_stay_in_their_group() -> None:
    x, weight, rest = operands(FORMS[0])
    x[0, 30], weight[5, 2] = torch.inf, torch.inf

    def program(x: torch.Tensor, weight: torch.Tensor) -> Any:
        y = aten.convolution(x, weight, None, *rest)
        found = aten.convolution_backward(y.clamp(-9, 9), x, weight, None, *rest, [True, True, False])
        return y, found[0], found[1]

    module = pad_groups(capture_forward(fx.symbolic_trace(program), [x, weight]).module)
    for ours, theirs in zip(fx.Interpreter(module).run(x, weight), program(x, weight), strict=True):
        assert torch.equal(ours.isfinite(), theirs.isfinite()) and not theirs.isfinite().all() and theirs.isfinite().any()


@pytest.mark.parametrize("change", ["float32", "row-major", "whole", "one group", "depthwise", "wide"])
def test_what_is_left(change: str) -> None:
    form = {"whole": (8, 16), "depthwise": (1, 3), "wide": (72, 72)}.get(change, (24, 24))
    x, weight, rest = operands((*form, *FORMS[0][2:]), torch.float32 if change == "float32" else HALF, 1 if change == "one group" else 3)
    if change == "row-major":
        x = x.contiguous()

    def program(x: torch.Tensor, weight: torch.Tensor) -> Any:
        return aten.convolution(x, weight, None, *rest)

    module = pad_groups(capture_forward(fx.symbolic_trace(program), [x, weight]).module)
    assert widths(module, aten.convolution.default) == [weight.shape[:2]]
