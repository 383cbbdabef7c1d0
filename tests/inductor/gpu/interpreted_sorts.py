"""Sorted rows as a network of Triton's, in its interpreter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from interpreted_programs import interpreted, texts
from interpreter_repairs import repair
from torch import Tensor

import dynamo
from inductor.lowering import routing, scans

INF, NAN = float("inf"), float("nan")


def equal_ones(dtype: torch.dtype, *size: int) -> Tensor:
    """Many equal elements; of floats NaN, infinities and zeros of both signs."""
    x = torch.randint(-9, 9, size).to(dtype)
    if dtype.is_floating_point:
        for value in (NAN, -NAN, INF, -INF, -0.0, torch.finfo(dtype).max):
            x[torch.rand(size) < 0.05] = value
    elif dtype is not torch.bool:
        for value in (torch.iinfo(dtype).min, torch.iinfo(dtype).max):
            x[torch.rand(size) < 0.05] = value
    return x


def mixture_of_depths(x: Tensor, i: Tensor) -> Any:
    place, order = torch.sort(i, 1)
    return x.gather(1, place).sigmoid(), x.gather(1, order), place


def route(x: Tensor) -> Any:
    found, order = torch.sort(F.softmax(x, -1), descending=True)
    return found.cumsum(-1) < 0.9, order


def down(x: Tensor) -> Any:
    return torch.sort(x, stable=True, descending=True)


def places(*size: int) -> Tensor:
    return torch.stack([torch.randperm(size[1]) for _ in range(size[0])])


Program = tuple[Callable[..., Any], Callable[[], list[Tensor]]]
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.int16, torch.uint8, torch.bool]
PROGRAMS: dict[str, Program] = {
    **{f"{dtype}": (lambda x: torch.sort(x, stable=True), lambda dtype=dtype: [equal_ones(dtype, 5, 50)]) for dtype in DTYPES},
    **{f"{dtype} down": (down, lambda dtype=dtype: [equal_ones(dtype, 3, 64)]) for dtype in DTYPES},
    "places alone": (lambda x: (x * 2).argsort(dim=1, stable=True), lambda: [equal_ones(torch.int64, 3, 40)]),
    "values alone": (lambda x: torch.sort(x)[0] + 1, lambda: [equal_ones(torch.int64, 3, 20)]),
    "another dim": (lambda x: torch.sort(x, dim=1, stable=True), lambda: [equal_ones(torch.float32, 3, 40, 5)]),
    "outer": (lambda x: torch.sort(x, dim=0, stable=True), lambda: [equal_ones(torch.int64, 36, 5)]),
    "transposed": (lambda x: torch.sort(x.t(), dim=1, stable=True), lambda: [equal_ones(torch.float32, 36, 5)]),
    "two": (lambda x: torch.sort(x, stable=True), lambda: [equal_ones(torch.int64, 5, 2)]),
    "one row": (lambda x: torch.sort(x, stable=True), lambda: [equal_ones(torch.float32, 130)]),
    "mixture of depths": (mixture_of_depths, lambda: [torch.randn(4, 90), places(4, 90)[:, :40].contiguous()]),
    "route": (route, lambda: [torch.randn(6, 48)]),
    "of sums": (lambda x: torch.sort(x.cumsum(1), stable=True), lambda: [torch.randint(-5, 5, (4, 60))]),
}  # fmt: skip


@pytest.fixture(autouse=True)
def on_a_gpu(as_on_gpu: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    repair(monkeypatch)
    as_on_gpu(scans, routing)
    dynamo.reset()
    texts.clear()


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "LONGEST_SORTED", 1)
    monkeypatch.setattr(scans, "SHORT", 1)
    monkeypatch.setattr(scans, "FEW_ROWS", 0)
    program, make = PROGRAMS[name]
    given = make()
    leaves = torch.utils._pytree.tree_leaves
    found, expected = leaves(dynamo.compile(program, backend=interpreted)(*given)), leaves(program(*given))
    assert "OperatorCall(" not in texts[-1] and texts[-1].count("= k_sorted") == 1, texts[-1]
    for one, other in zip(found, expected, strict=True):
        assert one.dtype is other.dtype and one.stride() == other.stride()
        if one.dtype.is_floating_point and name != "mixture of depths":
            assert torch.equal(one.isnan(), other.isnan()) and torch.equal(one.signbit() & ~one.isnan(), other.signbit() & ~one.isnan())
            assert torch.equal(one.nan_to_num(7), other.nan_to_num(7))
        else:
            torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)


def test_longer_rows_are_in_a_stable_order_on_a_gpu_anyway() -> None:
    x = equal_ones(torch.int64, 4, 33)
    found = dynamo.compile(lambda x: torch.sort(x), backend=interpreted)(x)
    assert all(map(torch.equal, found, torch.sort(x, stable=True)))
    assert "= k_sorted" in texts[-1]


@pytest.mark.parametrize("program", [
    lambda x: torch.sort(x[:, :1025], stable=True), lambda x: torch.sort(x[:, :32]), lambda x: torch.topk(x, 40),
])  # fmt: skip
def test_what_stays_a_librarys(program: Any) -> None:
    x = torch.randn(2, 1025)
    torch.testing.assert_close(dynamo.compile(program, backend=interpreted)(x), program(x))
    assert "OperatorCall(" in texts[-1]
