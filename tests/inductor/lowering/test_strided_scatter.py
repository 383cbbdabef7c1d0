"""Writes through `as_strided`, whose offset counts from the begin of a storage that we choose."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import dynamo


def results_of_a_library(x: torch.Tensor) -> torch.Tensor:
    """Two buffers that lie in the arena, the second behind the first."""
    a = x * 2
    b = a.sort()[0] + 1
    b.as_strided((3,), (2,), 1).zero_()
    return torch.cat([b.sort()[0], a, b])


def of_bools(x: torch.Tensor) -> torch.Tensor:
    y = x > 0
    z = torch.gather(y, 0, y.argsort(0))
    z.as_strided((4,), (2,), 1).zero_()
    return z


def of_a_part(x: torch.Tensor) -> torch.Tensor:
    return torch.as_strided_scatter(x.sin()[4:], x[:3], (3,), (2,), 6)


def outside_of_a_part(x: torch.Tensor) -> torch.Tensor:
    return torch.as_strided_scatter(x.sin()[4:], x[:3], (3,), (2,), 1)


def own_offset(x: torch.Tensor) -> torch.Tensor:
    return torch.as_strided_scatter(x.sin()[4:], x[:6].view(2, 3), (2, 3), (1, 4))


def of_nothing(x: torch.Tensor) -> torch.Tensor:
    return torch.as_strided_scatter(x.exp(), x[:0], (0,), (1,), 2)


PROGRAMS = [results_of_a_library, of_bools, of_a_part, outside_of_a_part, own_offset, of_nothing]


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("dynamic", [False, True])
def test_equals_eager(program: Callable[[torch.Tensor], torch.Tensor], dynamic: bool) -> None:
    compiled = dynamo.compile(program, dynamic=dynamic)
    for begin in (0, 3):
        x = torch.randn(40)[begin : begin + 20]
        ours, eagers = compiled(x), program(x)
        torch.testing.assert_close(ours, eagers)
        assert ours.stride() == eagers.stride()
