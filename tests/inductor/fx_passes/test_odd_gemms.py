"""GEMMs of odd sizes for matrix units: eager's values and strides, out of matrices of whole words."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import dynamo
from dynamo.aot.api import compile_training
from inductor.fx_passes.odd_gemms import pad_odd_gemms
from inductor.ir.gpus import MEASURED
from inductor.lowering.registry import LOWERINGS

aten = torch.ops.aten
SLOW = replace(MEASURED, gemms=1e8, bandwidth=1e15)  # so that every odd GEMM repays a copy
GEMMS = (aten.mm.default, aten.addmm.default)


def loss(h: Tensor, w: Tensor) -> Tensor:
    return F.cross_entropy((h @ w.t()).float(), torch.arange(24) % 101)


def batched_loss(h: Tensor, w: Tensor) -> Tensor:
    logits = F.linear(h.view(4, 6, 16), w)
    return F.cross_entropy(logits[:, :-1].reshape(-1, 101).float(), torch.arange(20))


def returned(h: Tensor, w: Tensor) -> Any:
    logits = h @ w.t()
    return logits, logits.view(4, 6, 101), logits.t(), logits.sum()


def odd_inside(h: Tensor, w: Tensor) -> Tensor:
    return ((h @ w.t()).relu() @ w).tanh()


def used_by_a_gemm(h: Tensor, w: Tensor) -> Tensor:
    return h @ w.t() @ w


def with_bias(h: Tensor, w: Tensor) -> Tensor:
    return F.linear(F.linear(h, w, w[:, 0]).relu(), w.t(), h[0])


def odd_all_around(h: Tensor, w: Tensor) -> Any:
    logits, square = h @ w.t(), w @ w.t()
    return logits @ square, logits.t() @ logits, logits @ logits.t(), square @ logits.t()


def read_as_memory(h: Tensor, w: Tensor) -> Tensor:
    return (h @ w.t()).as_strided((5, 7), (2, 3), 1).float() * 2


def joined(h: Tensor, w: Tensor) -> Tensor:
    return (h @ w.t()).view(-1).sin() * 2


PROGRAMS = (loss, batched_loss, returned, odd_inside, used_by_a_gemm, with_bias, odd_all_around, read_as_memory, joined)


def is_whole(value: Tensor) -> bool:
    """Whether rows begin and end at whole words, or are shorter than one."""
    along = value.shape[value.stride().index(1)]
    return all(n * value.element_size() % 16 == 0 or n < 8 for n in (along, *value.stride()))


def results_of(
    program: Callable[..., Any], rewrite: Callable[..., Any], graphs: list[Any], dtype: torch.dtype
) -> list[Tensor]:
    def keep(gm: torch.fx.GraphModule, fakes: Any) -> Any:
        graphs.append(gm)
        return gm

    torch.manual_seed(0)
    h = torch.randn(24, 16).to(dtype).requires_grad_()
    w = (torch.randn(101, 16) / 4).to(dtype).requires_grad_()
    backend = lambda gm, inputs: compile_training(gm, inputs, keep, keep, rewrite=rewrite)  # noqa: E731
    found = dynamo.compile(program, backend=backend, fullgraph=True)(h, w)
    found = [*found] if isinstance(found, (tuple, list)) else [found]
    sum(each.float().square().sum() for each in found).backward()
    return [*found, h.grad, w.grad]


@pytest.fixture
def tensor_float() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    yield
    torch.set_float32_matmul_precision(before)


def test_full_float32_is_as_fast_without() -> None:
    graphs: list[Any] = []
    results_of(odd_inside, lambda module: pad_odd_gemms(module, LOWERINGS.__contains__, SLOW), graphs, torch.float32)
    assert not any(node.target is aten.constant_pad_nd.default for graph in graphs for node in graph.graph.nodes)


@pytest.mark.usefixtures("tensor_float")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda value: value.__name__)
def test_values_and_strides(program: Callable[..., Any], dtype: torch.dtype) -> None:
    graphs: list[Any] = []
    plain = results_of(program, lambda module: module, [], dtype)
    ours = results_of(program, lambda module: pad_odd_gemms(module, LOWERINGS.__contains__, SLOW), graphs, dtype)
    for one, other in zip(ours, plain, strict=True):
        assert one.shape == other.shape and one.stride() == other.stride() and one.dtype is other.dtype
        torch.testing.assert_close(one, other, rtol=2e-2, atol=2e-2 * float(other.abs().max()))
    gemms = [node for graph in graphs for node in graph.graph.nodes if node.target in GEMMS]
    assert gemms
    for node in gemms:
        assert all(is_whole(given.meta["val"]) for given in node.args[-2:])


def loss_of_any(h: Tensor, w: Tensor) -> Tensor:
    logits = F.linear(h.view(2, -1, 16), w)
    return F.cross_entropy(logits.view(-1, 101).float(), torch.arange(h.shape[0]) % 101)


@pytest.mark.parametrize("program", [loss_of_any, odd_inside, with_bias, used_by_a_gemm], ids=lambda value: value.__name__)
def test_any_number_of_rows(program: Callable[..., Any]) -> None:
    """Few compiles for all of them; rows are padded by nothing, and nothing more is assumed of them."""
    graphs: list[Any] = []

    def keep(gm: torch.fx.GraphModule, fakes: Any) -> Any:
        graphs.append(gm)
        return gm

    def backend(gm: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        assumed = []
        for rewrite in (lambda module: module, lambda module: pad_odd_gemms(module, LOWERINGS.__contains__, SLOW)):
            graphs.clear()
            call = compile_training(gm, inputs, keep, keep, rewrite=rewrite, symbolic=True)
            assumed.append(graphs[0].meta["symbols"].assumptions)
        assert assumed[0] == assumed[1]
        return call

    compiled = dynamo.compile(program, backend=backend, fullgraph=True)
    for rows in (24, 26, 34):
        torch.manual_seed(rows)
        h = torch.randn(rows, 16).bfloat16().requires_grad_()
        w = (torch.randn(101, 16) / 4).bfloat16().requires_grad_()
        dynamo.mark_dynamic(h, 0)
        results = []
        for call in (compiled, program):
            h.grad = w.grad = None
            found = call(h, w)
            found.float().square().sum().backward()
            results.append([found, h.grad, w.grad])
        for one, other in zip(*results, strict=True):
            assert one.stride() == other.stride()
            torch.testing.assert_close(one, other, rtol=2e-2, atol=2e-2 * float(other.detach().abs().max()))
    gemms = [node for graph in graphs for node in graph.graph.nodes if node.target in GEMMS]
    assert len(gemms) >= 3
    for node in gemms:
        for given in node.args[-2:]:
            value = given.meta["val"]
            rows = [n for n in (*value.shape, *value.stride()) if type(n) is int]
            assert all(n % 8 == 0 or n < 8 for n in rows), (node, value.shape, value.stride())
