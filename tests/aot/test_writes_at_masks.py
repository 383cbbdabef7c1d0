"""Gradients of values that a program writes at a mask, as models of images and text do."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import dynamo
from dynamo.testing import assert_compiled

Program = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def rows(x: torch.Tensor, mask: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x = x.clone()
    x[mask] = y.sin()
    return x.exp()


def columns(x: torch.Tensor, mask: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x = x.transpose(0, 2).clone()
    x[:, mask.transpose(0, 1)] = y.t().sin()
    return x.exp()


def added(x: torch.Tensor, mask: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x.sin().index_put((mask,), y.cos(), accumulate=True).exp()


def twice(x: torch.Tensor, mask: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x = x.clone()
    x[mask] = y.sin()
    x[mask.logical_not()] = 0.5
    return x.exp()


def gradients(program: Program, mask: torch.Tensor, count: int) -> list[torch.Tensor]:
    made = torch.Generator().manual_seed(int(mask.sum()))
    x, y = (torch.randn(*size, 4, dtype=torch.float64, generator=made, requires_grad=True)
            for size in (mask.shape, (count,)))  # fmt: skip
    result = program(x, mask, y)
    weight = torch.arange(result.numel(), dtype=torch.float64).reshape(result.shape)
    (result * weight).sum().backward()
    assert x.grad is not None and y.grad is not None
    return [result.detach(), x.grad, y.grad]


@pytest.mark.parametrize("program", [rows, columns, added, twice])
@pytest.mark.parametrize("count", [0, 2, 5])
def test_equals_eager(program: Program, count: int) -> None:
    mask = (torch.randperm(15) < count).reshape(3, 5)
    dynamo.reset()  # what other tests left uncompiled is not counted
    compiled = dynamo.compile(program)
    for made in (mask, mask.flip(0)):
        torch.testing.assert_close(
            gradients(compiled, made, count), gradients(program, made, count))
    assert_compiled()


def test_another_count_is_eagers_error() -> None:
    mask = torch.tensor([[True, False, True]])
    compiled = dynamo.compile(rows)
    gradients(compiled, mask, 2)
    for program in (rows, compiled):
        with pytest.raises((RuntimeError, IndexError), match="shape mismatch"):
            gradients(program, ~mask, 2)


def test_one_value_for_many() -> None:
    """How many elements a mask has is not known then; the graph is not compiled, and right."""
    mask = torch.tensor([[True, False, True], [True, True, False]])
    compiled = dynamo.compile(rows)
    torch.testing.assert_close(gradients(compiled, mask, 1), gradients(rows, mask, 1))


def test_a_mask_without_dimensions() -> None:
    compiled = dynamo.compile(rows)
    made = [torch.randn(*size, requires_grad=True) for size in ((3, 4), (0, 3, 4))]
    for program in (rows, compiled):
        result = program(made[0], torch.tensor(False), made[1])
        (found,) = torch.autograd.grad(result.sum(), made[1])
        torch.testing.assert_close(result, made[0].exp())
        assert found.shape == made[1].shape
