"""GEMMs of half precision on a CPU without instructions for them: faster, and at least as exact."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves

import dynamo
from inductor.fx_passes import half_gemms
from inductor.fx_passes.half_gemms import RULES, compute_in_float32
from inductor.lowering import run as lowering
from tests.parametrize import few

Tensor = torch.Tensor
HALVES = (torch.bfloat16, torch.float16)


def gemms_of(module: torch.fx.GraphModule) -> list[torch.dtype]:
    found = (node for node in module.graph.nodes if node.target in RULES)
    return [node.all_input_nodes[0].meta["val"].dtype for node in found]


@pytest.fixture(autouse=True)
def gemms(monkeypatch: pytest.MonkeyPatch) -> list[torch.dtype]:
    """The dtype of each GEMM that is lowered, as on a processor that knows float32 alone."""
    monkeypatch.setattr(half_gemms, "is_native", lambda dtype: False)
    found: list[torch.dtype] = []
    lower = lowering.lower_graph

    def noted(module: torch.fx.GraphModule, *rest: Any, **how: Any) -> Any:
        found.extend(gemms_of(module))
        return lower(module, *rest, **how)

    monkeypatch.setattr(sys.modules["inductor.driver.from_aten"], "lower_graph", noted)
    return found


def linear(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.gelu(F.linear(x.sin(), w, b)) + 1


def plain(x: Tensor, w: Tensor, b: Tensor) -> Any:
    gemm = x @ w.t()
    return gemm, gemm.relu(), (x * 2).t() @ x


def batches(x: Tensor, w: Tensor, b: Tensor) -> Any:
    left, right = x.view(5, 8, 64), w.view(5, 8, 64).transpose(1, 2)
    return left @ right, torch.baddbmm(b[:8], left, right, beta=0.5, alpha=2)


def convolution(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.conv2d(x.view(1, 4, 40, 16).relu(), w.view(10, 4, 8, 8), b[:10], padding=1)


def without_bias(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.conv2d(x.view(1, 4, 40, 16).relu(), w.view(40, 4, 4, 4), stride=2) * b.view(40, 1, 1)


def attention(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    q, k = x.view(1, 2, 20, 64), w.view(1, 2, 20, 64)
    return F.scaled_dot_product_attention(q, k, k * b[0], is_causal=True)


PROGRAMS: list[Callable[..., Any]] = [linear, plain, batches, convolution, without_bias, attention]


def operands(dtype: torch.dtype) -> list[Tensor]:
    return [torch.randn(*size).to(dtype) for size in ((40, 64), (40, 64), (40,))]


def assert_near(found: Any, halves: Any, exact: Any) -> None:
    """As exact as eager in half precision, in the same memory formats."""
    for one, half, true in zip(*map(tree_leaves, (found, halves, exact)), strict=True):
        assert one.dtype is half.dtype and one.stride() == half.stride()
        spacing = torch.finfo(half.dtype).eps * float(true.abs().max())
        assert float((one - true).abs().max()) <= float((half - true).abs().max()) + spacing


def gradients(program: Callable[..., Any], *given: Tensor) -> list[Tensor]:
    leaves = [x.detach().requires_grad_() for x in given]
    results = tree_leaves(program(*leaves))
    weights = [torch.linspace(-1, 1, y.numel()).to(y).view(y.shape) for y in results]
    total = sum(((y * w).sum() for y, w in zip(results, weights, strict=True)), torch.zeros(()))
    return [x for x in torch.autograd.grad(total, leaves, allow_unused=True) if x is not None]


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.every_combination
def test_graphs(program: Callable[..., Any], trains: bool, dtype: torch.dtype) -> None:
    run = functools.partial(gradients, program) if trains else program
    with torch.set_grad_enabled(trains):
        module = compute_in_float32(make_fx(run, tracing_mode="fake")(*operands(dtype)))
    used = gemms_of(module)
    kept = program is attention and dtype is torch.bfloat16  # forward has a kernel of our own
    assert used and (kept or set(used) == {torch.float32}) and (not trains or torch.float32 in used)
    for node in module.graph.nodes:
        assert "val" in node.meta or not node.users  # the output, and gradients of no bias
    given = operands(dtype)
    with torch.set_grad_enabled(trains):
        found, halves = module(*given), run(*given)
        exact = run(*(x.double() for x in given))
    assert_near(found, halves, exact)


@pytest.mark.parametrize("dtype", few(HALVES, 1))
def test_training(dtype: torch.dtype, gemms: list[Any]) -> None:
    run = functools.partial(gradients, dynamo.compile(linear))
    given = operands(dtype)
    exact = gradients(linear, *(x.double() for x in given))
    assert_near(run(*given), gradients(linear, *given), exact)
    assert len(gemms) == 3 and set(gemms) == {torch.float32}


def test_under_autocast(gemms: list[Any]) -> None:
    model = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 40))
    compiled = dynamo.compile(model)
    x = torch.randn(30, 64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with torch.no_grad():
            found, wanted = compiled(x), model(x)
        compiled(x).float().square().sum().backward()
    assert found.dtype is torch.bfloat16
    torch.testing.assert_close(found, wanted, atol=0.02, rtol=0.02)
    assert all(weight.grad is not None for weight in model.parameters())
    assert set(gemms) == {torch.float32}


def test_weights_that_change() -> None:
    """Their casts are kept while they are what they were."""
    model = nn.Linear(64, 48).bfloat16()
    compiled = dynamo.compile(model)
    x = torch.randn(40, 64).bfloat16()
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(compiled(x), model(x), atol=0.02, rtol=0.02)
            model.weight.mul_(2)


def test_few_rows_of_a_dense_weight_stay(gemms: list[Any]) -> None:
    model = nn.Linear(256, 128).bfloat16()
    compiled = dynamo.compile(model)
    with torch.no_grad():
        x = torch.randn(4, 256).bfloat16()
        torch.testing.assert_close(compiled(x), model(x), atol=0.02, rtol=0.02)
    assert gemms == [torch.bfloat16]


def test_processors_with_instructions_are_asked(
    monkeypatch: pytest.MonkeyPatch, gemms: list[Any]
) -> None:
    monkeypatch.setattr(half_gemms, "is_native", lambda dtype: dtype is torch.bfloat16)
    for dtype, used in zip(HALVES, (torch.bfloat16, torch.float32), strict=True):
        gemms.clear()
        given = operands(dtype)
        compiled = dynamo.compile(linear)
        with torch.no_grad():
            torch.testing.assert_close(compiled(*given), linear(*given), atol=0.05, rtol=0.02)
        assert gemms == [used]


def test_sizes_known_at_a_call(gemms: list[Any]) -> None:
    compiled = dynamo.compile(linear, dynamic=True)
    _, w, b = operands(torch.bfloat16)
    for rows in (20, 33, 70):
        x = torch.randn(rows, 64).bfloat16()
        with torch.no_grad():
            torch.testing.assert_close(compiled(x, w, b), linear(x, w, b), atol=0.05, rtol=0.02)
    assert set(gemms) == {torch.float32}
