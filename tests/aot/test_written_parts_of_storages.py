"""Training programs that write an input in whose storage another lies: both count writes together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import dynamo
from dynamo.testing import assert_compiled


def apart() -> tuple[Tensor, Tensor]:
    return torch.ones(2, 3), torch.full((2, 3), 2.0)


def parts() -> tuple[Tensor, Tensor]:
    whole = torch.arange(12.0).view(4, 3)
    return whole[:2], whole[2:]


def flat_parts() -> tuple[Tensor, Tensor]:
    whole = torch.arange(20.0)
    return whole[12:18].view(2, 3), whole[1:7].view(2, 3)


def within() -> tuple[Tensor, Tensor]:
    whole = torch.arange(6.0).view(2, 3)
    return whole, whole.view(3, 2).view(2, 3)


def scaled(a: Tensor, b: Tensor, x: Tensor) -> Tensor:
    a.mul_(2)
    return b * x


def both_read(a: Tensor, b: Tensor, x: Tensor) -> Tensor:
    y = (a + 1) * x
    a.copy_(y.detach())
    return y * b + a.sum() * x.sin()


def statistics(a: Tensor, b: Tensor, x: Tensor) -> Tensor:
    """Running statistics and weights of one buffer."""
    a[0].lerp_(x.detach().mean(0), 0.1)
    return (x - a[0]) * b[0] + b[1]


PROGRAMS = [scaled, both_read, statistics]


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("first", [apart, parts, flat_parts, within])
@pytest.mark.parametrize("program", PROGRAMS)
def test_equals_eager(
    program: Callable[..., Tensor], first: Callable[[], tuple[Tensor, Tensor]], backend: str
) -> None:
    dynamo.reset()
    compiled = dynamo.compile(program, backend=backend)
    for make in (first, parts, apart, flat_parts):
        found: list[Any] = []
        counted = []
        for call in (program, compiled):
            a, b = make()
            x = torch.linspace(-1, 1, 6).view(2, 3).requires_grad_()
            versions = a._version, b._version
            y = call(a, b, x)
            y.square().sum().backward()
            found.append([y, x.grad, a, b])
            counted.append((a._version > versions[0], b._version > versions[1]))
        assert counted[1] == counted[0]
        torch.testing.assert_close(found[1], found[0])
    if first is not within:
        assert_compiled()


def test_what_is_saved_before_the_write_is_an_error() -> None:
    def f(a: Tensor, b: Tensor, x: Tensor) -> Tensor:
        y = a * x
        a.mul_(2)
        return y

    for call in (f, dynamo.compile(f)):
        y = call(*parts(), torch.ones(2, 3, requires_grad=True))
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()
