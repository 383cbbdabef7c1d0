"""Gradients of padding, of weights by direction and length, and norms in a wider dtype, without ATen's kernels for them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import dynamo
import inductor

SHAPES: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((2, 3, 9), (2, 3)), ((2, 3, 9), (0, 1)), ((3, 9), (8, 8)), ((2, 3, 7, 6), (1, 2, 3, 0)), ((2, 3, 7, 6), (5, 5, 6, 6)),
    ((2, 3, 4, 5, 6), (1, 2, 2, 1, 0, 3)), ((2, 4, 7, 6), (0, 0, 1, 1)),
]  # fmt: skip


def far(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found.double() - wanted).abs().max() / wanted.abs().max())


@pytest.fixture(autouse=True)
def no_kernels_of_aten() -> Any:
    inductor.metrics.reset()
    yield
    assert not inductor.metrics.fallbacks()


@pytest.mark.parametrize("shape,padding", SHAPES)
@pytest.mark.parametrize("mode", ["reflect", "replicate"])
def test_gradients_of_padding(mode: str, shape: tuple[int, ...], padding: tuple[int, ...]) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return (F.pad(x * 1.5, padding, mode=mode).sin() * 2).square()

    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        for last in (False, True):
            x = torch.randn(shape, dtype=dtype)
            if last and x.dim() == 4:
                x = x.contiguous(memory_format=torch.channels_last)
            inputs = [x.clone().requires_grad_() for _ in range(2)]
            exact = x.double().requires_grad_()
            slope = torch.randn_like(program(x))
            program(exact).backward(slope.double())
            for call, given in zip((program, dynamo.compile(program)), inputs, strict=True):
                call(given).backward(slope)
            eager, ours = inputs
            assert ours.grad.stride() == eager.grad.stride()
            assert far(ours.grad, exact.grad) <= 2 * far(eager.grad, exact.grad) + 1e-14


def test_paddings_that_are_wrong_raise() -> None:
    x = torch.randn(2, 3, 4, requires_grad=True)
    for padding in ((4, 0), (0, 9)):
        with pytest.raises(RuntimeError, match="less than the corresponding input dimension"):
            dynamo.compile(lambda x, padding=padding: F.pad(x, padding, mode="reflect"))(x)


@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_gradients_of_normalized_weights(dim: int, dtype: torch.dtype) -> None:
    for wrap in (nn.utils.weight_norm, nn.utils.parametrizations.weight_norm):
        model = wrap(nn.Conv1d(6, 8, 3), dim=dim)
        exact = wrap(nn.Conv1d(6, 8, 3), dim=dim).double()
        exact.load_state_dict({name: value.to(dtype) for name, value in model.state_dict().items()})
        model, x = model.to(dtype), torch.randn(2, 6, 11, dtype=dtype)
        exact(x.double()).square().sum().backward()
        model(x).square().sum().backward()
        eager = [p.grad for p in model.parameters()]
        model.zero_grad()
        dynamo.compile(model)(x).square().sum().backward()
        for p, seen, one in zip(model.parameters(), eager, exact.parameters(), strict=True):
            assert far(p.grad, one.grad) <= 3 * far(seen, one.grad) + 1e-6
            assert p.grad.dtype is dtype


@pytest.mark.parametrize("order", [1, 2, float("inf")])
def test_norms_in_a_wider_dtype(order: float) -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        norm = torch.linalg.vector_norm
        return norm(x, order, 1, True, dtype=torch.float64), norm(x, order, dtype=torch.float64), x.norm(order)

    for dtype in (torch.bfloat16, torch.float32):
        x = torch.randn(5, 7).to(dtype)
        torch.testing.assert_close(dynamo.compile(program)(x), program(x))
