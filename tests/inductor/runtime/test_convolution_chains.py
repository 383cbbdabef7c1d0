"""Convolutions of our own that are computed together, in strips of lines: right for all sizes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import dynamo
from inductor.autotune import library_convolutions
from inductor.autotune.answers import Answers
from inductor.config import config
from inductor.scheduler import convolution_chains
from inductor.scheduler.schedule import ConvolutionChain, Schedule
from tests.inductor.runtime.own_functions import (
    assert_near,
    convolutions_are_ours,
    noted_schedules,
)
from tests.parametrize import few

pytestmark = pytest.mark.usefixtures("nothing_is_said")

Tensor = torch.Tensor


@pytest.fixture
def schedules(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Schedule]]:
    """Convolutions are ours, and chains of any size."""
    convolutions_are_ours(monkeypatch)
    monkeypatch.setattr(convolution_chains, "FEWEST_BYTES", 0)
    with noted_schedules(monkeypatch) as seen:
        yield seen


def lengths(schedules: list[Schedule]) -> list[int]:
    """Links of each chain."""
    return [len(chain.links) for schedule in schedules for chain in schedule.chains()]


def assert_chains_near(module: nn.Module, *inputs: Tensor) -> None:
    assert_near(module, dynamo.compile(module), *inputs)


def inverted(
    channels: int, inner: int, window: int, stride: int, dilation: int = 1, padding: int | None = None
) -> nn.Sequential:
    """More channels, a window of its own for each, fewer channels."""
    padding = window // 2 * dilation if padding is None else padding
    return nn.Sequential(
        nn.Conv2d(channels, inner, 1), nn.BatchNorm2d(inner), nn.ReLU6(),
        nn.Conv2d(inner, inner, window, stride, padding, dilation, groups=inner),
        nn.SiLU(), nn.Conv2d(inner, channels, 1),
    ).eval()  # fmt: skip


SIZES = [(1, 17, 23), (3, 56, 56), (5, 33, 20), (2, 7, 7), (1, 3, 70), (4, 3, 2)]
WINDOWS = [(3, 1, 1, None), (3, 2, 1, None), (5, 2, 1, None), (3, 1, 2, None), (3, 1, 1, 0),
           (3, 3, 1, 3), (1, 2, 1, 0)]  # fmt: skip


@pytest.mark.parametrize("size", few(SIZES, 3))
@pytest.mark.parametrize("window", few(WINDOWS, 3))
@pytest.mark.parametrize("inner", [64, 40])
def test_a_block_is_one_step(
    schedules: list[Schedule], size: tuple[int, int, int], window: Any, inner: int
) -> None:
    images, height, width = size
    if window[3] == 0 and min(height, width) < 5:
        pytest.skip("the window is larger than the image")
    assert_chains_near(inverted(16, inner, *window), torch.randn(images, 16, height, width))
    assert lengths(schedules) == [3]


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("size", [(1, 96, 96), (7, 31, 64), (1, 2, 2)])
def test_strips_for_each_number_of_threads(
    schedules: list[Schedule], threads: int, size: tuple[int, int, int]
) -> None:
    images, height, width = size
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert_chains_near(inverted(16, 96, 3, 1), torch.randn(images, 16, height, width))
    finally:
        torch.set_num_threads(before)
    assert lengths(schedules) == [3]


def test_a_first_window_and_many_links(schedules: list[Schedule]) -> None:
    blocks = [inverted(32, 48, 3, stride) for stride in (1, 2, 1)]
    module = nn.Sequential(nn.Conv2d(3, 32, 3, 2, 1), nn.ReLU6(), *blocks).eval()
    assert_chains_near(module, torch.randn(2, 3, 61, 83))
    assert lengths(schedules) == [8, 2]


class Residual(nn.Module):
    """What is added reads another tensor at the place of each pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.block = nn.Conv2d(16, 16, 1), inverted(16, 48, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.first(x))
        return torch.relu(self.block(y) + y)


def test_what_is_added_stays_whole(schedules: list[Schedule]) -> None:
    assert_chains_near(Residual().eval(), torch.randn(3, 16, 40, 37))
    assert lengths(schedules) == [3]
    (chain,) = schedules[0].chains()
    assert len(chain.between) == 2


