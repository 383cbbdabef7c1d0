"""GEMMs with few rows, columns or terms as Triton's kernels, in its interpreter."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from interpreted_programs import compile_aten, decompositions, texts
from interpreter_repairs import repair
from torch import Tensor

import dynamo
from dynamo.aot.api import compile_training
from inductor.codegen.triton import plan
from inductor.fx_passes import small_gemms


def trained_in_loops(gm, example_inputs):
    """A backend for programs whose results are differentiated: the pass runs on the joint graph."""
    return compile_training(
        gm, example_inputs, compile_aten, compile_aten, rewrite=small_gemms.add_in_loops,
        decompositions=decompositions())


def warp(depth: Tensor, points: Tensor, k: Tensor) -> Tensor:
    """Of many points with small matrices, whose gradients are few sums over all points."""
    seen = torch.cat([depth * torch.matmul(k[:, :3, :3], points), torch.ones_like(depth)], 1)
    there = torch.matmul((k * k.cos())[:, :, :4], seen)
    return there[:, :2] / (there[:, 2:3].abs() + 1)


def dots(depth: Tensor, points: Tensor, k: Tensor) -> Tensor:
    rows = points.mT[..., :2]
    return torch.einsum("bni,bij,bnj->bn", rows - 0.5, k[:, :2, :2], rows + depth.mT)


def state(depth: Tensor, points: Tensor, k: Tensor) -> Tensor:
    """A recurrence."""
    s, rows = torch.zeros_like(points[:, :, :21]), points.mT[:, :3]
    for t in range(4):
        a, b = points[:, :, t : t + 1], points[:, :, t + 4 : t + 5].mT
        s = s * 0.5 + (s @ points[:, 0, 21:42, None]) @ depth[:, :, :21] + a @ depth[:, :, 7:28] * b.sum()
    return s @ points[:, 1, 2:23, None] + rows.sum()


def layers(depth: Tensor, points: Tensor, k: Tensor) -> Tensor:
    """Linear layers of few features, with a bias that a GEMM adds."""
    hidden = F.relu(F.linear(points.mT, k[0, :, :3], k[0, :, 0]))
    return F.linear(hidden[..., :1], k[1, :2, :1], k[0, :2, 1]).cos()


def matrices(depth: Tensor, points: Tensor, k: Tensor) -> Tensor:
    square = k @ (k.mT @ k).tanh()
    return square @ square.mT + depth.sum()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("program", [warp, dots, state, layers, matrices])
def test_values_and_gradients(program: object, dtype: torch.dtype, as_on_gpu: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    repair(monkeypatch)
    as_on_gpu(small_gemms)
    monkeypatch.setattr(small_gemms, "MANY_TERMS", 32)
    dynamo.reset()
    texts.clear()
    sizes = (2, 1, 67), (2, 3, 67), (2, 4, 4)
    given = [(torch.randn(size) * 0.5).to(dtype).requires_grad_() for size in sizes]
    exact = [value.detach().double().requires_grad_() for value in given]
    found = dynamo.compile(program, backend=trained_in_loops)(*given)  # type: ignore[arg-type]
    eager, true = program(*given), program(*exact)  # type: ignore[operator]
    assert found.dtype is dtype and found.stride() == eager.stride()
    weight = torch.randn(true.shape).to(dtype)
    gradients = [torch.autograd.grad(r, values, weight.to(r.dtype), allow_unused=True)
                 for r, values in ((found, given), (eager, given), (true, exact))]
    for ours, theirs, right in zip((found, *gradients[0]), (eager, *gradients[1]), (true, *gradients[2])):
        if right is None:
            assert ours is None
            continue
        assert ours.stride() == theirs.stride()
        place = 1e-6 if dtype is torch.float32 else 2 ** -7
        distance = (theirs - right).abs().max() + place * right.abs().max()
        assert (ours - right).abs().max() <= 2 * distance
    assert texts and not any(name in text for text in texts for name in ("aten::bmm", "aten::mm", "aten::addmm"))


def chained(points: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """Small stages of a kernel with few rows before large ones, and behind them."""
    turn = k
    for _ in range(3):
        turn = torch.softmax(turn @ k, -1)
    there = turn @ points
    return there, (there.sum(-1, keepdim=True) * k).softmax(-1)


def test_small_stages_share_a_kernel(as_on_gpu: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    repair(monkeypatch)
    as_on_gpu(small_gemms)
    points, k = torch.randn(4, 4, 9000), torch.randn(4, 4, 4)
    exact = chained(points.double(), k.double())
    kernels = []
    for most in (0, plan.SMALL_STAGE):
        monkeypatch.setattr(plan, "SMALL_STAGE", most)
        dynamo.reset()
        texts.clear()
        found = dynamo.compile(chained, backend=trained_in_loops)(points, k)
        for ours, true in zip(found, exact):
            torch.testing.assert_close(ours.double(), true, rtol=1e-4, atol=1e-4)
        kernels.append(texts[-1].count("@triton.jit"))
    assert kernels[1] < kernels[0]


def pairs(one: Tensor, other: Tensor) -> Tensor:
    """Sums over two axes that lie the other way round in one of the operands."""
    return torch.einsum("tnk,snk->ts", one.mT, other.to(one.dtype) * 2)


@pytest.mark.parametrize("rows, columns, block", [(2, 5, "(16, 256, 8)"), (2, 2, "(4, 1024, 8)")])
def test_all_rows_are_one_tile(rows: int, columns: int, block: str, as_on_gpu: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    """What several rows of a small result share is read once, and no program reads beyond its chunk."""
    repair(monkeypatch)
    as_on_gpu(small_gemms)
    dynamo.reset()
    texts.clear()
    one, other = torch.randn(rows, 192, 96, requires_grad=True), torch.randn(columns, 96, 192).bfloat16()
    found = dynamo.compile(pairs, backend=trained_in_loops)(one, other)
    true = pairs(one.double(), other.double())
    torch.testing.assert_close(found.double(), true, rtol=1e-4, atol=1e-3)
    assert block in texts[0]
