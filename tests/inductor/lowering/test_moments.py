"""Batch statistics of few channels on a GPU, in pieces: interpreted here."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from test_gpu_training import interpreted, lowered

from inductor.codegen.triton.plan import plan_kernel
from inductor.ir import interpret
from inductor.lowering import moments
from inductor.scheduler.run import schedule_graph

aten = torch.ops.aten
Tensor = torch.Tensor


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Buffers lie in memory that is here."""
    monkeypatch.setattr(interpret, "_allocate", lambda layout: torch.empty(
        layout.storage_elements(), dtype=layout.dtype))


def small(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Pieces of few pixels; gives a list of those that are chosen."""
    for name, value in {"MANY_PIXELS": 64, "SHORTEST_PIECE": 8, "LONGEST_PIECE": 48}.items():
        monkeypatch.setattr(moments, name, value)
    chosen: list[Any] = []
    choose = moments.chunks_of

    def noted(*args: Any) -> Any:
        chosen.append(choose(*args))
        return chosen[-1]

    monkeypatch.setattr("inductor.lowering.reductions.chunks_of", noted)
    return chosen


@pytest.mark.parametrize("correction", [0, 1])
@pytest.mark.parametrize("size", [(4, 3, 12, 10), (2, 5, 96), (5, 2, 3, 4, 6)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_as_exact_as_eager(dtype: Any, size: Any, correction: int, monkeypatch: Any) -> None:
    """Of values far from zero, and of pieces whose means are far apart."""
    chosen = small(monkeypatch)
    x = torch.randn(size, dtype=dtype) + 1000
    x[0] += 300
    axes = [0, *range(2, len(size))]

    def program(x: Tensor) -> Any:
        return aten.var_mean.correction(x, axes, correction=correction, keepdim=True)

    found, exact, eager = interpreted(program, [x]), program(x.double()), program(x)
    assert chosen[-1] is not None and chosen[-1].length <= 48
    for one, other, third in zip(found, exact, eager, strict=True):
        assert one.shape == other.shape
        allowed = 2 * (third.double() - other).abs().max() + 1e-6 * other.abs().max()
        assert (one.double() - other).abs().max() <= allowed


@pytest.mark.parametrize("size, last", [((4, 130, 12, 10), False), ((4, 3, 12, 10), True), ((4, 3, 1, 7), False)])
def test_others_take_two_passes(size: Any, last: bool, monkeypatch: Any) -> None:
    """Many channels, channels last, few pixels."""
    chosen = small(monkeypatch)
    x = torch.randn(size)
    if last:
        x = x.to(memory_format=torch.channels_last)

    def program(x: Tensor) -> Any:
        return aten.var_mean.correction(x, [0, 2, 3], correction=0)

    for one, other in zip(interpreted(program, [x]), program(x), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    assert chosen == [None]


def test_a_batch_norm_has_three_launches() -> None:
    def program(x: Tensor, mean: Tensor, var: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.relu(F.batch_norm(x, mean, var, weight, bias, True, 0.1, 1e-5))

    vectors = [torch.empty(64, device="meta") for _ in range(4)]
    made = lowered(program, [torch.empty(32, 64, 56, 56, device="meta"), *vectors])
    kernels = schedule_graph(made.graph, 8).kernels()
    assert sum(len(plan_kernel(kernel).launches) for kernel in kernels) == 3


@pytest.mark.parametrize("size", [(2, 12, 35), (1, 8, 3, 5, 7), (3, 8, 4, 6)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_group_norm_where_channels_lie_last(dtype: Any, size: Any) -> None:
    """Of rows, as attention in a decoder of images has them, of images, and of films."""
    x = (torch.randn(size[0], *size[2:], size[1]) + 100).to(dtype).movedim(-1, 1)
    weight, bias = torch.randn(size[1]).to(dtype), torch.randn(size[1]).to(dtype)

    form = (size[0], size[1], x[0, 0].numel(), 4, 1e-5)

    def program(x: Tensor, weight: Tensor, bias: Tensor) -> Any:
        return aten.native_group_norm(x, weight, bias, *form)[0]

    (found,) = interpreted(program, [x, weight, bias])
    exact = F.group_norm(x.double(), 4, weight.double(), bias.double(), 1e-5)
    close = 2e-4 if dtype is torch.float32 else 2e-2
    torch.testing.assert_close(found.double(), exact, rtol=close, atol=close)


def test_a_group_norm_of_one_image_whatever_its_first_stride() -> None:
    """Frames of a film that are taken one at a time have strides of the film."""
    x = torch.randn(40, 12).as_strided((1, 12, 5, 7), (12, 1, 84, 12))

    def program(x: Tensor) -> Any:
        return aten.native_group_norm(x, None, None, 1, 12, 35, 4, 1e-5)[0]

    (found,) = interpreted(program, [x])
    torch.testing.assert_close(found, F.group_norm(x, 4), rtol=2e-4, atol=2e-4)
