"""Random nets of convolutions, in the layouts and forms that a GPU gets; a CPU computes them here.

Forward and gradients against float64, no further from it than eager is, and eager's strides.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import dynamo
from dynamo.aot.api import compile_training
from inductor.driver import from_aten
from inductor.fx_passes import (
    grouped_sequences,
    layout_choice,
    patches,
    pipeline,
    sequences,
)

NORMS = {1: nn.InstanceNorm1d, 2: nn.InstanceNorm2d, 3: nn.InstanceNorm3d}
CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
TRANSPOSED = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}
POOLS = {1: nn.AvgPool1d, 2: nn.AvgPool2d, 3: nn.AvgPool3d}
LAST = {2: torch.channels_last, 3: torch.channels_last_3d}


@pytest.fixture(autouse=True)
def on_a_gpu(as_on_gpu: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    as_on_gpu(layout_choice, sequences, grouped_sequences, patches)
    monkeypatch.setattr(pipeline, "_goes_back_on_cpu", lambda module: False)
    monkeypatch.setattr(grouped_sequences, "LONG", 6)


def random_net(r: random.Random, axes: int) -> tuple[nn.Sequential, int]:
    """Some layers, and how many channels they read."""
    first = channels = r.choice([1, 2, 3, 4, 8, 12, 16])
    layers: list[nn.Module] = []
    for _ in range(r.randint(1, 4)):
        kind = r.choice(["convolution"] * 4 + ["depthwise", "groups", "transposed", "norm", "instances", "activation", "pool"])
        if kind == "norm":
            layers.append(nn.GroupNorm(r.choice([n for n in (1, 2, 4) if channels % n == 0]), channels))
        elif kind == "instances":
            layers.append(NORMS[axes](channels))
        elif kind == "activation":
            layers.append(r.choice([nn.SiLU(), nn.GELU(), nn.LeakyReLU(0.1)]))
        elif kind == "pool":
            layers.append(POOLS[axes](2))
        else:
            groups = {"depthwise": channels, "groups": 2 if channels % 2 == 0 else 1}.get(kind, 1)
            results = channels * r.choice([1, 2]) if kind == "depthwise" else groups * r.choice([1, 2, 3, 5, 8, 12, 20])
            window, gap = r.choice([1, 2, 3, 5, 7] if axes == 1 else [1, 2, 3]), r.choice([1, 1, 1, 2, 5 if axes == 1 else 1])
            step, pad = r.choice([1, 1, 2, window if axes == 3 else 1]), r.choice([0, gap * (window - 1) // 2, window // 2])
            make = TRANSPOSED if kind == "transposed" else CONVOLUTIONS
            layers.append(make[axes](channels, results, window, step, pad, dilation=gap, groups=groups, bias=r.random() < 0.6))
            channels = results
    return nn.Sequential(*layers), first


def results_of(model: nn.Module, call: Any, x: torch.Tensor) -> list[torch.Tensor]:
    leaf = x.detach().clone().requires_grad_()
    y = call(leaf)
    y.backward(torch.linspace(-1, 1, y.numel(), dtype=torch.float64).view(y.shape).to(y.dtype))
    found = [y.detach(), leaf.grad, *[each.grad for each in model.parameters()]]
    model.zero_grad()
    return found


def steps(x: torch.Tensor) -> list[int]:
    """Strides where they say anything: along more than one element."""
    return [step for extent, step in zip(x.shape, x.stride(), strict=True) if extent != 1]


def tried(seed: int) -> bool:
    """False for a net that eager refuses."""
    r = random.Random(seed)
    torch.manual_seed(seed)
    axes = r.choice([1, 1, 1, 2, 3])
    (model, channels), dtype = random_net(r, axes), r.choice([torch.float16, torch.bfloat16, torch.float32])
    model = model.to(dtype)
    x = torch.randn(r.choice([1, 1, 2, 3]), channels, *[r.randint(9, 14) if axes > 1 else r.randint(24, 40)] * axes).to(dtype)
    if r.random() < 0.3:
        x = x.contiguous(memory_format=LAST[axes]) if axes > 1 else x.transpose(1, 2).contiguous().transpose(1, 2)
    wide = copy.deepcopy(model).double()
    try:
        eager, exact = results_of(model, model, x), results_of(wide, wide, x.double())
    except (RuntimeError, ValueError):
        return False
    dynamo.reset()
    backend: Any = lambda gm, inputs: compile_training(  # noqa: E731
        gm, inputs, from_aten.compile_aten, from_aten.compile_aten, rewrite=pipeline.laid_out)
    ours = results_of(model, dynamo.compile(model, backend=backend, fullgraph=True), x)
    close = 1e-3 if dtype is torch.float32 else 4e-2
    for found, theirs, true in zip(ours, eager, exact, strict=True):
        limit = 4 * (theirs.double() - true).abs().max() + close * true.abs().max() + 4 * close
        assert found.shape == theirs.shape and steps(found) == steps(theirs), (seed, model)
        assert (found.double() - true).abs().max() <= limit, (seed, model)
    return True


@pytest.mark.parametrize("begin", [0, pytest.param(40, marks=pytest.mark.long), pytest.param(140, marks=pytest.mark.long)])
def test_random_nets(begin: int) -> None:
    count = 8 if begin == 0 else 100
    assert sum(tried(seed) for seed in range(begin, begin + count)) > count // 2
