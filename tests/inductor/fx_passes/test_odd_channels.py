"""Convolutions of odd channels in half precision: values, gradients, strides; whole words are what is convolved."""

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


class Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 20, 3, padding=1), nn.Conv2d(20, 3, 3, stride=2)
        self.norm, self.side = nn.GroupNorm(4, 20), nn.ConvTranspose2d(20, 5, 2)

    def forward(self, x: torch.Tensor) -> Any:
        y = F.silu(self.norm(self.first(x)))
        image = self.last(y)
        return image, image.flatten(2).transpose(1, 2), y, self.side(y), F.max_pool2d(image, 2), image.view(-1)


class Sound(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv1d(2, 12, 7, padding=3), nn.Conv1d(12, 1, 7, padding=3, bias=False)

    def forward(self, x: torch.Tensor) -> Any:
        return self.last(torch.sin(self.first(x))).tanh().squeeze(1)


class Films(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv3d(3, 16, 3), nn.Conv3d(16, 6, (1, 3, 3))

    def forward(self, x: torch.Tensor) -> Any:
        return self.last(F.relu(self.first(x)))


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(("model", "shape"), [(Images, (2, 3, 9, 8)), (Sound, (2, 2, 30)), (Films, (1, 3, 4, 6, 7))], ids=str)
def test_values_and_strides(model: Any, shape: Any, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    compile_aten = from_aten.compile_aten

    def noting(module: Any, fakes: Any) -> Any:
        seen.extend(node for node in module.graph.nodes if node.target is aten.convolution.default)
        return compile_aten(module, fakes)

    monkeypatch.setattr(from_aten, "compile_aten", noting)
    eager, x = model().to(dtype), torch.randn(shape, dtype=dtype)
    compiled = dynamo.compile(copy.deepcopy(eager), fullgraph=True, options={"graph_cache": False})
    with torch.no_grad():
        found, wanted, exact = compiled(x), eager(x), copy.deepcopy(eager).double()(x.double())
    if isinstance(found, torch.Tensor):
        found, wanted, exact = [found], [wanted], [exact]
    for ours, theirs, true in zip(found, wanted, exact, strict=True):
        assert ours.shape == theirs.shape and ours.stride() == theirs.stride() and ours.dtype is theirs.dtype
        assert (ours - true).abs().max() <= 2 * (theirs - true).abs().max() + 1e-2 * true.abs().max()
    sizes = [node.args[1].meta["val"].shape[:2] for node in seen if not node.args[6]]
    assert sizes and all(results % 8 == 0 and (channels < 8 or channels % 8 == 0) for results, channels in sizes)


@pytest.mark.parametrize("sizes", [(12, 16), (16, 12), (12, 20), (3, 20)], ids=str)
@pytest.mark.parametrize("axes", [2, 3])
@pytest.mark.parametrize("wanted", [(True, True, True), (False, True, False)], ids=str)
@pytest.mark.every_combination
def test_gradients(sizes: tuple[int, int], axes: int, wanted: Any) -> None:
    channels, results = sizes
    x = torch.randn(2, channels, *[6] * axes, dtype=torch.bfloat16)
    weight = torch.randn(results, channels, *[3] * axes, dtype=torch.bfloat16)
    form: Any = ([1] * axes, [0] * axes, [1] * axes, False, [0] * axes, 1)
    gradient = torch.randn_like(aten.convolution(x, weight, None, *form))

    def backward(gradient: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> Any:
        found = aten.convolution_backward(gradient, x, weight, [results], *form, list(wanted))
        return [found[position] * 2 for position in range(3) if wanted[position]]

    captured = capture_forward(fx.symbolic_trace(backward), [gradient, x, weight]).module
    module = layout.channels_last(captured, LOWERINGS.__contains__)
    (node,) = module.graph.find_nodes(op="call_function", target=aten.convolution_backward.default)
    assert all(given.meta["val"].shape[1] in (3, 16, 24) for given in node.all_input_nodes)
    for old, new in zip(captured.graph.output_node().args[0], module.graph.output_node().args[0], strict=True):
        assert old.meta["val"].stride() == new.meta["val"].stride()
    found = fx.Interpreter(module).run(gradient, x, weight)
    for ours, theirs in zip(found, backward(gradient, x, weight), strict=True):
        assert ours.shape == theirs.shape
        torch.testing.assert_close(ours, theirs, rtol=3e-2, atol=3e-2 * float(theirs.abs().max()))


@pytest.mark.parametrize(("dtype", "channels", "groups"), [
    (torch.bfloat16, 16, 1), (torch.bfloat16, 12, 2), (torch.float32, 12, 1),
])  # fmt: skip
def test_whole_words_groups_and_single_precision_stay(dtype: torch.dtype, channels: int, groups: int) -> None:
    def program(x: torch.Tensor, weight: torch.Tensor) -> Any:
        return aten.convolution(x, weight, None, [1, 1], [0, 0], [1, 1], False, [0, 0], groups)

    x, weight = torch.randn(2, channels, 6, 6, dtype=dtype), torch.randn(channels, channels // groups, 3, 3, dtype=dtype)
    captured = capture_forward(fx.symbolic_trace(program), [x, weight]).module
    module = layout.channels_last(captured, LOWERINGS.__contains__)
    (node,) = module.graph.find_nodes(op="call_function", target=aten.convolution.default)
    assert node.args[1].meta["val"].shape == weight.shape
