"""Linear interpolation: eager's values, among them those beside infinities."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import dynamo
from inductor import metrics

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


@pytest.mark.parametrize("dynamic", [None, True])
def test_beside_infinities_for_changing_sizes(dynamic: bool | None) -> None:
    """Where both sizes are equal eager reads no neighbour; a weight of 0 makes nan of infinity."""

    def f(x: torch.Tensor) -> Any:
        return (
            F.interpolate(x, scale_factor=2, mode="bilinear"),
            F.interpolate(x, size=(x.shape[3], x.shape[2]), mode="bilinear", align_corners=True),
            F.interpolate(x, scale_factor=0.5, mode="nearest-exact"),
        )

    compiled = dynamo.compile(f, dynamic=dynamic)
    before = metrics.snapshot()["graphs"]
    for height, width in ((6, 4), (5, 7), (4, 4), (7, 5), (9, 12), (6, 6), (8, 5)):
        x = torch.randn(2, 3, height, width, dtype=torch.float64)
        x.view(-1)[random.randrange(9) :: 13] = float("inf")
        torch.testing.assert_close(compiled(x), f(x), equal_nan=True)
    assert metrics.snapshot()["graphs"] - before <= 4
    with pytest.raises(RuntimeError):
        compiled(torch.randn(2, 3, 0, 4, dtype=torch.float64))


def test_samples_beside_infinities() -> None:
    """What lies outside counts for nothing, also where the border is infinite."""

    def f(x: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
        return F.grid_sample(x + 1, grid, align_corners=False)

    compiled = dynamo.compile(f)
    for height, width in ((4, 5), (3, 6), (7, 4)):
        x = torch.randn(2, 3, height, width, dtype=torch.float64)
        x[..., 0], x[..., -1, :] = float("inf"), float("nan")
        grid = 3 * torch.rand(2, height, 3, 2, dtype=torch.float64) - 1.5
        torch.testing.assert_close(compiled(x, grid), f(x, grid), equal_nan=True)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic", "nearest"])
def test_gradients_of_changing_sizes(mode: str) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x, size=(x.shape[3] + 1, 9), mode=mode)

    compiled = dynamo.compile(f, dynamic=True)
    for height, width in ((6, 4), (7, 9), (5, 8)):
        x = torch.randn(2, 3, height, width, dtype=torch.float64, requires_grad=True)
        weight = torch.randn_like(f(x))
        weight.view(-1)[random.randrange(9)] = float("inf")
        ours, eager = (torch.autograd.grad((g(x) * weight).sum(), x)[0] for g in (compiled, f))
        torch.testing.assert_close(ours, eager, equal_nan=True)


def test_gradients() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x.sin(), scale_factor=1.7, mode="bilinear")

    ours, eager = (torch.randn(2, 3, 4, 5, dtype=torch.float64, requires_grad=True) for _ in range(2))
    eager.data.copy_(ours.data)
    weight = torch.randn_like(f(eager))
    (f(eager) * weight).sum().backward()
    (dynamo.compile(f)(ours) * weight).sum().backward()
    torch.testing.assert_close(ours.grad, eager.grad)
