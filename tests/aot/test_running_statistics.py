"""Batch norms whose running statistics the program makes, or which are views."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import dynamo
from dynamo.testing import assert_compiled
from tests.aot.compare import differentiated


def rows(x: Tensor, s: Tensor) -> tuple[Tensor, ...]:
    return (F.batch_norm(x, s[0], s[1], training=True),)


def columns(x: Tensor, s: Tensor) -> tuple[Tensor, ...]:
    t = s.t()
    return F.batch_norm(x, t[:, 0], t[:, 1], training=True) * t.sum(), t.exp()


def made(x: Tensor, s: Tensor) -> tuple[Tensor, ...]:
    mean = torch.zeros_like(s[0])
    view = mean.view(3, 1)
    y = F.batch_norm(x, mean, torch.ones_like(s[1]), training=True)
    return y + view, mean


def of_made(x: Tensor, s: Tensor) -> tuple[Tensor, ...]:
    made = s * 2
    return F.batch_norm(x, made[0], running_var=made[1], training=True), made


def twice(x: Tensor, s: Tensor) -> tuple[Tensor, ...]:
    y = F.batch_norm(x, s[0], s[1], training=True)
    return (F.batch_norm(y.exp(), s[0], s[1], training=True, momentum=0.3) + s.sum(),)


def read_by_backward(x: Tensor, s: Tensor) -> tuple[Tensor, ...]:
    """It reads what the norm has written: no version counter tells of that."""
    y = x * s[0].view(1, 3, 1)
    return (F.batch_norm(y, s[0], s[1], training=True) + y,)


def in_evaluation(x: Tensor, s: Tensor) -> tuple[Tensor, ...]:
    return (F.batch_norm(x, s[0], s[1]),)


def same(x: Tensor, s: Tensor) -> tuple[Tensor, ...]:
    return (F.batch_norm(x, s[0], s[0], training=True),)


COMPILED = (rows, columns, made, of_made, twice, read_by_backward, in_evaluation)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("program", [*COMPILED, same])
def test_equals_eager(
    program: Callable[..., tuple[Tensor, ...]], dynamic: bool, backend: str
) -> None:
    dynamo.reset()
    x, s = torch.randn(4, 3, 5, dtype=torch.double), torch.rand(2, 3, dtype=torch.double)
    found = []
    for call in (program, dynamo.compile(program, backend=backend, dynamic=dynamic)):
        statistics = s.clone()
        found.append((differentiated(call, x.clone().requires_grad_(), statistics), statistics))
        assert statistics._version == 0
    torch.testing.assert_close(found[1], found[0])
    if program is not same:
        assert_compiled()
