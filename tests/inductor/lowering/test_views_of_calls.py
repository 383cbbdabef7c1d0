"""Calls into the library that give views: what is read through them is read before it is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynamo
from dynamo.base.config import config


def as_integers(x: torch.Tensor) -> torch.Tensor:
    y = x.view(torch.int32).clone()
    x.mul_(2)
    return y + 1


def as_reals(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = torch.view_as_real(x).clone()
    x.mul_(2)
    return y + 1, y.sum(-1)


def twice(x: torch.Tensor) -> torch.Tensor:
    complex_ = torch.view_as_complex(x.view(4, 2))
    y = torch.view_as_real(complex_)[:, 0].exp()
    x.add_(1)
    return y * 2


def rolled(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    parts = torch.roll(x, 3), torch.roll(x.view(2, -1), (1, -1), (0, 1)), torch.roll(x[:1], 3)
    x.sigmoid_()
    return tuple(part.clamp(min=0) for part in parts)


def backwards(x: torch.Tensor) -> torch.Tensor:
    y = torch.view_as_complex(x.view(4, 2)).view(torch.float32) + 0
    x.view(torch.int32).add_(1)
    return y * 2


@pytest.mark.parametrize(("program", "dtype"), [
    (as_integers, torch.float32), (as_reals, torch.complex64), (twice, torch.float32),
    (rolled, torch.float32), (backwards, torch.float32),
])
def test_old_contents_are_read_before_an_input_is_written(
    program: Callable[..., Any], dtype: torch.dtype
) -> None:
    ours = torch.randn(8, dtype=dtype)
    eagers = ours.clone()
    torch.testing.assert_close(dynamo.compile(program)(ours), program(eagers))
    torch.testing.assert_close(ours, eagers)


def test_an_output_that_is_a_view_of_a_complex_input() -> None:
    x = torch.randn(2, 5, dtype=torch.complex64)
    y = x.clone()
    with config.patch(suppress_errors=False):
        dynamo.compile(lambda x: x.t_())(x)
    assert x.shape == (5, 2)
    assert torch.equal(x, y.t())


@pytest.mark.parametrize("view", [
    lambda x: x[0].expand(2, 3, 6), lambda x: x.unfold(1, 4, 2), lambda x: x[:, 1::2],
    lambda x: x.transpose(0, 1), lambda x: x[:, :0],
])
def test_conjugates_whose_elements_share_memory_or_leave_gaps(
    view: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = view(x).conj()
        return y.clone(), y.sum(-1) * 2, y.imag.neg().clone()

    x = torch.randn(3, 6, dtype=torch.complex64)
    torch.testing.assert_close(dynamo.compile(program, fullgraph=True)(x), program(x))


def test_gradients_of_products_with_expanded_complex_numbers() -> None:
    def program(x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
        return (turns.expand(2, 5, 3) * x).abs().square().sum()

    x, turns = (torch.randn(*size, dtype=torch.complex64, requires_grad=True)
                for size in ((2, 5, 3), (3,)))
    ours = torch.autograd.grad(dynamo.compile(program, fullgraph=True)(x, turns), (x, turns))
    torch.testing.assert_close(ours, torch.autograd.grad(program(x, turns), (x, turns)))
