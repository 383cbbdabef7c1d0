"""Linear interpolation, and windows of images of all sizes: eager's values, among them those beside infinities."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import dynamo
from dynamo.aot.resizing import upsample_linear, weighted_sum
from dynamo.shapes.fake import FakeWorld
from inductor import metrics
from tests.parametrize import rotated

MODES = {"linear": (7,), "bilinear": (5, 6), "trilinear": (3, 4, 2)}
TARGETS: tuple[dict[str, Any], ...] = (
    {"scale_factor": 2.0}, {"scale_factor": 1.0}, {"scale_factor": 0.7}, {"size": 4}, {"size": 1},
)  # fmt: skip


SPECIAL = (float("inf"), float("-inf"), float("nan"), 0.0, -0.0)


def spoil(x: torch.Tensor) -> torch.Tensor:
    """With values at random places for which a weight of 0 is not the same as none."""
    for value in SPECIAL:
        x.masked_fill_(torch.rand_like(x) < 0.06, value)
    return x


def check(x: torch.Tensor, dynamic: bool, **options: Any) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x * 2, **options)

    dynamo.reset()
    got, want = dynamo.compile(f, dynamic=dynamic)(x), f(x)
    assert got.stride() == want.stride()
    torch.testing.assert_close(got, want, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("mode", MODES)
def test_beside_infinities(mode: str, dtype: torch.dtype) -> None:
    x = spoil(torch.randn(2, 3, *MODES[mode], dtype=dtype))
    few = 2 if mode == "bilinear" and dtype is torch.float32 else 4
    for target, align in itertools.product(TARGETS[::few], (False, True)):
        check(x, False, mode=mode, align_corners=align, **target)


@pytest.mark.parametrize("target", (0, 2, pytest.param(3, marks=pytest.mark.long)))
def test_sizes_in_symbols_and_channels_last(target: int) -> None:
    x = torch.randn(2, 3, 5, 6)
    check(x, True, mode="bilinear", **TARGETS[target])
    check(x.contiguous(memory_format=torch.channels_last), False, mode="bilinear", **TARGETS[target])


@pytest.mark.draws
@pytest.mark.parametrize("align", [False, True])
def test_weights_are_eagers_bit_by_bit(align: bool) -> None:
    """Rounded as a fused instruction does it, so that the same weights are 0."""
    for extent, size in [(2, 6), (2, 10), (3, 15), *((random.randint(2, 60), random.randint(2, 90)) for _ in range(300))]:
        x = torch.zeros(1, 1, extent)
        x[..., random.randrange(2) :: 2] = float("inf")
        want = F.interpolate(x, size=size, mode="linear", align_corners=align)
        torch.testing.assert_close(upsample_linear(x, [size], align), want, rtol=0, atol=0, equal_nan=True)


@rotated("dynamic, dtype", [None, True], [torch.float32, torch.float64])
def test_beside_infinities_for_changing_sizes(dynamic: bool | None, dtype: torch.dtype) -> None:
    """Where both sizes are equal eager reads no neighbour; a weight of 0 makes nan of infinity."""

    def f(x: torch.Tensor) -> Any:
        return (
            F.interpolate(x, scale_factor=2, mode="bilinear"),
            F.interpolate(x, size=(x.shape[3], x.shape[2]), mode="bilinear", align_corners=True),
            F.interpolate(x, scale_factor=0.5, mode="nearest-exact"),
        )

    compiled = dynamo.compile(f, dynamic=dynamic)
    before = metrics.snapshot()["graphs"]
    for height, width in ((6, 4), (5, 7), (4, 4), (9, 12), (8, 5)):
        x = spoil(torch.randn(2, 3, height, width, dtype=dtype))
        torch.testing.assert_close(compiled(x), f(x), equal_nan=True)
    assert metrics.snapshot()["graphs"] - before <= 4
    with pytest.raises(RuntimeError):
        compiled(torch.randn(2, 3, 0, 4, dtype=torch.float64))


OTHERS: dict[str, dict[str, Any]] = {
    "area": {"mode": "area"}, "bicubic": {"mode": "bicubic", "align_corners": True},
    "antialias": {"mode": "bilinear", "antialias": True}, "bicubic antialias": {"mode": "bicubic", "antialias": True},
}  # fmt: skip


@rotated("name, memory_format", [*OTHERS, "adaptive average", "adaptive maximum", "bilinear"],
         [torch.contiguous_format, torch.channels_last])
def test_other_ways_for_changing_sizes(name: str, memory_format: torch.memory_format) -> None:
    """Values, gradients and strides, with and without what spoils sums."""
    options = OTHERS.get(name, {"mode": name})

    def f(x: torch.Tensor) -> torch.Tensor:
        size = (x.shape[2] + 3, x.shape[3] - 1)
        if name.startswith("adaptive"):
            return (F.adaptive_avg_pool2d if "average" in name else F.adaptive_max_pool2d)(x, (5, 7))
        return F.interpolate(x, size=size, **options)

    compiled = dynamo.compile(f, dynamic=True)
    for number, (height, width) in enumerate(((6, 8), (9, 5))):
        x = torch.randn(2, 3, height, width)
        x = (spoil(x) if number else x).contiguous(memory_format=memory_format).requires_grad_()
        got, want = compiled(x), f(x)
        weight = spoil(torch.randn_like(want))
        found, wanted = (torch.autograd.grad(y, x, weight)[0] for y in (got, want))
        assert (got.stride(), found.stride()) == (want.stride(), wanted.stride())
        torch.testing.assert_close(got, want, equal_nan=True)
        torch.testing.assert_close(found, wanted, equal_nan=True, rtol=1e-4, atol=1e-4)


def test_windows_of_images_of_all_sizes() -> None:
    """Whose elements differ in number at the border, and such as are taken apart."""

    def f(x: torch.Tensor) -> Any:
        means = F.avg_pool2d(x, 3, 1, 1, count_include_pad=False), F.avg_pool2d(x, 3, 2, 1, ceil_mode=True)
        films = F.avg_pool3d(x[:, None], (1, 3, 2), 2, (0, 1, 1), ceil_mode=True, count_include_pad=False)
        return *means, films, F.unfold(x, 3, padding=1)

    compiled = dynamo.compile(f, dynamic=True, fullgraph=True)
    metrics.reset()
    for height, width in ((7, 9), (10, 8), (5, 6)):
        x = torch.randn(2, 3, height, width)
        for found, wanted in zip(compiled(x), f(x), strict=True):
            torch.testing.assert_close(found, wanted)
    assert not any("pool" in name or "im2col" in name for name in map(str, metrics.fallbacks()))


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


@pytest.mark.draws
@pytest.mark.parametrize("mode", ["bilinear", pytest.param("bicubic", marks=pytest.mark.long), "nearest"])
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("options", [
    {"scale_factor": 2.0}, {"size": (20, 6)}, {"scale_factor": (1, 4), "mode": "nearest-exact"}, {"size": (5, 12)}])
def test_gradients_of_nearest_neighbours(options: Any, memory_format: torch.memory_format, dtype: torch.dtype) -> None:
    """Sums of blocks, in a kernel."""
    x = torch.randn(2, 4, 5, 6, dtype=dtype).contiguous(memory_format=memory_format).requires_grad_()
    f = lambda x: F.interpolate(x * 2, **options).sin()  # noqa: E731
    grads = []
    metrics.reset()
    for call in (dynamo.compile(f), f):
        x.grad = None
        result = call(x)
        result.backward(torch.linspace(0, 1, result.numel(), dtype=dtype).view_as(result))
        grads.append(x.grad)
    assert grads[0].stride() == grads[1].stride()
    torch.testing.assert_close(*grads)
    assert bool(metrics.fallbacks()) == (memory_format is torch.contiguous_format)  # ATen's is faster


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_nearest_neighbours(rank: int, mode: str) -> None:
    """Eager's, bit by bit, also where a factor makes an axis twice as long, or as long, by rounding down."""
    for number in range(16):
        rng = random.Random(f"{rank} {mode} {number}")
        shape = [rng.randint(1, 9) for _ in range(rank)]
        factors = [rng.choice((1.0, 1.1, 2.0, 2.1, 2.3, 0.7, 3.0, 49.0)) for _ in range(rank)]
        sizes = [rng.randint(1, 30) for _ in range(rank)]
        options = rng.choice(({"scale_factor": tuple(factors)}, {"size": tuple(sizes)}))
        if any(int(n * f) == 0 for n, f in zip(shape, factors, strict=True)):
            continue
        if rng.random() < 0.2:
            shape, factors = [n + 60 for n in shape], [min(f, 2.3) for f in factors]  # no small image
            options = {"scale_factor": tuple(factors)}
        x = torch.randn(1, rng.choice((3, 5)), *shape, dtype=rng.choice((torch.float32, torch.float64)))
        if rank > 1 and rng.random() < 0.5:
            x = x.contiguous(memory_format=(torch.channels_last, torch.channels_last_3d)[rank - 2])
        x.requires_grad_()
        f = lambda x, options=options: F.interpolate(x * 2, mode=mode, **options)  # noqa: E731
        results = []
        for call in (dynamo.compile(f), f):
            found = call(x)
            results.append((found, *torch.autograd.grad(found, x, torch.ones_like(found))))
        torch.testing.assert_close(*results, rtol=1e-5, atol=1e-5, msg=lambda text: f"{shape} {options}: {text}")  # noqa: B023


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("channels_last", [False, True])
def test_half_precision_on_a_gpu(dtype: torch.dtype, channels_last: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Computed in float32 and rounded once, as by the kernels there; on a CPU these have other weights."""
    monkeypatch.setattr(torch.cuda, "_lazy_init", lambda: None)  # for factories of fakes
    x = torch.randn(2, 4, 5, 6).to(dtype)
    x = x.to(memory_format=torch.channels_last) if channels_last else x
    assert upsample_linear(x, (9, 11), False) is NotImplemented
    wanted = F.interpolate(x.float(), size=(9, 11), mode="bilinear").to(dtype)
    found = weighted_sum(x, (9, 11), False)
    assert found.stride() == wanted.stride()
    torch.testing.assert_close(found, wanted)
    assert (found != wanted).float().mean() < 0.02  # where the sums lie between two numbers

    world = FakeWorld()
    there = world.make(world.cache.facts(tuple(x.shape), x.stride(), 0, dtype, torch.device("cuda", 0)))
    made = world.run(upsample_linear, there, (9, 11), False)
    assert made.dtype is dtype and made.stride() == wanted.stride()
