"""Grouped convolutions of sequences in other forms: values, gradients, and which they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx

from dynamo.aot.capture import capture_forward
from inductor.fx_passes import grouped_sequences
from inductor.fx_passes.grouped_sequences import without_slow_groups

aten = torch.ops.aten
BF16 = torch.bfloat16


@pytest.fixture(autouse=True)
def on_a_gpu(as_on_gpu: Callable[..., None]) -> None:
    as_on_gpu(grouped_sequences)


def operands(groups: int, places: int, padding: int, dtype: torch.dtype = BF16) -> Any:
    x, weight = torch.randn(2, 4 * groups, 15).to(dtype), torch.randn(6 * groups, 4, places).to(dtype)
    form = (None, [1], [padding], [1], False, [0], groups)
    return x, weight, form, torch.randn_like(aten.convolution(x, weight, *form))


def close(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    assert ours.shape == theirs.shape and ours.stride() == theirs.stride() and ours.dtype is theirs.dtype
    torch.testing.assert_close(ours, theirs, rtol=3e-2, atol=3e-2 * float(theirs.abs().max()))


@pytest.mark.parametrize("is_long", [True, False])
@pytest.mark.parametrize(("places", "padding"), [(5, 2), (6, 3), (3, 0), (4, 3)])
@pytest.mark.every_combination
def test_values(places: int, padding: int, is_long: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grouped_sequences, "LONG", 2 if is_long else 100)
    x, weight, form, _ = operands(3, places, padding)
    bias = torch.randn(18).bfloat16()

    def program(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> Any:
        return aten.convolution(x, weight, *form), aten.convolution(x, weight, bias, *form[1:])

    module = without_slow_groups(capture_forward(fx.symbolic_trace(program), [x, weight, bias]).module)
    module.graph.lint()
    left = module.graph.find_nodes(op="call_function", target=aten.convolution.default)
    assert not left if is_long else [node.args[6] for node in left] == [True, True]
    for ours, theirs in zip(fx.Interpreter(module).run(x, weight, bias), program(x, weight, bias), strict=True):
        close(ours, theirs)


@pytest.mark.parametrize("wanted", [(True, True, True), (True, False, False), (False, True, False)], ids=str)
@pytest.mark.parametrize(("places", "padding"), [(5, 2), (6, 3), (3, 0)])
@pytest.mark.every_combination
def test_gradients(places: int, padding: int, wanted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grouped_sequences, "LONG", 2)
    x, weight, form, gradient = operands(3, places, padding)

    def backward(gradient: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> Any:
        found = aten.convolution_backward(gradient, x, weight, [18], *form[1:], list(wanted))
        return [found[position] for position in range(3) if wanted[position]]

    module = without_slow_groups(capture_forward(fx.symbolic_trace(backward), [gradient, x, weight]).module)
    module.graph.lint()
    assert bool(module.graph.find_nodes(op="call_function", target=aten.bmm.default)) == wanted[0]
    for ours, theirs in zip(fx.Interpreter(module).run(gradient, x, weight), backward(gradient, x, weight), strict=True):
        close(ours, theirs)


@pytest.mark.parametrize(("groups", "padding", "dtype"), [(1, 2, BF16), (3, 2, torch.float32), (3, 7, BF16)], ids=str)
def test_others_stay(groups: int, padding: int, dtype: torch.dtype) -> None:
    """Of one group, in single precision, and with more zeros than places."""
    x, weight, form, _ = operands(groups, 5, padding, dtype)
    captured = capture_forward(fx.symbolic_trace(lambda x, w: aten.convolution(x, w, *form)), [x, weight]).module
    before = str(captured.graph)
    assert str(without_slow_groups(captured).graph) == before
