"""GEMMs with few rows, columns or terms, as loops; here on a CPU, which the pass leaves alone otherwise."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx

import dynamo
from dynamo.aot import min_cut
from inductor.driver import compile_fx
from inductor.fx_passes import looked_up_matrices, pipeline, small_gemms
from inductor.fx_passes.small_gemms import ANY, Sizes, chosen

aten = torch.ops.aten
GEMMS = (aten.mm.default, aten.addmm.default, aten.bmm.default)
POINTS = 37


@pytest.fixture(autouse=True)
def graphs(as_on_gpu: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> list[fx.GraphModule]:
    """What is lowered, forward and backward."""
    seen: list[fx.GraphModule] = []

    def noting(module: fx.GraphModule) -> fx.GraphModule:
        module = small_gemms.add_in_loops(module)
        seen.append(module)
        return module

    as_on_gpu(looked_up_matrices, small_gemms)
    monkeypatch.setattr(min_cut, "_is_on_gpu", lambda node: True)
    monkeypatch.setattr(compile_fx, "joint_laid_out", small_gemms.add_in_loops)
    monkeypatch.setattr(pipeline, "add_in_loops", noting)
    return seen


def left_of(graphs: list[fx.GraphModule]) -> list[fx.Node]:
    return [node for graph in graphs for node in graph.graph.nodes if node.target in GEMMS]


def moved(points: Tensor, k: Tensor, bias: Tensor) -> Tensor:
    return (torch.bmm(k, points) + bias[:, None]).relu()


def linear(points: Tensor, k: Tensor, bias: Tensor) -> Tensor:
    return F.linear(points.mT.sin(), k[0], bias)


def one_feature(points: Tensor, k: Tensor, bias: Tensor) -> Tensor:
    return F.linear(points[:, :1].mT, k[0, :, :1], bias).cos() + F.linear(points[:, 1:2].mT, k[1, :, :1])


def turned(points: Tensor, k: Tensor, bias: Tensor) -> Tensor:
    """Whose operands lie in another order than a result of bmm."""
    return torch.bmm(points.mT, k.mT.exp()) + bias


def of_state(points: Tensor, k: Tensor, bias: Tensor) -> Tensor:
    state = (points.mT * 2 - bias[:3]) @ k + 1  # 3 terms
    state = state.mT[:, :, :20].sigmoid()  # a matrix that is made
    return state @ points[:, 0, :20, None] + (points[:, 1, None, :3] @ state[:, :3]).sum(2, keepdim=True)


def arguments(dtype: torch.dtype, points: int = POINTS) -> list[Tensor]:
    return [(torch.randn(size) * 0.5).to(dtype) for size in ((4, 3, points), (4, 3, 3), (3,))]


def with_gradients(f: Callable[..., Tensor], given: list[Tensor]) -> list[Tensor]:
    given = [value.detach().requires_grad_() for value in given]
    result = f(*given)
    found = torch.autograd.grad(result.square().sum(), given, allow_unused=True)
    return [result, *(gradient for gradient in found if gradient is not None)]


@pytest.mark.parametrize("dynamic", [False, None])  # None: one graph for all numbers of points from the second on
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("f", [moved, linear, one_feature, turned, of_state])
def test_values_and_gradients(
    f: Callable[..., Tensor], dtype: torch.dtype, dynamic: bool | None, graphs: list[fx.GraphModule],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(small_gemms, "MANY_TERMS", 32)
    dynamo.reset()
    compiled = dynamo.compile(f, fullgraph=True, dynamic=dynamic, options={"graph_cache": False})
    for points in (POINTS, POINTS + 8):
        given = arguments(dtype, points)
        found, eager = (with_gradients(each, given) for each in (compiled, f))
        exact = with_gradients(f, [value.double() for value in given])
        for ours, theirs, true in zip(found, eager, exact, strict=True):
            assert ours.dtype is theirs.dtype and ours.stride() == theirs.stride()
            place = 1e-5 if dtype is torch.float32 else 2 ** -6  # one of the last but one
            assert (ours - true).abs().max() <= 2 * (theirs - true).abs().max() + place * true.abs().max()
    with torch.no_grad():
        inference = compiled(*given)
    assert (inference - exact[0]).abs().max() <= 2 * (eager[0] - exact[0]).abs().max() + place * exact[0].abs().max()
    assert len(graphs) >= 2 and not left_of(graphs)


def test_addends_in_half_precision_are_rounded_once() -> None:
    dynamo.reset()
    x, w, bias = torch.tensor([[1.0, 2 ** -9]]), torch.tensor([[1.0, 1.0]]), torch.tensor([-1.0])
    given = [value.bfloat16() for value in (x, w, bias)]
    found = dynamo.compile(F.linear, options={"graph_cache": False})(*given)
    assert found.item() == 2 ** -9


@pytest.mark.parametrize("f", [
    lambda x, y: torch.mm(x[:40, :40], y[:40, :40]),
    lambda x, y: torch.mm(x[:1], y), lambda x, y: torch.mm(x, y[:, :1]),  # layers of one token
    lambda x, y: torch.bmm(x[None, :1], y[None]),  # a matrix that lies there
    lambda x, y: torch.mm(x[:2], (y * 2)[:, :2]),  # of two columns, and of no points
    lambda x, y: torch.mm(x[:, :8], y[:8]),
    lambda x, y: torch.mm(x.double()[:, :3], y.double()[:3]),
    lambda x, y: torch.mm(x.long()[:, :3], y.long()[:3]),
    lambda x, y: torch.addmm(x, x[:, :3], y[:3], beta=0.5),
    lambda x, y: torch.mm(x[:, :0], y[:0]),
])
def test_others_stay(f: Callable[..., Tensor], graphs: list[fx.GraphModule]) -> None:
    dynamo.reset()
    x, y = torch.randn(64, 64), torch.randn(64, 64)
    torch.testing.assert_close(dynamo.compile(f, options={"graph_cache": False})(x, y), f(x, y), rtol=1e-4, atol=1e-4)
    assert left_of(graphs) or f(x, y).dtype is torch.int64 or not f(x, y).any()


@pytest.mark.parametrize("is_made", [True, False])
def test_a_row_with_a_cache_of_two_parts(is_made: bool, graphs: list[fx.GraphModule]) -> None:
    """What is unpacked is not stored for one row of queries; what lies there is the library's."""
    def attend(q: Tensor, codes: Tensor, last: Tensor) -> Tensor:
        whole = torch.cat([codes * 0.5 + 1 if is_made else codes, last], 1)
        return (q @ whole.mT).softmax(-1) @ whole

    dynamo.reset()
    given = torch.randn(2, 1, 32), torch.randn(2, 40, 32), torch.randn(2, 8, 32)
    found = dynamo.compile(attend, options={"graph_cache": False})(*given)
    torch.testing.assert_close(found, attend(*given), rtol=1e-4, atol=1e-4)
    assert len(left_of(graphs)) == (0 if is_made else 2)


def test_which_are_chosen() -> None:
    assert chosen(Sizes(0, ANY, 2, ANY)) and not chosen(Sizes(0, ANY, 4, ANY)) and chosen(Sizes(0, ANY, 4, 64))
    assert chosen(Sizes(3, 3, 8, ANY)) and chosen(Sizes(3, ANY, 8, 16))
    assert not chosen(Sizes(3, ANY, 8, ANY)) and not chosen(Sizes(3, 17, 5, 17))
    assert chosen(Sizes(1, 4, ANY, 4)) and not chosen(Sizes(1, 9, 100, 8)) and not chosen(Sizes(9, 1, 100, 17))
    assert chosen(Sizes(0, 3, ANY, 3)) and not chosen(Sizes(0, 3, 4096, 3))
