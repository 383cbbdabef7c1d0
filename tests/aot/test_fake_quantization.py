"""Fake quantization in kernels, with the bits of ATen's, its gradients and its errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import dynamo
from dynamo.testing import assert_compiled
from inductor import metrics

Program = Callable[[Tensor], Tensor]


def of_numbers(x: Tensor) -> Tensor:
    return torch.fake_quantize_per_tensor_affine(x, 0.0371, 3, -7, 8)


def of_tensors(x: Tensor) -> Tensor:
    scale, zero = x.detach().nan_to_num(0, 1, -1).abs().amax() / 127 + 1e-3, torch.tensor([2], dtype=torch.int32)
    return torch.fake_quantize_per_tensor_affine(x, scale[None], zero, 0, 255)


def of_channels(x: Tensor) -> Tensor:
    scale = torch.arange(1.0, 1 + x.shape[1]) / 30
    return torch.fake_quantize_per_channel_affine(x, scale, torch.zeros(x.shape[1], dtype=torch.int32), 1, -8, 7)


def of_last_channels(x: Tensor) -> Tensor:
    scale = x.detach().nan_to_num(0, 1, -1).abs().amax((0, 1)) / 7 + 1e-3
    return torch.fake_quantize_per_channel_affine(x, scale, torch.zeros_like(scale, dtype=torch.int32), x.dim() - 1, -8, 7)


PROGRAMS = [of_numbers, of_tensors, of_channels, of_last_channels]


def compare(program: Program, x: Tensor, backend: str = "inductor") -> None:
    results = []
    for call in (program, dynamo.compile(program, backend=backend, fullgraph=True)):
        leaf = x.clone().requires_grad_()
        found = call(leaf)
        (gradient,) = torch.autograd.grad(found.nan_to_num(0, 0, 0).square().sum(), leaf)
        results.append((found.detach(), gradient))
    (wanted, gradient), (found, other) = results
    assert found.dtype is wanted.dtype and found.stride() == wanted.stride()
    torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(other, gradient, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda each: each.__name__)
def test_bits(program: Program, backend: str) -> None:
    metrics.reset()
    compare(program, torch.randn(4, 6, 70), backend)
    compare(program, torch.randn(4, 70, 6).transpose(1, 2), backend)
    assert_compiled()
    assert not metrics.fallbacks()


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda each: each.__name__)
def test_halves_and_no_numbers(program: Program) -> None:
    """Halfway between two numbers, out of range, infinite, and none."""
    x = torch.arange(-420.0, 420.0).reshape(4, 6, 35) * 0.0371 / 2
    x[0, 0, :6] = torch.tensor([float("inf"), -float("inf"), float("nan"), -0.0, 1e30, -1e30])
    compare(program, x)


@pytest.mark.parametrize(("dtype", "zeros"), [
    (torch.float64, torch.zeros(6, dtype=torch.int32)), (torch.float32, torch.zeros(6)),
    (torch.float32, torch.arange(6, dtype=torch.int32))])
def test_others_are_atens(dtype: torch.dtype, zeros: Tensor) -> None:
    scale = torch.linspace(0.01, 0.2, 6)
    compare(lambda x: torch.fake_quantize_per_channel_affine(x, scale, zeros, 1, -8, 7), torch.randn(4, 6, 5).to(dtype))


def out_of_range(x: Tensor, zeros: Tensor) -> Any:
    return torch.fake_quantize_per_channel_affine(x, torch.ones(6), zeros, 0, -8, 7)


def zero_of_no_range(x: Tensor, zeros: Tensor) -> Any:
    return torch.fake_quantize_per_channel_affine(x, torch.ones(6), zeros * 0, 0, 1, 7)


def number_out_of_range(x: Tensor, zeros: Tensor) -> Any:
    return torch.fake_quantize_per_tensor_affine(x, 0.1, 300, 0, 255)


@pytest.mark.parametrize("program", [out_of_range, zero_of_no_range, number_out_of_range], ids=lambda each: each.__name__)
def test_errors(program: Callable[..., Any]) -> None:
    given = torch.randn(6, 6), torch.full((6,), 9, dtype=torch.int32)
    for call in (program, dynamo.compile(program)):
        with pytest.raises(RuntimeError, match="zero_point"):
            call(*given)