class Wanted(nn.Module):
    """What lies between is wanted by others, too."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(16, 48, 1), nn.Conv2d(48, 48, 3, padding=1, groups=48)
        self.c = nn.Conv2d(48, 16, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        first = self.a(x).relu()
        second = self.b(first).relu()
        return first, self.c(second), second.mean((2, 3))


def test_results_that_others_want_are_stored_whole(schedules: list[Schedule]) -> None:
    module, x = Wanted().eval(), torch.randn(2, 16, 20, 21)
    got, expected = dynamo.compile(module)(x), module(x)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
    assert lengths(schedules) == []


def test_a_written_input_does_not_move(schedules: list[Schedule]) -> None:
    module = inverted(16, 48, 3, 1)

    def program(x: Tensor) -> Tensor:
        wide = module[:3](x)
        x.mul_(0)
        return module[3:](wide)

    x = torch.randn(2, 16, 20, 21).contiguous(memory_format=torch.channels_last)
    other = x.clone()
    expected = program(other)
    torch.testing.assert_close(dynamo.compile(program)(x), expected, rtol=1e-4, atol=1e-4)
    assert not x.any()


def test_a_view_between_is_no_chain(schedules: list[Schedule]) -> None:
    first, behind = nn.Conv2d(16, 48, 1), nn.Conv2d(48, 48, 3, padding=1, groups=48)

    def program(x: Tensor) -> Tensor:
        lines = first(x).permute(0, 2, 3, 1).reshape(2, 10, 42, 48)  # two lines are one
        return behind(lines.permute(0, 3, 1, 2))

    x = torch.randn(2, 16, 20, 21).contiguous(memory_format=torch.channels_last)
    expected = program(x)
    torch.testing.assert_close(dynamo.compile(program)(x), expected, rtol=1e-4, atol=1e-4)
    assert lengths(schedules) == []


def test_what_is_not_finite_stays_where_it_is(schedules: list[Schedule]) -> None:
    module, x = inverted(16, 48, 3, 1), torch.randn(2, 16, 30, 30)
    x[0, 3, 4, 4], x[1, 5, 29, 7] = float("nan"), float("inf")
    got, expected = dynamo.compile(module)(x), module(x)
    torch.testing.assert_close(got, expected, equal_nan=True, rtol=1e-4, atol=1e-4)
    assert lengths(schedules) == [3] and got.isnan().any() and not got.isnan().all()


def test_small_results_and_large_weights_stay_apart(
    schedules: list[Schedule], monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(2, 16, 20, 21)
    for name in ("MOST_WEIGHT", "MOST_FIRST_WEIGHT"):
        with monkeypatch.context() as patch:
            patch.setattr(convolution_chains, name, 16 * 48 * 4 - 1)
            dynamo.reset()
            assert_chains_near(inverted(16, 48, 3, 1), x)
    monkeypatch.setattr(convolution_chains, "FEWEST_BYTES", 2 * 48 * 20 * 21 * 4 + 1)
    dynamo.reset()
    assert_chains_near(inverted(16, 48, 3, 1), x)
    assert lengths(schedules) == [2, 2]


def test_the_step_is_told_as_one(schedules: list[Schedule]) -> None:
    module, x = inverted(16, 48, 3, 1), torch.randn(2, 16, 20, 21)
    compiled = dynamo.compile(module)
    compiled(x)
    with dynamo.profile() as seen:
        compiled(x)
    (chain,) = schedules[0].chains()
    assert isinstance(chain, ConvolutionChain) and chain.name in str(seen)
    assert str(chain) in str(schedules[0])


@pytest.mark.parametrize(("ratio", "ours"), [(0.2, True), (0.3, False), (-0.1, True)])
def test_a_link_may_take_a_little_more(
    monkeypatch: pytest.MonkeyPatch, ratio: float, ours: bool
) -> None:
    """ratio: the logarithm of the time of our own over the library's, each measured alone."""
    monkeypatch.setattr(library_convolutions, "_measure", lambda *_: {"ours": ratio})
    monkeypatch.setattr(Answers, "save", lambda _: None)
    monkeypatch.setattr(library_convolutions, "FEWEST_BYTES", 0)
    found: dict[Any, tuple[bool, str]] = {}
    fastest = library_convolutions.Convolutions.fastest

    def kept(self: Any, node: Any, geometry: Any) -> str:
        self.answers.known.clear()
        found[geometry] = self._is_linked(node), fastest(self, node, geometry)
        return found[geometry][1]

    monkeypatch.setattr(library_convolutions.Convolutions, "fastest", kept)
    alone = nn.Conv2d(24, 64, 5, 2).eval()
    with config.patch(library_kernels="measure"), torch.no_grad():
        module = nn.Sequential(inverted(24, 56, 3, 1), nn.Tanh(), alone)
        assert_chains_near(module, torch.randn(2, 24, 40, 41))
    way = "ours" if ours else "packed"
    assert [*found.values()].count((True, way)) == 3 and len(found) == 4
    assert (False, "ours" if ratio < 0 else "packed") in found.values()


@pytest.mark.parametrize("before", [False, True])
def test_other_calls_are_no_links(monkeypatch: pytest.MonkeyPatch, before: bool) -> None:
    """A GEMM before or behind a convolution, which reads what the other one makes."""
    monkeypatch.setattr(library_convolutions, "FEWEST_BYTES", 0)
    found: list[bool] = []
    fastest = library_convolutions.Convolutions.fastest

    def kept(self: Any, node: Any, geometry: Any) -> str:
        found.append(self._is_linked(node))
        return fastest(self, node, geometry)

    monkeypatch.setattr(library_convolutions.Convolutions, "fastest", kept)
    behind = [nn.Conv2d(16, 64, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64 * 36, 10)]
    module = nn.Sequential(nn.Linear(64, 1024), nn.Unflatten(1, (16, 8, 8)), *behind)
    with config.patch(library_kernels="measure"), torch.no_grad():
        assert_chains_near(module.eval() if before else module[1:].eval(), torch.randn(4, 64 if before else 1024))
    assert found and not any(found)
