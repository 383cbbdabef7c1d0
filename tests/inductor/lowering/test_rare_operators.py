"""Operators that only some losses and models have: eager's values, and kernels instead of fallbacks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx

import dynamo
from dynamo.aot.capture import capture_forward
from dynamo.aot.decompose import decompose
from dynamo.aot.decompositions import default_decompositions
from inductor import metrics
from tests.inductor.lowering.test_losses_on_gpu import on_gpu

aten = torch.ops.aten
INF, NAN = float("inf"), float("nan")
SPECIAL = torch.tensor([0.0, -0.0, 1.0, -1.0, INF, -INF, NAN, 2.5, -3.0, 0.5, 1e-30, 88.0])
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
FLOATS = DTYPES[:2]


def pairs(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    size = (len(SPECIAL), len(SPECIAL))
    return SPECIAL.to(dtype)[:, None].expand(size).contiguous(), SPECIAL.to(dtype).expand(size).contiguous()


def check(program: Callable[..., Tensor], *given: Tensor, rtol: float = 0.0) -> None:
    """Values and dtype of eager, the sign of zeros too, and no fallback."""
    metrics.reset()
    got, want = dynamo.compile(program, fullgraph=True)(*given), program(*given)
    torch.testing.assert_close(got, want, rtol=rtol, atol=0, equal_nan=True)
    known = ~want.isnan()
    assert torch.equal(got.signbit()[known], want.signbit()[known])
    assert not metrics.fallbacks()


@pytest.mark.parametrize("dtype", DTYPES)
def test_signs(dtype: torch.dtype) -> None:
    check(torch.sgn, SPECIAL.to(dtype))


def test_signs_of_whole_and_complex_numbers() -> None:
    check(torch.sgn, torch.tensor([-3, 0, 5]))
    z = torch.randn(3, dtype=torch.complex64)
    torch.testing.assert_close(dynamo.compile(torch.sgn)(z), torch.sgn(z))


@pytest.mark.parametrize("dtype", DTYPES)
def test_products_with_logarithms(dtype: torch.dtype) -> None:
    x, y = pairs(dtype)
    rtol = 1e-6 if dtype in FLOATS else 1e-2
    check(torch.xlogy, x, y, rtol=rtol)
    check(lambda x: torch.xlogy(x, 2.5), x, rtol=rtol)
    check(lambda x: torch.xlogy(3, x), x, rtol=rtol)


def test_products_with_logarithms_of_whole_numbers() -> None:
    check(torch.xlogy, torch.tensor([-3, 0, 5, 2]), torch.tensor([0, 0, 7, 3]), rtol=1e-6)
    check(torch.xlogy, torch.tensor([True, False]), torch.tensor([2.0, 0.0]), rtol=1e-6)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("eps", [None, 0.1])
def test_logits(dtype: torch.dtype, eps: float | None) -> None:
    check(lambda x: torch.logit(x, eps), torch.cat([SPECIAL, torch.rand(20)]).to(dtype), rtol=1e-6)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("numbers", [(0, 7), (0.0, 7.0), (3, -5, -2), (1.0, 9.0, 2.0), (5,), (0, (1 << 24) - 6, 1677721)])
def test_ranges_of_whole_floats(dtype: torch.dtype, numbers: tuple[Any, ...]) -> None:
    check(lambda x: torch.arange(*numbers, dtype=dtype) * x, torch.tensor(2.0, dtype=dtype))


@pytest.mark.parametrize("numbers", [(0.5, 3), (0.0, 1.0, 0.1), (-0.0, 3.0), (0, 1 << 26, 1 << 23)])
def test_other_ranges(numbers: tuple[Any, ...]) -> None:
    """They are rounded as by ATen's kernels, so those make them."""
    program = lambda: torch.arange(*numbers, dtype=torch.float32) + 0  # noqa: E731
    metrics.reset()
    assert repr(dynamo.compile(program)()) == repr(program())
    assert any("arange" in name for name in metrics.fallbacks())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
@pytest.mark.parametrize("size", [(4,), (3, 5), (5, 3), (0, 2)])
def test_eyes(dtype: torch.dtype, size: tuple[int, ...]) -> None:
    metrics.reset()
    program = lambda: torch.eye(*size, dtype=dtype)  # noqa: E731
    torch.testing.assert_close(dynamo.compile(program, fullgraph=True)(), program(), rtol=0, atol=0)
    assert not metrics.fallbacks()


def test_bytes_as_numbers_with_signs() -> None:
    """What is computed is converted; what lies in memory is seen as the other dtype there."""
    x = torch.arange(256, dtype=torch.uint8)
    check(lambda x: ((x << 4).view(torch.int8) >> 4) * 2, x)
    check(lambda x: ((x + 1).view(torch.int8) - 3).view(torch.uint8).int(), x)
    compiled = dynamo.compile(lambda x: (x.view(torch.int8), x.view(torch.int8) + 1))
    seen, more = compiled(x)
    assert seen.data_ptr() == x.data_ptr() and more.tolist() == (x.view(torch.int8) + 1).tolist()


@pytest.mark.parametrize("dtype", DTYPES)
def test_softplus_of_a_permuted_gradient(dtype: torch.dtype) -> None:
    """Its backward has the gradient's strides, for which there is a kernel as well."""
    x, gradient = torch.randn(2, 16, 2).to(dtype), torch.randn(2, 2, 16).to(dtype).transpose(1, 2)
    metrics.reset()
    program = lambda g, x: aten.softplus_backward(g, x, 2.0, 3.0)  # noqa: E731
    got, want = dynamo.compile(program, fullgraph=True)(gradient, x), program(gradient, x)
    assert got.stride() == want.stride() and not metrics.fallbacks()
    torch.testing.assert_close(got, want)


def test_distances_and_tests() -> None:
    x = torch.randn(5, 4)
    check(lambda x: F.pairwise_distance(x, x.flip(0)), x, rtol=1e-6)
    check(lambda x: aten._is_all_true(x > -9) & aten._is_any_true(x > 9), x)


@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_of_exponentials_on_gpu(dtype: torch.dtype) -> None:
    """The composition for one, run on the CPU."""
    x, y = pairs(dtype)
    gm = fx.symbolic_trace(lambda x, y: torch.logaddexp(x, y))
    module = decompose(on_gpu(capture_forward(gm, [x, y]).module), default_decompositions())
    assert not module.graph.find_nodes(op="call_function", target=aten.logaddexp.default)
    rtol = 1e-6 if dtype in FLOATS else 1e-2
    torch.testing.assert_close(
        module(x, y)[0], torch.logaddexp(x, y), rtol=rtol, atol=0, equal_nan=True)
    kept = dynamo.compile(torch.logaddexp, fullgraph=True)(x, y)
    torch.testing.assert_close(kept, torch.logaddexp(x, y), rtol=0, atol=0, equal_nan=True)
