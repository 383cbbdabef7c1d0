"""Cumulative operators as Triton's scans, with what stands before them, in its interpreter."""

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
from inductor.codegen.triton import plan
from inductor.lowering import scans

INF, NAN = float("inf"), float("nan")


def segment_sums(x: Tensor) -> Tensor:
    """As Mamba-2 adds them up, and its gradient's way back."""
    size = x.shape[-1]
    x = x[..., None].expand(*x.shape, size)
    below = torch.ones(size, size, dtype=torch.bool).tril(-1)
    sums = x.masked_fill(~below, 0).cumsum(-2)
    return sums.masked_fill(~below.tril(0), -INF).exp().flip(-2).cumsum(-2).flip(-2)


Program = tuple[Callable[..., Any], Callable[[], Tensor], int]
# How many scans there are.
PROGRAMS: dict[str, Program] = {
    "segment sums": (segment_sums, lambda: -torch.rand(2, 3, 33), 2),
    "dense rows": (lambda x: (x.exp() - 1).cumsum(-1) * 2, lambda: torch.randn(7, 300), 1),
    "one row": (lambda x: x.cumsum(0), lambda: torch.randn(1000), 1),
    "longest": (lambda x: x.sin().cumsum(1), lambda: torch.randn(2, 1024, 3), 1),
    "transposed": (lambda x: x.t().cumsum(0), lambda: torch.randn(40, 50), 1),
    "outer": (lambda x: x.relu().cumsum(0), lambda: torch.randn(19, 2, 36), 1),
    "gradient": (lambda x: x.flip(1).cumsum(1).flip(1), lambda: torch.randn(5, 70, 3), 1),
    "half": (lambda x: (x * 2).cumsum(1), lambda: torch.randn(4, 100, 5).bfloat16(), 1),
    "wider": (lambda x: x.cumsum(1, dtype=torch.float32), lambda: torch.randn(4, 100, 5).half(), 1),
    "doubles": (lambda x: x.cumsum(1), lambda: torch.randn(4, 100, 5).double(), 1),
    "infinities": (lambda x: x.cumsum(1), lambda: torch.tensor([0, INF, 1, -INF, NAN, 1] * 5).roll(7).reshape(2, 15).repeat(1, 2), 1),
    "integers": (lambda x: (x.cumsum(1), x.int().cumsum(0)), lambda: torch.randint(-1 << 40, 1 << 40, (17, 30)), 2),
    "booleans": (lambda x: (x > 0).cumsum(1), lambda: torch.randn(4, 100), 1),
    "small integers": (lambda x: x.cumsum(1, dtype=torch.int8), lambda: torch.randint(-9, 9, (4, 100)), 1),
    "constants": (lambda x: torch.ones_like(x).cumsum(1) - x, lambda: torch.randn(3, 100), 1),
    "products": (lambda x: (x.cumprod(1), x.cumprod(-1)), lambda: 1 + torch.randn(3, 40, 50) / 9, 2),
    "exponentials": (lambda x: x.logcumsumexp(1), lambda: torch.randn(3, 40, 5) * 30, 1),
    "infinite exponentials": (lambda x: x.logcumsumexp(1), lambda: torch.tensor([-INF, -INF, 1, INF, 2, INF, NAN, 1] * 3).reshape(1, 24), 1),
    "after each other": (lambda x: (x.cumsum(1) / 9).tanh().cumsum(2), lambda: torch.randn(2, 20, 30), 2),
    "dense, backwards": (lambda x: x.flip(-1).cumsum(-1).flip(-1) * 2, lambda: torch.randn(5, 70), 1),
    "most likely": (lambda x: x.masked_fill(x.softmax(-1).cumsum(-1) > 0.5, 0), lambda: torch.randn(6, 90), 1),
    "parts of a sum": (lambda x: (x.cumsum(1) / (x.sum(1, keepdim=True) + 99), x.amax(1)), lambda: torch.randn(6, 90), 1),
    "beside longer rows": (lambda x: (x.cumsum(1) * 3, torch.cat([x, x + 1, x * 2, x], 1)), lambda: torch.randn(6, 400), 1),
    "norm": (lambda x: F.layer_norm(x.cumsum(1), (x.shape[1],)), lambda: torch.randn(9, 90), 1),
    "before a sum": (lambda x: (x.cumsum(1) / 9).tanh().sum(1), lambda: torch.randn(2, 20, 30), 1),
}  # fmt: skip


@pytest.mark.parametrize("apart", [False, True], ids=["", "stages apart"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name: str, apart: bool, as_on_gpu: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    repair(monkeypatch)
    if apart:  # as where rows are too few for the device
        monkeypatch.setattr(plan, "ENOUGH_ROWS", 1 << 20)
        monkeypatch.setattr(plan, "LARGE_KERNEL", 1)
        monkeypatch.setattr(plan, "SMALL_STAGE", 0)
    as_on_gpu(scans)
    monkeypatch.setattr(scans, "SHORT", 1)
    monkeypatch.setattr(scans, "FEW_ROWS", 0)
    dynamo.reset()
    texts.clear()
    program, make, count = PROGRAMS[name]
    x = make()
    leaves = torch.utils._pytree.tree_leaves
    found, expected = leaves(dynamo.compile(program, backend=interpreted)(x)), leaves(program(x))
    assert "OperatorCall(" not in texts[-1] and texts[-1].count("tl.associative_scan") == count, texts[-1]
    exact = leaves(program(x.double())) if x.dtype.is_floating_point else expected
    for one, other, true in zip(found, expected, exact, strict=True):
        assert one.dtype is other.dtype and one.stride() == other.stride()
        if not one.dtype.is_floating_point:
            assert torch.equal(one, other)
            continue
        near = {torch.bfloat16: 8e-3, torch.float16: 1e-3, torch.float64: 1e-13}.get(one.dtype, 2e-6)
        most = true.abs().nan_to_num(0, 0, 0).max().item()
        torch.testing.assert_close(one.double(), true.double(), rtol=near, atol=near * most, equal_nan=True)


def test_what_reads_a_dense_row_is_in_its_kernel(as_on_gpu: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    repair(monkeypatch)
    as_on_gpu(scans)
    monkeypatch.setattr(scans, "FEW_ROWS", 0)
    for name in ("most likely", "parts of a sum", "norm"):
        dynamo.reset()
        program, make, _ = PROGRAMS[name]
        dynamo.compile(program, backend=interpreted)(make())
        assert texts[-1].count("@triton.jit") == 1, texts[-1]


@pytest.mark.parametrize("program", [
    lambda x: x.cumsum(1), lambda x: x.cumprod(1), lambda x: x.logcumsumexp(1),
])  # fmt: skip
def test_longer_rows_are_a_librarys(program: Any, as_on_gpu: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    as_on_gpu(scans)
    dynamo.reset()
    texts.clear()
    x = torch.randn(2, 1025)
    torch.testing.assert_close(dynamo.compile(program, backend=interpreted)(x), program(x))
    assert "OperatorCall(" in texts[-1] and "tl.associative_scan" not in texts[-1]
