"""What training in half precision does on a GPU: captured for one, lowered, and interpreted here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from dynamo.aot.api import simplify
from dynamo.aot.capture import capture_forward
from dynamo.aot.worlds import capture_in_world
from inductor.compile_fx import _decompositions
from inductor.ir import interpret
from inductor.lowering.run import Lowered, lower_graph

aten = torch.ops.aten
HALVES = [torch.float16, torch.bfloat16]
CLOSE = {torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.float32: 1e-5}
Tensor = torch.Tensor


def lowered(program: Callable[..., Any], values: list[Tensor]) -> Lowered:
    """The program as it is lowered for tensors like these on a GPU."""
    mode, gpu = FakeTensorMode(), torch.device("cuda", 0)
    fakes = [FakeTensor(mode, value.to("meta"), gpu) for value in values]
    module = fx.symbolic_trace(program)
    graph, world = capture_in_world(
        lambda world: capture_forward(module, fakes, world=world), module, fakes, False
    )
    return lower_graph(simplify(graph.module, _decompositions(), world))


def interpreted(program: Callable[..., Any], values: list[Tensor]) -> list[Tensor]:
    made = lowered(program, values)
    assert not made.fallbacks
    return list(interpret.interpret_graph(made.graph, values))


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Buffers lie in memory that is here."""
    monkeypatch.setattr(interpret, "_allocate", lambda layout: torch.empty(
        layout.storage_elements(), dtype=layout.dtype))


def batch_norm(x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, var: Tensor) -> Tensor:
    return F.relu(F.batch_norm(x * 2, mean, var, weight, bias, True, 0.1, 1e-3))


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("kept", [*HALVES, torch.float32])
@pytest.mark.parametrize("dtype", [*HALVES, torch.float32])
def test_batch_norm_updates_its_statistics(dtype: Any, kept: Any, last: bool) -> None:
    if dtype is torch.float32 is not kept or kept not in (dtype, torch.float32):
        pytest.skip("eager raises for these dtypes")
    x = torch.randn(6, 5, 4, 7).to(dtype)
    if last:
        x = x.to(memory_format=torch.channels_last)
    vectors = [torch.rand(5).to(kept) + 0.5 for _ in range(4)]
    wide = [value.double() for value in (x, *vectors)]
    result, mean, var = interpreted(batch_norm, [x, *vectors])
    want = batch_norm(*wide)
    assert result.dtype is dtype and result.stride() == x.stride()
    assert mean.dtype is var.dtype is kept
    rounding = CLOSE[dtype]
    torch.testing.assert_close(result.double(), want, rtol=rounding, atol=rounding)
    for found, given in ((mean, wide[3]), (var, wide[4])):  # one rounding
        torch.testing.assert_close(found.double(), given, rtol=CLOSE[kept] / 4, atol=1e-5)


def batch_norm_backward(
    grad: Tensor, x: Tensor, weight: Tensor, mean: Tensor, scale: Tensor
) -> Any:
    return aten.native_batch_norm_backward(
        grad, x, weight, None, None, mean, scale, True, 1e-3, [True, True, True]
    )


@pytest.mark.parametrize("dtype", HALVES)
def test_batch_norm_backward_adds_up_in_float32(dtype: Any) -> None:
    x, grad = torch.randn(6, 5, 40, 7).to(dtype), torch.randn(6, 5, 40, 7).to(dtype)
    weight = torch.rand(5).to(dtype)
    mean = x.float().mean((0, 2, 3))
    scale = (x.float().var((0, 2, 3), correction=0) + 1e-3).rsqrt()
    values = [grad, x, weight, mean, scale]
    found = interpreted(batch_norm_backward, values)
    want = batch_norm_backward(*(value.double() for value in values))
    for mine, exact in zip(found, want, strict=True):
        assert mine.dtype is dtype
        size = exact.abs().max().item() * CLOSE[dtype] / 4
        torch.testing.assert_close(mine.double(), exact, rtol=CLOSE[dtype], atol=size)


@pytest.mark.parametrize("padding", [-1, 1])
@pytest.mark.parametrize("rows", [2, 4, 9])
@pytest.mark.parametrize("dtype", [*HALVES, torch.float32])
def test_embedding_backward(dtype: Any, rows: int, padding: int) -> None:
    grad, index = torch.randn(3, 50, 8).to(dtype), torch.randint(0, rows, (3, 50))

    def program(grad: Tensor, index: Tensor) -> Tensor:
        return aten.embedding_dense_backward(grad * 2, index, rows, padding, False)

    (found,) = interpreted(program, [grad, index])
    exact = program(grad.double(), index)
    assert found.dtype is dtype
    torch.testing.assert_close(found.double(), exact, rtol=CLOSE[dtype] / 4, atol=1e-5)


def test_embedding_backward_in_a_fixed_order_is_the_operator() -> None:
    def program(grad: Tensor, index: Tensor) -> Tensor:
        return aten.embedding_dense_backward(grad, index, 9, -1, False)

    torch.use_deterministic_algorithms(True)
    try:
        made = lowered(program, [torch.randn(5, 8), torch.randint(0, 9, (5,))])
    finally:
        torch.use_deterministic_algorithms(False)
    assert [name for name, _ in made.fallbacks] == ["aten.embedding_dense_backward.default"]


ADDITIONS: list[Callable[..., Tensor]] = [
    lambda x, at, v: aten.index_put(x, [at], v, True),
    lambda x, at, v: aten._unsafe_index_put(x.sin(), [at], v, True),
    lambda x, at, v: x.index_add(0, at, v),
    lambda x, at, v: x.flatten().scatter_add(0, at, v.select(1, 0)),
    lambda x, at, v: x.sin().index_put_((at,), v, accumulate=True).cos(),
]


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("program", ADDITIONS, ids=range(len(ADDITIONS)))
def test_additions_in_half_precision_are_rounded_once(program: Any, dtype: Any) -> None:
    x, at, values = torch.randn(9, 8), torch.randint(0, 9, (300,)), torch.randn(300, 8)
    x, values = x.to(dtype), values.to(dtype)
    (found,) = interpreted(program, [x, at, values])
    exact = program(x.double(), at, values.double())
    assert found.dtype is dtype
    torch.testing.assert_close(found.double(), exact, rtol=CLOSE[dtype] / 4, atol=CLOSE[dtype])


def test_a_large_table_is_not_converted() -> None:
    values = [torch.randn(9000, 8).half(), torch.tensor([3]), torch.randn(1, 8).half()]
    made = lowered(ADDITIONS[0], values)
    assert [name for name, _ in made.fallbacks] == ["aten.index_put.default"]
