"""GEMMs of single rows with matrices that are looked up, as loops; here on a CPU, which the pass leaves alone otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx

import dynamo
from dynamo.aot import min_cut
from inductor.driver import compile_fx
from inductor.fx_passes import looked_up_matrices, pipeline

aten = torch.ops.aten
TOKENS, EXPERTS, WIDTH, HIDDEN = 12, 5, 24, 40


@pytest.fixture(autouse=True)
def graphs(as_on_gpu: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> list[fx.GraphModule]:
    """What is lowered, forward and backward."""
    seen: list[fx.GraphModule] = []

    def noting(module: fx.GraphModule) -> fx.GraphModule:
        module = looked_up_matrices.multiply_in_loops(module)
        seen.append(module)
        return module

    as_on_gpu(looked_up_matrices)
    monkeypatch.setattr(min_cut, "_is_on_gpu", lambda node: True)
    monkeypatch.setattr(compile_fx, "joint_laid_out", looked_up_matrices.multiply_in_loops)
    monkeypatch.setattr(pipeline, "multiply_in_loops", noting)
    return seen


def experts(x: Tensor, up: Tensor, gate: Tensor, down: Tensor, places: Tensor) -> Tensor:
    rows = x[places // 2 % x.shape[0]]
    which = places % up.shape[0]
    gated = F.silu(torch.bmm(gate[which].transpose(1, 2), rows.unsqueeze(2)).squeeze(2))
    return torch.bmm((gated * torch.bmm(rows[:, None], up[which])[:, 0])[:, None], down[which]).squeeze(1)


def einsums(x: Tensor, up: Tensor, gate: Tensor, down: Tensor, places: Tensor) -> Tensor:
    """As in gpt-fast."""
    which = (places % up.shape[0]).view(-1, 2)[: x.shape[0]]
    gated = F.silu(torch.einsum("ti,taoi->tao", x, gate.mT[which]))
    return torch.einsum("tao,taoi->tai", gated * torch.einsum("ti,taoi->tao", x, up.mT[which]), down[which])


def adapters(x: Tensor, up: Tensor, gate: Tensor, down: Tensor, places: Tensor) -> Tensor:
    which = places[: x.shape[0]] % up.shape[0]
    low = torch.bmm(x[:, None], up.index_select(0, which))
    return torch.bmm(low, F.embedding(which, down.flatten(1)).view(-1, HIDDEN, WIDTH))[:, 0] + gate.sum()


def outer(x: Tensor, up: Tensor, gate: Tensor, down: Tensor, places: Tensor) -> Tensor:
    return torch.bmm(x[:, :, None], x[:, None, :]).cos().sum(1) + up.sum() + gate.sum() + down.sum()


def turned(x: Tensor) -> Tensor:
    """Whose factors lie in another order than a result of bmm."""
    return torch.bmm(x.t()[:, :, None], x.t().exp()[:, None, :])


def arguments(dtype: torch.dtype) -> tuple[list[Tensor], Tensor]:
    sizes = (TOKENS, WIDTH), (EXPERTS, WIDTH, HIDDEN), (EXPERTS, WIDTH, HIDDEN), (EXPERTS, HIDDEN, WIDTH)
    return [torch.randn(size).mul(0.3).to(dtype) for size in sizes], torch.randint(0, 1000, (2 * TOKENS,))


def with_gradients(f: Callable[..., Tensor], given: list[Tensor], places: Tensor) -> list[Tensor]:
    given = [value.detach().requires_grad_() for value in given]
    result = f(*given, places)
    return [result, *torch.autograd.grad(result.square().sum(), given)]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("f", [experts, einsums, adapters, outer])
def test_values_and_gradients(
    f: Callable[..., Tensor], dtype: torch.dtype, dynamic: bool, graphs: list[fx.GraphModule]
) -> None:
    dynamo.reset()
    given, places = arguments(dtype)
    compiled = dynamo.compile(f, fullgraph=True, dynamic=dynamic, options={"graph_cache": False})
    found, eager = (with_gradients(each, given, places) for each in (compiled, f))
    exact = with_gradients(f, [value.double() for value in given], places)
    for ours, theirs, true in zip(found, eager, exact):
        assert ours.dtype is theirs.dtype and ours.stride() == theirs.stride()
        distance = (theirs - true).abs().max()
        place = 1e-5 if dtype is torch.float32 else 2 ** -7  # one of the last
        assert (ours - true).abs().max() <= distance + place * true.abs().max()
    left = [node for graph in graphs for node in graph.graph.nodes if node.target is aten.bmm.default]
    assert f is outer or not left  # its gradient is a GEMM with what lies there
    with torch.no_grad():
        torch.testing.assert_close(compiled(*given, places), found[0].detach())


def test_no_looked_up_matrix_is_kept_for_backward(graphs: list[fx.GraphModule]) -> None:
    """A copy of the table is, which the program may write into before."""
    dynamo.reset()
    compiled = dynamo.compile(experts, options={"graph_cache": False})
    for tokens in (TOKENS, TOKENS - 1):  # the second time for all numbers of tokens
        given, places = arguments(torch.bfloat16)
        with_gradients(compiled, [given[0][:tokens], *given[1:]], places[: 2 * tokens])
    assert len(graphs) >= 4
    for graph in graphs:  # backwards give gradients of the tables
        kept: Any = graph.graph.output_node().args[0]
        sizes = [node.meta["val"].shape for node in kept if isinstance(node, fx.Node) and isinstance(node.meta["val"], Tensor)]
        assert all(type(size[0]) is int and size[0] == EXPERTS for size in sizes if len(size) == 3 and size[1] != 1)


@pytest.mark.parametrize("dynamic", [False, True])
def test_strides_are_those_of_bmm(dynamic: bool) -> None:
    dynamo.reset()
    x = torch.randn(TOKENS, WIDTH)
    found, wanted = dynamo.compile(turned, dynamic=dynamic, options={"graph_cache": False})(x), turned(x)
    torch.testing.assert_close(found, wanted)
    assert found.stride() == wanted.stride()


def one_row_of_many(x: Tensor, w: Tensor) -> Tensor:
    return torch.bmm(x[:, None], w)


def by_two_indices(x: Tensor, w: Tensor) -> Tensor:
    at = torch.arange(x.shape[0]) % w.shape[0]
    return torch.bmm(x[:, None], w.unsqueeze(1)[at, torch.zeros_like(at)])


def by_mask(x: Tensor, w: Tensor) -> Tensor:
    return torch.bmm(x[:, None], w.repeat(3, 1, 1)[:TOKENS].index_select(1, torch.arange(WIDTH)))


def integers(x: Tensor, w: Tensor) -> Tensor:
    return torch.bmm(x.long()[:, :, None], x.long()[:, None, :]) + w.sum()


@pytest.mark.parametrize("f", [one_row_of_many, by_two_indices, by_mask, integers])
def test_others_stay(f: Callable[..., Tensor], graphs: list[fx.GraphModule]) -> None:
    """Matrices that lie there for each row are read once whoever reads them."""
    dynamo.reset()
    x = torch.randn(TOKENS, WIDTH)
    w = torch.randn(TOKENS if f is one_row_of_many else EXPERTS, WIDTH, HIDDEN)
    compiled = dynamo.compile(f, options={"graph_cache": False})
    torch.testing.assert_close(compiled(x, w), f(x, w), rtol=1e-4, atol=1e-4)
    assert [node for graph in graphs for node in graph.graph.nodes if node.target is aten.bmm.default]
