"""Our own convolution: right for all sizes, alone and with what follows it in a compiled graph."""

from __future__ import annotations

import math
import platform
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import dynamo
from dynamo.store.content import cache_store
from inductor.autotune import library_convolutions, preparation, trials
from inductor.autotune.answers import Answer
from inductor.autotune.library_settings import LibrarySettings
from inductor.config import config
from inductor.driver.cpu import need_toolchain
from inductor.ir.convolutions import Geometry
from inductor.ir.graph import ExternKernel
from inductor.kernels.cpu.convolution_library import Convolver, load_convolver
from inductor.scheduler.fuse_convolutions import bounds_of
from inductor.scheduler.schedule import Schedule
from tests.inductor.runtime.own_functions import (
    assert_near,
    convolutions_are_ours,
    gemms_are_ours,
    noted_schedules,
)
from tests.parametrize import few
from tests.seeds import some

pytestmark = pytest.mark.usefixtures("nothing_is_said")

Tensor = torch.Tensor
LAST = torch.channels_last


@pytest.fixture(scope="module")
def convolver() -> Convolver:
    store = cache_store()
    return load_convolver(store, need_toolchain(store))


def convolve(
    convolver: Convolver, x: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any,
    dilation: Any, threads: int, winograd: bool = False, groups: int = 1,
) -> Tensor:
    like = torch.nn.functional.conv2d(x[:, :1] * 0, weight[:, :1], None, stride, padding, dilation)
    out = torch.full_like(like, float("nan"), memory_format=LAST)
    geometry = Geometry(
        x.shape[0], x.shape[1], tuple(x.shape[2:]), weight.shape[0], tuple(out.shape[2:]),
        tuple(weight.shape[2:]), stride, padding, dilation, groups,
    )  # fmt: skip
    make, size = convolver.panels, convolver.panels_size
    if geometry.is_depthwise():
        make, size = convolver.channel_panels, convolver.channel_panels_size
    if winograd:
        assert geometry.suits_winograd()
        make = convolver.winograd_panels
    panels, last = make(weight), x.contiguous(memory_format=LAST)
    assert panels.numel() == size(tuple(weight.shape))
    convolver.convolve(geometry, last, panels, bias, out, threads, winograd)
    return out


def assert_right(out: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, *how: Any) -> None:
    start = None if bias is None else bias.double()
    expected = torch.nn.functional.conv2d(x.double(), weight.double(), start, *how)
    scale = torch.nn.functional.conv2d(x.double().abs(), weight.double().abs(), None, *how)
    assert ((out - expected).abs() <= 1e-6 * scale + 1e-6).all()


@pytest.mark.parametrize("seed", some(range(12), 3))
def test_sizes(convolver: Convolver, seed: int) -> None:
    numbers = random.Random(seed)
    torch.manual_seed(seed)
    for _ in range(10):
        window, stride, dilation = (
            (numbers.choice([1, 1, 2, 3, 5]), numbers.choice([1, 1, 3])) if seed % 3 else (1, 1),
            (numbers.choice([1, 1, 2, 3]), numbers.choice([1, 2])),
            (numbers.choice([1, 1, 2]), numbers.choice([1, 1, 2])),
        )
        padding = (numbers.choice([0, 0, 1, 2]), numbers.choice([0, 0, 1, 3]))
        least = [(w - 1) * d + 1 for w, d in zip(window, dilation, strict=True)]
        height, width = (at + numbers.choice([0, 1, 6, 13, 14, 31]) for at in least)
        channels = numbers.choice([1, 3, 4, 16, 33, 128, 256])
        out_channels = numbers.choice([1, 15, 16, 17, 31, 32, 33, 64, 70])
        x = torch.randn(numbers.choice([1, 2, 3]), channels, height, width)
        weight = torch.randn(out_channels, channels, *window)
        bias = numbers.choice([None, torch.randn(out_channels)])
        how = (stride, padding, dilation)
        threads = numbers.choice([0, 1, 2, 3, 8])  # 0: without memory for copies
        out = convolve(convolver, x, weight, bias, *how, threads)
        assert_right(out, x, weight, bias, *how)


