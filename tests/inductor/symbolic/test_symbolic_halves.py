"""Pointwise kernels over sizes of which nothing proves that they are not zero."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import dynamo

PROGRAMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "second half": lambda x: torch.tanh(x.chunk(2, -1)[1]),
    "from the middle": lambda x: torch.tanh((x * 2)[x.shape[0] // 2 :]),
    "last third": lambda x: torch.tanh(x.chunk(3, -1)[-1] - 1),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_value_that_is_read_twice(name: str) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        t = PROGRAMS[name](x)
        return t / (1 + t.abs())

    compiled = dynamo.compile(f, dynamic=True)
    for size in (17, 18, 5, 40, 4):
        x = torch.randn(size, dtype=torch.float64)
        torch.testing.assert_close(compiled(x), f(x))
