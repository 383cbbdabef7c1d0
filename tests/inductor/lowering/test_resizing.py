"""Linear interpolation: eager's values, among them those beside infinities."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import dynamo

MODES = {"linear": (7,), "bilinear": (5, 6), "trilinear": (3, 4, 2)}
TARGETS: tuple[dict[str, Any], ...] = (
    {"scale_factor": 2.0}, {"scale_factor": 1.0}, {"scale_factor": 0.7}, {"size": 4}, {"size": 1},
)  # fmt: skip


def check(x: torch.Tensor, dynamic: bool, **options: Any) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x * 2, **options)

    dynamo.reset()
    got, want = dynamo.compile(f, dynamic=dynamic)(x), f(x)
    assert got.stride() == want.stride()
    torch.testing.assert_close(got, want, equal_nan=True)


@pytest.mark.parametrize("mode", MODES)
def test_beside_infinities(mode: str) -> None:
    x = torch.randn(2, 3, *MODES[mode], dtype=torch.float64)
    x.view(-1)[3::11] = float("inf")
    x.view(-1)[5::17] = float("-inf")
    for target, align in itertools.product(TARGETS[:: 2 if mode == "bilinear" else 4], (False, True)):
        check(x, False, mode=mode, align_corners=align, **target)


@pytest.mark.parametrize("target", (0, 2, 3))
def test_sizes_in_symbols_and_channels_last(target: int) -> None:
    x = torch.randn(2, 3, 5, 6, dtype=torch.float64)
    check(x, True, mode="bilinear", **TARGETS[target])
    check(x.contiguous(memory_format=torch.channels_last), False, mode="bilinear", **TARGETS[target])


def test_gradients() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x.sin(), scale_factor=1.7, mode="bilinear")

    ours, eager = (torch.randn(2, 3, 4, 5, dtype=torch.float64, requires_grad=True) for _ in range(2))
    eager.data.copy_(ours.data)
    weight = torch.randn_like(f(eager))
    (f(eager) * weight).sum().backward()
    (dynamo.compile(f)(ours) * weight).sum().backward()
    torch.testing.assert_close(ours.grad, eager.grad)
