"""Gradients of convolutions are computed with channels of zeros: the same numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from inductor.config import config
from inductor.fx_passes import odd_gradients
from inductor.fx_passes.odd_gradients import BACKWARD, widen_channels

LAST = torch.channels_last


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(odd_gradients, "on_gpu", lambda device: True)
    monkeypatch.setattr(odd_gradients, "FEWEST_ELEMENTS", 1)
    monkeypatch.setattr(odd_gradients, "MANY_PIXELS", 1)


def gradients(images: Tensor, weight: Tensor, bias: Tensor | None, stride: int) -> Any:
    result = F.conv2d(images, weight, bias, stride, padding=1)
    wanted = [each for each in (images, weight, bias) if each is not None and each.requires_grad]
    return torch.autograd.grad(result.float().square().sum(), wanted)


def given(
    channels: int, results: int, window: int = 3, bias: bool = False, images: bool = True,
    dtype: torch.dtype = torch.bfloat16,
) -> tuple[Any, ...]:
    x = torch.randn(2, channels, 9, 7).to(dtype).to(memory_format=LAST).requires_grad_(images)
    w = torch.randn(results, channels, window, window) / 30
    w = w.to(dtype).to(memory_format=LAST).requires_grad_()
    return x, w, torch.randn(results).to(dtype).requires_grad_() if bias else None


def rewritten(*arguments: Any) -> tuple[Any, int]:
    module = make_fx(gradients, tracing_mode="fake")(*arguments)
    before = len(module.graph.find_nodes(op="call_function", target=BACKWARD))
    widen_channels(module)
    return module, len(module.graph.find_nodes(op="call_function", target=BACKWARD)) - before


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("channels", "results"), [(96, 32), (48, 64), (72, 8)])
def test_values(channels: int, results: int, bias: bool, stride: int) -> None:
    arguments = *given(channels, results, bias=bias), stride
    module, more = rewritten(*arguments)
    assert more == 1
    for found, wanted in zip(module(*arguments), gradients(*arguments), strict=True):
        assert found.stride() == wanted.stride() and found.dtype is wanted.dtype
        torch.testing.assert_close(found, wanted)


def channels_of(module: Any) -> list[tuple[Any, ...]]:
    """Results, channels of the images and what is wanted, for each call."""
    nodes = module.graph.find_nodes(op="call_function", target=BACKWARD)
    return sorted((node.args[0].meta["val"].shape[1], node.args[1].meta["val"].shape[1], *node.args[10]) for node in nodes)


@pytest.mark.parametrize(("channels", "results", "stride", "calls"), [
    (96, 96, 1, [(96, 96, False, True, False), (128, 96, True, False, False)]),
    (128, 160, 1, [(160, 128, False, True, False), (192, 128, True, False, False)]),
    (96, 96, 2, [(96, 96, True, True, False)]), (64, 96, 1, [(96, 64, True, True, False)]),
    (96, 32, 1, [(32, 96, True, False, False), (32, 128, False, True, False)]),
])
def test_of_the_images(channels: int, results: int, stride: int, calls: list[tuple[Any, ...]]) -> None:
    arguments = *given(channels, results), stride
    module, _ = rewritten(*arguments)
    assert channels_of(module) == calls
    for found, wanted in zip(module(*arguments), gradients(*arguments), strict=True):
        assert found.stride() == wanted.stride()
        torch.testing.assert_close(found, wanted)


def test_of_the_weight_alone() -> None:
    arguments = *given(96, 32, images=False), 1
    module, more = rewritten(*arguments)
    (node,) = module.graph.find_nodes(op="call_function", target=BACKWARD)
    assert more == 0 and node.args[1].meta["val"].shape[1] == 128
    torch.testing.assert_close(module(*arguments), gradients(*arguments))


@pytest.mark.parametrize("arguments", [
    (*given(128, 32), 1), (*given(32, 32), 1), (*given(64, 96), 1), (*given(96, 32, window=5), 1),
    (*given(96, 32, dtype=torch.float32), 1),
], ids=["whole", "few channels", "many results", "large windows", "float32"])  # fmt: skip
def test_others_stay(arguments: tuple[Any, ...]) -> None:
    assert rewritten(*arguments)[1] == 0


def test_templates_take_channels_as_they_are() -> None:
    with config.patch(max_autotune=True):
        assert rewritten(*given(96, 32), 1)[1] == 0
