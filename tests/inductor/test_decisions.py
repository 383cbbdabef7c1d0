"""What a comparison, rounding or place decides is decided once: see `dynamo/aot/repeats.py`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import dynamo

HALVES = (torch.bfloat16, torch.float16)

VALUES: dict[str, Callable[[Tensor], Tensor]] = {
    "cos": lambda x: x.cos(),
    "pow": lambda x: x.abs().pow(1.7),
    "arithmetic": lambda x: x * x.roll(1) + x * 0.3 - x.roll(2),
    "norm": lambda x: F.layer_norm(x, x.shape[-1:]) * 1.3,
}  # fmt: skip
DECISIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "amax": lambda v: v.amax(1),
    "min": lambda v: v.min(1).values,
    "equal": lambda v: (v * (v == v.amax(1, keepdim=True))).sum(1),
    "where": lambda v: torch.where(v == v.amin(1, keepdim=True), v, 0.0).sum(1),
    "place": lambda v: v.gather(1, v.argmax(1, keepdim=True)).sum(1),
    "median": lambda v: v.median(1).values,
    "cummax": lambda v: v.cummax(1).values[:, -1],
}


def gradients(f: Callable[..., list[Tensor]], xs: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    xs = [x.clone().requires_grad_() for x in xs]
    results = f(*xs)
    return [r.detach() for r in results], list(torch.autograd.grad(sum(r.float().sum() for r in results), xs))


NAMES = list(itertools.product(VALUES, DECISIONS))
SOME = [(value, decision) for decision, value in zip(DECISIONS, itertools.cycle(VALUES))]


@pytest.mark.parametrize(("dtype", "dynamic", "names"), [(torch.bfloat16, None, SOME), *(
    pytest.param(dtype, dynamic, NAMES, marks=pytest.mark.long)
    for dtype in (torch.float32, *HALVES) for dynamic in (None, True)
)])  # fmt: skip
def test_each_row_keeps_its_gradient(dtype: torch.dtype, dynamic: bool | None, names: list[tuple[str, str]]) -> None:
    pairs = [(VALUES[value], DECISIONS[decision]) for value, decision in names]

    def f(*xs: Tensor) -> list[Tensor]:
        return [r(u(x)) for (u, r), x in zip(pairs, xs, strict=True)]

    compiled = dynamo.compile(f, dynamic=dynamic)
    xs = list(torch.randn(len(pairs), 9, 21, generator=torch.Generator().manual_seed(3)).to(dtype))
    (want, slopes), (got, found) = gradients(f, xs), gradients(compiled, xs)
    for name, a, b, da, db in zip(map(" ".join, names), want, got, slopes, found, strict=True):
        torch.testing.assert_close(a, b, msg=name)
        assert not ((da != 0).any(1) & (db == 0).all(1)).any(), name
        if dtype is torch.float32:
            torch.testing.assert_close(da, db, msg=name, atol=1e-4, rtol=1e-4)


# At the border of a piece values of half precision are often.
BORDERS: tuple[Callable[[Tensor], Tensor], ...] = (
    F.relu6, lambda v: F.hardtanh(v, -0.5, 0.5), lambda v: v.clamp(-1, 0.25), lambda v: F.hardshrink(v, 0.5),
    F.hardswish, lambda v: F.threshold(v, 0.5, 0.0), lambda v: v * (v >= 0.5), torch.frac,
    lambda v: (v * 4).floor() * v, lambda v: (v * 4).long() * v, lambda v: v % 0.25, lambda v: v.sign() * v.round(),
    lambda v: F.max_pool1d(v, 3), lambda v: torch.where(v > v.roll(1), v, 2 * v), lambda v: v.maximum(v.flip(1)),
    lambda v: torch.round(v / v.abs().amax(1, keepdim=True) * 15) * v, lambda v: v.sort(1).values[:, ::2],
)  # fmt: skip


@pytest.mark.parametrize(("dtype", "borders"), [
    (torch.bfloat16, BORDERS[::3]), pytest.param(torch.bfloat16, BORDERS, marks=pytest.mark.long),
    pytest.param(torch.float16, BORDERS, marks=pytest.mark.long),
], ids=["some", "bfloat16", "float16"])  # fmt: skip
def test_borders_lie_where_eager_rounds(dtype: torch.dtype, borders: Sequence[Callable[[Tensor], Tensor]]) -> None:
    def f(*xs: Tensor) -> list[Tensor]:
        return [border((x * 1.7 + 0.3) * x.roll(1) - x.roll(2)) for border, x in zip(borders, xs, strict=True)]

    xs = list(torch.randn(len(borders), 40, 33, generator=torch.Generator().manual_seed(5)).to(dtype))
    (want, slopes), (got, found) = gradients(f, xs), gradients(dynamo.compile(f), xs)
    near = 4 * torch.finfo(dtype).eps
    for at, (a, b, da, db) in enumerate(zip(want, got, slopes, found, strict=True)):
        torch.testing.assert_close(a, b, msg=str(at), atol=near, rtol=near)
        torch.testing.assert_close(da, db, msg=str(at), atol=8 * near, rtol=8 * near)


# Eager rounds a number to the dtype that it meets, that of a tensor without axes, too.
MEETINGS: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda v: v % 0.9, lambda v: torch.fmod(v, 0.9), lambda v: v == 0.9, lambda v: v > 0.9, lambda v: v // 0.9, lambda v: v - 0.9,
    lambda v: v.clamp(max=0.9) - v, lambda v: F.hardtanh(v, -0.9, 0.9) - v, lambda v: v.clamp(min=torch.tensor(0.9)) - v,
)  # fmt: skip


@pytest.mark.parametrize("shape", [(), (40,)])
@pytest.mark.parametrize("dtype", HALVES)
def test_numbers_are_rounded_as_eager_rounds_them(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    def f(x: Tensor) -> list[Tensor]:
        return [meeting(x * 1.0) for meeting in MEETINGS]

    x = torch.full(shape, 0.9, dtype=dtype)
    for want, got in zip(f(x), dynamo.compile(f)(x), strict=True):
        assert torch.equal(want, got)


@pytest.mark.parametrize("function", [
    lambda x: x.cos().t().argmax(), lambda x: x.softmax(1).argmax(1),
    *(pytest.param(f, marks=pytest.mark.long) for f in (
        lambda x: x.cos().argmin(1), lambda x: x.sin().max(1)[1], lambda x: (x.cos() * 2 + 1).view(-1).argmax())),
])  # fmt: skip
def test_places_exist(function: Callable[[Tensor], Tensor]) -> None:
    compiled = dynamo.compile(function)
    for seed in range(24):  # the second size makes it symbolic
        x = torch.randn((5, 21) if seed % 2 else (6, 29), generator=torch.Generator().manual_seed(seed))
        assert torch.equal(function(x), compiled(x))
