"""Convolutions of sequences as those of images: values, gradients, strides, and which they are."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn

import dynamo
from dynamo.aot.capture import capture_forward
from inductor.driver import from_aten
from inductor.fx_passes import layout, layout_choice, sequences
from inductor.lowering.registry import LOWERINGS

aten = torch.ops.aten
HALVES = [torch.bfloat16, torch.float16]


@pytest.fixture(autouse=True)
def on_a_gpu(as_on_gpu: Callable[..., None]) -> None:
    as_on_gpu(layout_choice, sequences)


class Speech(nn.Module):
    """As encoders of speech: strides, a group norm, a depthwise and a transposed convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv1d(4, 16, 3, padding=1, bias=False), nn.Conv1d(16, 16, 3, stride=2)
        self.norm, self.alone = nn.GroupNorm(4, 16), nn.Conv1d(16, 16, 3, padding=1, groups=16)
        self.up = nn.ConvTranspose1d(16, 6, 4, stride=2, padding=1, output_padding=1, dilation=2)

    def forward(self, x: torch.Tensor) -> Any:
        y = F.gelu(self.second(F.gelu(self.norm(self.first(x)))))
        rows = F.layer_norm(y.transpose(1, 2), (16,)).transpose(1, 2)
        return self.up(y + self.alone(rows)), y


def as_exact(found: Any, eager: Any, exact: Any) -> None:
    for ours, theirs, true in zip(found, eager, exact, strict=True):
        assert ours.stride() == theirs.stride() and ours.dtype is theirs.dtype
        limit = 2 * (theirs - true).abs().max() + 1e-2 * true.abs().max()
        assert (ours - true).abs().max() <= limit