@pytest.mark.parametrize("seed", some(range(8), 2))
def test_groups(convolver: Convolver, seed: int) -> None:
    numbers = random.Random(seed)
    torch.manual_seed(seed)
    for _ in range(12):
        side = numbers.choice([1, 2, 3, 3, 5, 7])
        window = (side, numbers.choice([side, side, 3]))
        stride = numbers.choice([(1, 1), (2, 2), (1, 3)])
        dilation = numbers.choice([(1, 1), (1, 1), (2, 2), (1, 2)])
        padding = (numbers.choice([0, side // 2]), numbers.choice([0, window[1] // 2, 4]))
        least = [(w - 1) * d + 1 for w, d in zip(window, dilation, strict=True)]
        height, width = (at + numbers.choice([0, 1, 4, 9, 13]) for at in least)
        groups = numbers.choice([2, 3]) if seed % 2 else numbers.choice([16, 17, 24, 40, 63, 96])
        depth, out = (numbers.choice([1, 5, 32]), numbers.choice([32, 64])) if seed % 2 else (1, 1)
        x = torch.randn(numbers.choice([1, 2]), groups * depth, height, width)
        weight = torch.randn(groups * out, depth, *window)
        bias = numbers.choice([None, torch.randn(groups * out)])
        how = (stride, padding, dilation)
        threads = numbers.choice([0, 1, 2, 5])
        made = convolve(convolver, x, weight, bias, *how, threads, groups=groups)
        assert_right(made, x, weight, bias, *how, groups)


@pytest.mark.parametrize("side", [3, 5])
@pytest.mark.parametrize("stride", [1, 2])
def test_depthwise_lines_of_each_length(convolver: Convolver, side: int, stride: int) -> None:
    weight, bias = torch.randn(24, 1, side, side), torch.randn(24)
    for width in range(1, 24):
        for padding in (side // 2, side - 1, 0):
            if width + 2 * padding < side:
                continue
            x = torch.randn(1, 24, side, width)
            how = ((stride, stride), (1, padding), (1, 1))
            made = convolve(convolver, x, weight, bias, *how, 1, groups=24)
            assert_right(made, x, weight, bias, *how, 24)


def test_processors_without_avx() -> None:
    toolchain = need_toolchain(store := cache_store())
    if platform.machine() != "x86_64" or "-march=native" not in toolchain.compile_flags:
        pytest.skip("the flag is that of compilers for x86-64")
    flags = ["-march=x86-64" if flag == "-march=native" else flag for flag in toolchain.compile_flags]
    plain = load_convolver(store, replace(toolchain, compile_flags=tuple(flags)))
    assert plain.lanes == 4
    how = (1, 1), (1, 1), (1, 1)
    for groups in (1, 12):
        x, weight, bias = torch.randn(2, 12, 13, 15), torch.randn(12, 12 // groups, 3, 3), torch.randn(12)
        out = convolve(plain, x, weight, bias, *how, 2, groups=groups)
        assert_right(out, x, weight, bias, *how, groups)


def test_infinite_weights_beside_an_image_are_left_out(convolver: Convolver) -> None:
    x, weight = torch.randn(2, 24, 9, 8), torch.randn(24, 1, 3, 3)
    weight[3, 0, 0, 0], weight[4, 0, 1, 1] = float("inf"), float("nan")
    x[0, 5, 4, 4] = float("nan")
    how = ((1, 1), (1, 1), (1, 1))
    expected = torch.nn.functional.conv2d(x, weight, None, *how, groups=24)
    out = convolve(convolver, x, weight, None, *how, 2, groups=24)
    assert out[:, 3].isfinite().any()
    torch.testing.assert_close(out, expected, equal_nan=True, rtol=1e-5, atol=1e-5)


def test_large_sizes(convolver: Convolver) -> None:
    for channels, out_channels, size, window in (
        (1024, 48, 7, 1), (2048, 33, 5, 1), (640, 32, 9, 3), (3, 32, 224, 7), (64, 16, 200, 3),
    ):  # fmt: skip
        x, weight = torch.randn(2, channels, size, size), torch.randn(out_channels, channels, window, window)
        how = ((1, 1), (window // 2, window // 2), (1, 1))
        out = convolve(convolver, x, weight, None, *how, 2)
        assert_right(out, x, weight, None, *how)


@pytest.mark.parametrize("seed", some(range(6), 2))
def test_fewer_products(convolver: Convolver, seed: int) -> None:
    numbers = random.Random(seed)
    torch.manual_seed(seed)
    for _ in range(10):
        padding = (numbers.choice([0, 1, 2]), numbers.choice([0, 1, 3]))
        height, width = (numbers.choice([3, 4, 7, 8, 13, 14, 31, 56]) for _ in "yx")
        channels = numbers.choice([16, 32, 48, 64, 128, 160])
        out_channels = numbers.choice([1, 8, 15, 16, 17, 31, 32, 33, 64, 70])
        x = torch.randn(numbers.choice([1, 2, 3]), channels, height, width)
        weight = torch.randn(out_channels, channels, 3, 3)
        bias = numbers.choice([None, torch.randn(out_channels)])
        how = ((1, 1), padding, (1, 1))
        threads = numbers.choice([0, 1, 2, 3, 8])
        out = convolve(convolver, x, weight, bias, *how, threads, winograd=True)
        assert_right(out, x, weight, bias, *how)


@pytest.mark.parametrize(("channels", "size"), [(64, 28), (256, 28), (256, 14), (512, 7)])
def test_fewer_products_are_as_exact_as_eager(
    convolver: Convolver, channels: int, size: int
) -> None:
    how = ((1, 1), (1, 1), (1, 1))
    for scale in (1.0, 1e-4, 1e4):
        x = torch.randn(2, channels, size, size).relu() * scale
        weight = torch.randn(channels, channels, 3, 3) / channels
        exact = torch.nn.functional.conv2d(x.double(), weight.double(), None, *how)
        eager = torch.nn.functional.conv2d(x, weight, None, *how)
        out = convolve(convolver, x, weight, None, *how, 2, winograd=True)
        assert (out - exact).abs().max() <= 3 * (eager - exact).abs().max()
        assert (out - exact).norm() <= 3 * (eager - exact).norm()


def test_what_is_not_finite_stays_where_it_is(convolver: Convolver) -> None:
    how = ((1, 1), (1, 1), (1, 1))
    for threads in (0, 1, 2):
        x, weight = torch.randn(2, 16, 11, 12), torch.randn(40, 16, 3, 3)
        x[0, 1, 4, 5], x[0, 2, 0, 0], x[1, 3, 10, 11] = float("nan"), float("inf"), -float("inf")
        weight[7] *= 1e-9
        weight[8] = 0
        for spoilt in (False, True):
            if spoilt:
                weight[3, 0, 0, 0], weight[4, 1, 1, 1] = float("-inf"), float("nan")
            expected = torch.nn.functional.conv2d(x, weight, None, *how)
            out = convolve(convolver, x, weight, None, *how, threads, winograd=True)
            assert not expected.isnan().all() and expected.isnan().any() and expected.isinf().any()
            torch.testing.assert_close(out, expected, equal_nan=True, rtol=1e-4, atol=1e-4)


def test_sums_that_are_too_large(convolver: Convolver) -> None:
    how = ((1, 1), (1, 1), (1, 1))
    x, weight = torch.randn(2, 16, 11, 12).sign() * 3e38, torch.randn(40, 16, 3, 3) * 1e-4
    out = convolve(convolver, x, weight, None, *how, 2, winograd=True)
    assert out.isfinite().all()
    assert_right(out, x, weight, None, *how)


def test_not_a_number_goes_where_it_does_in_eager(convolver: Convolver) -> None:
    x, weight = torch.randn(1, 5, 9, 9), torch.randn(20, 5, 3, 3)
    x[0, 1, 4, 4], x[0, 2, 0, 0] = float("nan"), float("inf")
    for threads, padding in ((0, 1), (1, 1), (0, 0), (1, 0)):
        if not padding:
            weight[3, 0, 0, 0] = float("-inf")
        how = ((1, 1), (padding, padding), (1, 1))
        expected = torch.nn.functional.conv2d(x, weight, None, *how)
        out = convolve(convolver, x, weight, None, *how, threads)
        torch.testing.assert_close(out, expected, equal_nan=True, rtol=1e-4, atol=1e-4)


@pytest.fixture(params=["ours", "winograd"])
def always_ours(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, convolver: Convolver
) -> Iterator[list[Schedule]]:
    """Schedules of the graphs that were compiled."""
    convolutions_are_ours(monkeypatch, request.param)
    with noted_schedules(monkeypatch) as seen:
        yield seen
    assert seen


class Residual(nn.Module):
    def __init__(self, channels: int, act: Callable[[Tensor], Tensor], stride: int = 1) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, 48, 3, stride, 1, bias=False)
        self.norm = nn.BatchNorm2d(48)
        self.second = nn.Conv2d(48, 48, 3, padding=1)
        self.act = act
        with torch.no_grad():
            self.norm.running_mean.normal_()  # type: ignore[union-attr]
            self.norm.running_var.uniform_(0.5, 2)  # type: ignore[union-attr]

    def forward(self, x: Tensor) -> Tensor:
        y = self.act(self.norm(self.first(x)))
        return self.act(self.second(y) + y)


ACTS = [
    torch.relu, nn.functional.gelu, nn.functional.silu, nn.functional.hardswish,
    nn.functional.leaky_relu, torch.sigmoid, lambda x: x.clamp(0, 6),
]  # fmt: skip


@pytest.mark.parametrize("act", few(ACTS, 4))
@pytest.mark.parametrize("last", [False, True])
def test_what_follows_is_fused(always_ours: list[Schedule], act: Any, last: bool) -> None:
    module = Residual(16, act, stride=2 if last else 1).eval()
    x = torch.randn(2, 16, 19, 33)
    compiled = dynamo.compile(module)
    assert_near(module, compiled, x.contiguous(memory_format=LAST) if last else x)
    (schedule,) = always_ours
    # A contiguous result is written by a kernel of its own, in another order.
    assert len(list(schedule.fused_convolutions())) == (2 if last else 1)


@pytest.mark.parametrize("act", [
    torch.relu, nn.functional.relu6, lambda x: x.clamp(-1, 0.5), lambda x: x.clamp(max=0.25),
    lambda x: x.relu().clamp(1, 2).clamp(max=1.5), lambda x: torch.maximum(x, x.new_tensor(0.1)),
])  # fmt: skip
def test_bounds_are_kept_before_a_result_is_stored(
    always_ours: list[Schedule], act: Callable[[Tensor], Tensor]
) -> None:
    first, second = nn.Conv2d(16, 36, 3, padding=1), nn.Conv2d(36, 36, 3, 2, 1, groups=36)
    x = torch.randn(2, 16, 9, 9)
    x[0, 3, 4, 4], x[1, 2, 0, 0] = float("nan"), float("inf")

    def program(x: Tensor) -> Tensor:
        return act(second(act(first(x))))

    got, expected = dynamo.compile(program)(x), program(x)
    torch.testing.assert_close(got, expected, equal_nan=True, rtol=1e-4, atol=1e-4)
    assert got.isnan().any() and not got.isnan().all()


def test_what_bounds_are_known(always_ours: list[Schedule]) -> None:
    def known(act: Callable[[Tensor], Tensor]) -> Any:
        layer = nn.Conv2d(8, 16, 1)
        dynamo.compile(lambda x: act(layer(x)))(x)
        fused = [bounds_of(one) for one in always_ours[-1].fused_convolutions()]
        return fused[0] if fused else None

    x = torch.randn(2, 8, 9, 9).contiguous(memory_format=LAST)
    assert known(torch.relu) == (0, float("inf"))
    assert known(nn.functional.relu6) == (0, 6)
    assert known(lambda y: y.clamp(2, 3).clamp(max=1)) == (2, 1)
    assert known(lambda y: y.clamp(max=1).relu() + 1) is None
    assert known(nn.functional.silu) is None
    assert known(lambda y: y.relu().double()) is None
    assert known(lambda y: (y, y.relu())[1] + 0 * y) is None


def test_not_a_number_passes_relu(always_ours: list[Schedule]) -> None:
    module = Residual(16, torch.relu).eval()
    compiled = dynamo.compile(module)
    x = torch.randn(1, 16, 9, 9)
    x[0, 3, 4, 4] = float("nan")
    torch.testing.assert_close(compiled(x), module(x), equal_nan=True)
    assert compiled(x).isnan().any() and not compiled(x).isnan().all()
    assert list(always_ours[0].fused_convolutions())


def test_weights_that_change_are_seen(always_ours: list[Schedule]) -> None:
    module = Residual(16, torch.relu).eval()
    compiled = dynamo.compile(module)
    x = torch.randn(1, 16, 9, 9)
    for change in (
        lambda: module.first.weight.mul_(2), lambda: module.second.bias.add_(1),
        lambda: module.norm.running_mean.add_(1), lambda: module.norm.running_var.mul_(3),
        lambda: module.load_state_dict(Residual(16, torch.relu).state_dict()),
        lambda: setattr(module.second, "weight", nn.Parameter(torch.randn(48, 48, 3, 3))),
    ):  # fmt: skip
        torch.testing.assert_close(compiled(x), module(x), rtol=1e-4, atol=1e-4)
        before = module(x)
        change()
        assert not torch.allclose(module(x), before)
        torch.testing.assert_close(compiled(x), module(x), rtol=1e-4, atol=1e-4)


class Shapes(nn.Module):
    """Convolutions whose results are wanted in several ways."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(8, 24, 3), nn.Conv2d(8, 24, 3)
        self.c = nn.Conv2d(24, 24, 3, padding=2, dilation=2)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        first = self.a(x)
        both = torch.relu(first + self.b(x))  # one is stored, the other one is not
        third = self.c(both)
        scaled = third * third.mean((2, 3), keepdim=True)
        return first, both, torch.tanh(third) + both, scaled, torch.relu(self.c(both)).double()


def test_results_that_others_want(always_ours: list[Schedule]) -> None:
    module, x = Shapes().eval(), torch.randn(2, 8, 12, 11)
    got, expected = dynamo.compile(module)(x), module(x)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
    assert [one.stride() for one in got] == [one.stride() for one in expected]
    assert list(always_ours[0].fused_convolutions())


def test_an_input_that_is_written_is_not_the_place(always_ours: list[Schedule]) -> None:
    layer = nn.Conv2d(8, 8, 3, padding=1)

    def program(x: Tensor, into: Tensor) -> Tensor:
        into.add_(layer(x))
        x.copy_(torch.relu(layer(into)))
        return layer(x).relu()

    x, into = (torch.randn(2, 8, 9, 9).contiguous(memory_format=LAST) for _ in "ab")
    expected = [x.clone(), into.clone()]
    result = program(*expected)
    got = dynamo.compile(program)(x, into)
    torch.testing.assert_close((got, x, into), (result, *expected), rtol=1e-4, atol=1e-4)


def test_training_and_groups_stay_with_the_library(always_ours: list[Schedule]) -> None:
    module = nn.Sequential(nn.Conv2d(8, 8, 3, groups=2), nn.ReLU(), nn.Conv2d(8, 8, 3))
    x = torch.randn(2, 8, 9, 9)
    with torch.enable_grad():
        torch.testing.assert_close(dynamo.compile(module)(x), module(x))
    module.eval()
    torch.testing.assert_close(dynamo.compile(module)(x), module(x), rtol=1e-4, atol=1e-4)
    fused = [one.call.args[-1] for one in always_ours[-1].fused_convolutions()]
    assert all(groups == 1 for groups in fused)


def test_products_of_our_own_behind_convolutions_of_our_own(
    always_ours: list[Schedule], monkeypatch: pytest.MonkeyPatch
) -> None:
    gemms_are_ours(monkeypatch)
    module = nn.Sequential(
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(32 * 16, 48), nn.ReLU(), nn.Linear(48, 8),
    ).eval()  # fmt: skip
    assert_near(module, dynamo.compile(module), torch.randn(3, 16, 8, 8))
    assert len(list(always_ours[-1].fused_convolutions())) == 1


@pytest.mark.parametrize("act", [nn.ReLU, nn.SiLU, nn.Hardswish])
def test_what_follows_depthwise_and_grouped_convolutions(
    always_ours: list[Schedule], act: Any
) -> None:
    module = nn.Sequential(
        nn.Conv2d(36, 36, 3, padding=1, groups=36), nn.BatchNorm2d(36), act(),
        nn.Conv2d(36, 64, 1), act(), nn.Conv2d(64, 64, 5, 2, 2, groups=64), act(),
        nn.Conv2d(64, 96, 3, groups=2), act(), nn.Conv2d(96, 64, 1),
    ).eval()  # fmt: skip
    module[1].running_mean.normal_()
    module[1].running_var.uniform_(0.5, 2)
    x = torch.randn(2, 36, 15, 13)
    assert_near(module, dynamo.compile(module), x)
    groups = [one.call.args[-1] for one in always_ours[-1].fused_convolutions()]
    assert sorted(groups)[-2:] == [36, 64] and len(groups) >= 3


@pytest.mark.parametrize("missing", [0, 1])
def test_a_copy_that_is_too_large_is_not_kept(
    monkeypatch: pytest.MonkeyPatch, always_ours: list[Schedule], missing: int
) -> None:
    room = 32 * 64 * 9 * 4 - missing  # a copy is as large as the weight, for Winograd's too
    monkeypatch.setattr(preparation, "most_bytes", lambda: room)
    module, x = nn.Sequential(nn.Conv2d(64, 32, 3, padding=1)).eval(), torch.randn(1, 64, 12, 12)
    torch.testing.assert_close(dynamo.compile(module)(x), module(x), rtol=1e-4, atol=1e-4)
    calls = [step for step in always_ours[0].steps if isinstance(step, ExternKernel) and step.ours]
    calls += [fused.call for fused in always_ours[0].fused_convolutions()]
    assert len(calls) == 1 - missing


def test_symbolic_sizes_stay_with_the_library(always_ours: list[Schedule]) -> None:
    module = Residual(16, torch.relu).eval()
    compiled = dynamo.compile(module, dynamic=True)
    for size in (9, 13, 16):
        x = torch.randn(1, 16, size, size)
        torch.testing.assert_close(compiled(x), module(x), rtol=1e-4, atol=1e-4)
    assert not any(list(schedule.fused_convolutions()) for schedule in always_ours)


@pytest.mark.parametrize(
    ("ratio", "other", "channels", "way"),
    [(-0.1, -0.2, 16, "winograd"), (-0.1, -0.2, 15, "ours"), (-0.1, 0.2, 16, "ours"),
     (0.1, 0.2, 16, "packed"), (0.1, -0.2, 15, "packed"), (0.1, -0.2, 16, "winograd")],
)  # fmt: skip
def test_without_time_most_answers_decide(
    ratio: float, other: float, channels: int, way: str, convolver: Convolver
) -> None:
    geometry = Geometry(1, channels, (40, 40), 16, (40, 40), (3, 3), (1, 1), (1, 1), (1, 1))
    known = {"one": Answer({"ours": ratio}, 1, 1), "other": Answer({"ours": ratio, "winograd": other}, 1, 1)}
    asked = SimpleNamespace(
        answers=SimpleNamespace(known=known), library=convolver, settings=LibrarySettings(),
        _is_followed=lambda node: False, _is_linked=lambda node: False, kind=lambda node, geometry: "a third",
    )  # fmt: skip
    with trials.spending(0.0):
        use = library_convolutions.Convolutions.fastest
        assert use(asked, SimpleNamespace(args=[None] * 3), geometry) == way  # type: ignore[arg-type]
    assert len(known) == 2


@pytest.mark.parametrize(
    ("images", "size", "channels", "fewer", "rows"),
    [(32, (56, 112), 8, 8, 56), (5, (14, 14), 64, 5, 14), (1, (28, 28), 64, 1, 28),
     (8, (28, 28), 256, 1, 28), (2, (112, 112), 256, 1, 28), (1, (31, 200), 512, 1, 31)],
)  # fmt: skip
@pytest.mark.parametrize("stride", [1, 2])
def test_a_part_of_a_large_convolution_is_measured(
    images: int, size: tuple[int, int], channels: int, fewer: int, rows: int, stride: int
) -> None:
    whole = (size[0] * stride, size[1] * stride)
    out = max(channels, 64)
    how: Any = ((3, 3), (stride, stride), (1, 1), (1, 1))
    geometry = Geometry(images, channels, whole, out, size, *how)
    part = library_convolutions._measured(geometry, 2)
    assert (part.images, part.out_size) == (fewer, (rows, size[1]))
    made = nn.functional.conv2d(torch.randn(1, 1, *part.size), torch.randn(1, 1, 3, 3), None, stride, 1)
    assert made.shape[2:] == part.out_size
    unlike = replace(geometry, images=part.images, size=part.size, out_size=part.out_size)
    assert part == unlike


def test_more_threads_measure_more() -> None:
    geometry = Geometry(8, 256, (56, 56), 256, (56, 56), (3, 3), (1, 1), (1, 1), (1, 1))
    parts = [library_convolutions._measured(geometry, threads) for threads in (1, 4, 64)]
    assert [part.images for part in parts] == [1, 1, 4]
    assert [part.out_size[0] for part in parts] == [28, 28, 56]


def test_padding_alone_is_not_measured() -> None:
    geometry = Geometry(1, 512, (64, 64), 512, (100, 100), (1, 1), (1, 1), (18, 18), (1, 1))
    part = library_convolutions._measured(geometry, 1)
    assert part.size[0] >= 1 and part.out_size[0] == part.size[0] + 36


def test_what_is_measured_is_kept() -> None:
    calls = []

    def measured(*args: Any) -> float:
        calls.append(args)
        return measure(*args)

    measure = library_convolutions._measure
    module = nn.Sequential(nn.Conv2d(29, 31, 3), nn.ReLU()).eval()
    x = torch.randn(1, 29, 20, 20)
    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(library_convolutions, "_measure", measured)
        with config.patch(library_kernels="measure"):
            for _ in range(2):
                dynamo.reset()
                torch.testing.assert_close(dynamo.compile(module)(x), module(x), rtol=1e-4, atol=1e-4)
    assert len(calls) <= 1


def test_depthwise_convolutions_are_ours_where_times_are_close(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"packed": 0.0, "ours": math.log(1.05), "winograd": math.log(1.2)}
    monkeypatch.setattr(library_convolutions, "compare", lambda *_, **__: found)
    ours = load_convolver(cache_store(), need_toolchain(cache_store()))
    usual = Geometry(1, 64, (20, 20), 64, (20, 20), (3, 3), (1, 1), (1, 1), (1, 1))
    for geometry, way in ((usual, "packed"), (replace(usual, groups=64), "ours")):
        ratios = library_convolutions._measure(geometry, ours, False, 1)
        assert library_convolutions._least(ratios, margin=0.0) == way
