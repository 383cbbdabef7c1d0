"""Convolutions whose batch, height and width are known at a call only: channels last, as with
static sizes, with eager's values and strides."""

from __future__ import annotations

import importlib
from typing import Any

import torch
import torch.nn.functional as F

import dynamo
from inductor import metrics

SIZES = ((3, 3, 32, 48), (5, 3, 17, 33), (2, 3, 9, 100))
KERNELS = [torch.randn(*size) for size in ((8, 3, 3, 3), (8, 8, 3, 3), (8, 1, 3, 3))]


def network(x: torch.Tensor) -> Any:
    first, second, each = KERNELS
    y = F.conv2d(x, first, padding=1).relu()
    y = F.conv2d(y, second, padding=1) + F.conv2d(y, each, padding=1, groups=8)
    pooled = F.max_pool2d(y, 2)
    return y, pooled.flatten(2).transpose(1, 2).softmax(-1), y.mean((2, 3)), pooled.reshape(-1, 8)


def test_values_and_strides() -> None:
    compiled = dynamo.compile(network, dynamic=True)
    before = metrics.snapshot()["sizes_compiled"]
    for size in SIZES:
        for given in (torch.randn(size), torch.randn(size).to(memory_format=torch.channels_last)):
            for ours, eagers in zip(compiled(given), network(given), strict=True):
                torch.testing.assert_close(ours, eagers, rtol=1e-4, atol=1e-4)
                assert ours.stride() == eagers.stride()
    assert metrics.snapshot()["sizes_compiled"] == before


def test_channels_last(monkeypatch: Any) -> None:
    """What the convolutions read, seen by the stage behind."""
    seen: list[bool] = []
    driver = importlib.import_module("inductor.driver.from_aten")
    real = driver.compile_aten

    def spy(module: torch.fx.GraphModule, *rest: Any) -> Any:
        for node in module.graph.nodes:
            if node.target is torch.ops.aten.convolution.default:
                fake = node.args[0].meta["val"]
                seen.append(fake.stride()[3] == fake.shape[1] and fake.stride()[1] == 1)
        return real(module, *rest)

    monkeypatch.setattr(driver, "compile_aten", spy)
    dynamo.compile(network, dynamic=True)(torch.randn(SIZES[0]))
    assert seen == [True] * 3