def convolved(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What convolutions read behind the passes, of graphs that are compiled from now on."""
    seen: list[Any] = []
    compile_aten = from_aten.compile_aten

    def noting(module: Any, fakes: Any) -> Any:
        seen.extend(node.args[0].meta["val"] for node in module.graph.nodes if node.target is aten.convolution.default)
        return compile_aten(module, fakes)

    monkeypatch.setattr(from_aten, "compile_aten", noting)
    return seen


@pytest.mark.parametrize("dtype", HALVES)
def test_values_and_strides(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = convolved(monkeypatch)
    model, x = Speech().to(dtype), torch.randn(2, 4, 12, dtype=dtype)
    compiled = dynamo.compile(copy.deepcopy(model), fullgraph=True, options={"graph_cache": False})
    with torch.no_grad():
        as_exact(compiled(x), model(x), copy.deepcopy(model).double()(x.double()))
    assert [value.dim() for value in seen] == [4, 4, 3, 4]  # the depthwise one stays
    assert all(value.stride()[1] == 1 for value in seen if value.dim() == 4)


def test_lines_of_one_channel_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of filters; what has many results is a GEMM."""
    seen = convolved(monkeypatch)
    line, weights = torch.randn(6, 1, 40).half(), [torch.randn(n, 1, 5).half() for n in (1, 9)]

    def program(line: Any, a: Any, b: Any) -> Any:
        return F.conv1d(line, a), F.conv1d(line, b)

    with torch.no_grad():
        found = dynamo.compile(program, fullgraph=True, options={"graph_cache": False})(line, *weights)
        exact = program(line.double(), *(each.double() for each in weights))
        as_exact(found, program(line, *weights), exact)
    assert [value.dim() for value in seen] == [3, 4]


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("wanted", [(True, True, True), (False, True, False)], ids=str)
def test_gradients(transposed: bool, wanted: tuple[bool, ...]) -> None:
    x = torch.randn(2, 8, 12, dtype=torch.bfloat16)
    weight = torch.randn(8, 6, 3, dtype=torch.bfloat16) if transposed else torch.randn(6, 8, 3, dtype=torch.bfloat16)
    rest: Any = ([2], [1], [1], transposed, [1 if transposed else 0], 1)
    gradient = torch.randn_like(aten.convolution(x, weight, None, *rest))

    def backward(gradient: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> Any:
        found = aten.convolution_backward(gradient, x, weight, [6], *rest, list(wanted))
        return [found[position] * 2 for position in range(3) if wanted[position]]

    captured = capture_forward(fx.symbolic_trace(backward), [gradient, x, weight]).module
    module = sequences.sequences_as_images(captured)
    (node,) = module.graph.find_nodes(op="call_function", target=aten.convolution_backward.default)
    assert all(given.meta["val"].dim() == 4 for given in node.all_input_nodes)
    module.graph.lint()
    found = fx.Interpreter(module).run(gradient, x, weight)
    for ours, theirs in zip(found, backward(gradient, x, weight), strict=True):
        assert ours.shape == theirs.shape
        torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(("dtype", "shape"), [(torch.float64, (4, 12)), (torch.bfloat16, (4, 12, 5))], ids=str)
def test_others_stay(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    """Double precision, and images."""
    axes = len(shape) - 1
    x, weight = torch.randn(2, *shape, dtype=dtype), torch.randn(6, 4, *[3] * axes, dtype=dtype)

    def program(x: torch.Tensor, weight: torch.Tensor) -> Any:
        return aten.convolution(x, weight, None, [1] * axes, [0] * axes, [1] * axes, False, [0] * axes, 1)

    captured = capture_forward(fx.symbolic_trace(program), [x, weight]).module
    before = str(captured.graph)
    assert str(sequences.sequences_as_images(captured).graph) == before


def test_gradients_of_few_channels_stay() -> None:
    x, weight = torch.randn(2, 2, 12).bfloat16(), torch.randn(6, 2, 3).bfloat16()
    form: Any = (None, [1], [0], [1], False, [0], 1)

    def backward(gradient: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> Any:
        return aten.convolution_backward(gradient, x, weight, *form, [False, True, False])[1]

    gradient = torch.randn_like(aten.convolution(x, weight, *form))
    module = sequences.sequences_as_images(capture_forward(fx.symbolic_trace(backward), [gradient, x, weight]).module)
    (node,) = module.graph.find_nodes(op="call_function", target=aten.convolution_backward.default)
    assert node.args[1].meta["val"].dim() == 3


@pytest.mark.parametrize(("gap", "padding", "places"), [(5, 0, 3), (9, 27, 7), (4, 3, 2), (7, 40, 3)], ids=str)
@pytest.mark.parametrize("length", [36, 41])
@pytest.mark.every_combination
def test_windows_with_gaps(gap: int, padding: int, places: int, length: int) -> None:
    """Their gaps become columns."""
    length = max(length, gap * (places - 1) + 1)
    x, weight, bias = torch.randn(2, 8, length), torch.randn(6, 8, places), torch.randn(6)
    form: Any = ([1], [padding], [gap], False, [0], 1)

    def program(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> Any:
        y = aten.convolution(x, weight, bias, *form)
        return y, aten.convolution(y.relu(), weight[:, :6].contiguous(), None, *form)

    values = [x.bfloat16(), weight.bfloat16(), bias.bfloat16()]
    captured = capture_forward(fx.symbolic_trace(program), values).module
    module = sequences.sequences_as_images(captured)
    module.graph.lint()
    found = module.graph.find_nodes(op="call_function", target=aten.convolution.default)
    assert len(found) == 2 and all([*node.args[5]] == [1, 1] for node in found)
    assert all(node.meta["val"].is_contiguous() for node in module.graph.output_node().args[0])
    module = layout.channels_last(module, LOWERINGS.__contains__)
    for ours, theirs in zip(fx.Interpreter(module).run(*values), program(*values), strict=True):
        assert ours.shape == theirs.shape
        torch.testing.assert_close(ours, theirs, rtol=3e-2, atol=3e-2 * float(theirs.abs().max()))


def test_groups_stay() -> None:
    """Channels last, the library cuts them out of images."""
    x, weight = torch.randn(2, 32, 12).bfloat16(), torch.randn(32, 8, 3).bfloat16()

    def program(x: torch.Tensor, weight: torch.Tensor) -> Any:
        return aten.convolution(x, weight, None, [2], [0], [1], False, [0], 4)

    module = sequences.sequences_as_images(capture_forward(fx.symbolic_trace(program), [x, weight]).module)
    (node,) = module.graph.find_nodes(op="call_function", target=aten.convolution.default)
    assert node.args[0].meta["val"].dim() == 3


def test_sequences_that_stay_are_given_as_rows() -> None:
    """ATen would copy them."""
    x, weight, first = torch.randn(2, 2, 14).bfloat16(), torch.randn(8, 8, 3).bfloat16(), torch.randn(8, 2, 3).bfloat16()
    form: Any = (None, [1], [0], [1], False, [0], 1)

    def backward(gradient: torch.Tensor, y: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, first: torch.Tensor) -> Any:
        of_y = aten.convolution_backward(gradient, y, weight, *form, [True, False, False])[0]
        return aten.convolution_backward(of_y * 2, x, first, *form, [False, True, False])[1]

    y = aten.convolution(x, first, *form)
    values = [torch.randn_like(aten.convolution(y, weight, *form)), y, x, weight, first]
    module = capture_forward(fx.symbolic_trace(backward), values).module
    module = layout.channels_last(sequences.sequences_as_images(module), LOWERINGS.__contains__)
    of_y, of_first = module.graph.find_nodes(op="call_function", target=aten.convolution_backward.default)
    assert of_y.meta["val"][0].is_contiguous(memory_format=torch.channels_last)
    assert of_first.args[0].meta["val"].is_contiguous()
    found = fx.Interpreter(module).run(*values)
    torch.testing.assert_close(found[0], backward(*values), rtol=3e-2, atol=3e-2 * float(backward(*values).abs().max()))


@pytest.mark.parametrize("gap", [1, 5])
def test_what_lies_channels_last_already(gap: int) -> None:
    """Results and gradients are row-major all the same, as ATen gives them."""
    x, weight = torch.randn(2, 30, 8).bfloat16().transpose(1, 2), torch.randn(16, 8, 3).bfloat16()
    form: Any = (None, [1], [1], [gap], False, [0], 1)
    gradient = torch.randn(2, 30 + 2 - 2 * gap, 16).bfloat16().transpose(1, 2)

    def program(gradient: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> Any:
        found = aten.convolution_backward(gradient, x, weight, *form, [True, True, False])
        return aten.convolution(x, weight, *form), found[0], found[1]

    captured = capture_forward(fx.symbolic_trace(program), [gradient, x, weight]).module
    before = [node.meta["val"].stride() for node in captured.graph.output_node().args[0]]
    for rewrite in (sequences.sequences_as_images, lambda module: layout.channels_last(module, LOWERINGS.__contains__)):
        captured = rewrite(captured)
        assert [node.meta["val"].stride() for node in captured.graph.output_node().args[0]] == before
