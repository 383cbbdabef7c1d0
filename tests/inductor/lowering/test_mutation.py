"""Programs that change their inputs, through the default backend: contents, identity, order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import dynamo
from dynamo.base.config import config

Tensor = torch.Tensor


def swap(a: Tensor, b: Tensor) -> Tensor:
    old = a.clone()
    a.copy_(b)
    b.copy_(old)
    return a - b


def read_before_and_after(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    before = a.sum(0)
    a.mul_(2).add_(b)
    return before, a.sum(0), a.exp()[:1]


def rotate(a: Tensor, b: Tensor) -> Tensor:
    a.copy_(a.roll(1, 0) + a.flip(1))  # every element reads others
    return a * b


def transposed(a: Tensor, b: Tensor) -> Tensor:
    a.copy_(a.t().clone())
    b.copy_(b.t() * 2)
    return a + b


def into_a_slice(a: Tensor, b: Tensor) -> Tensor:
    a[1:3] = b[:2] * 3
    a[:, 0] += 1
    return a @ b


def through_a_view(a: Tensor, b: Tensor) -> Tensor:
    a.view(-1)[5:9].zero_()
    a.t().mul_(0.5)
    return a


def statistics(a: Tensor, b: Tensor) -> Tensor:
    F.batch_norm(a.t().reshape(6, 6, 1), b[0], b[1].abs_(), training=True, momentum=0.2)
    return b.sum()


def whole_inputs(a: Tensor, b: Tensor) -> Tensor:
    total = (a[:, None] * b).sum((1, 2))
    a.mul_(0.9).add_(total[:, None] * 0.1)
    b.copy_(a.t() + b)
    return total


def accumulated(a: Tensor, b: Tensor) -> Tensor:
    for step in range(4):
        a.add_(b, alpha=0.1 * step)
        b.sub_(a.mean(0))
    return a


def returns_the_input(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    c = a.add_(1)
    return c, c + b


def copies_as_a_view(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    before = torch.view_copy(a.t().contiguous(), (3, 12)), torch.view_copy(b, b.shape)
    a.add_(1)
    b.mul_(2)
    return before


PROGRAMS = [
    copies_as_a_view, swap, read_before_and_after, rotate, transposed, into_a_slice, through_a_view, statistics,
    whole_inputs,
    accumulated, returns_the_input,
]  # fmt: skip


def flat(value: Any) -> list[Tensor]:
    return list(value) if isinstance(value, tuple) else [value]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
@pytest.mark.parametrize("layout", ["contiguous", "transposed"])
def test_inputs_end_as_in_eager(program: Callable[..., Any], layout: str) -> None:
    compiled = dynamo.compile(program, backend="inductor", dynamic=False)
    with torch.no_grad():
        for _ in range(2):
            made = [torch.randn(6, 6) for _ in range(2)]
            if layout == "transposed" and program is not through_a_view:
                made = [x.t() for x in made]
            mine = [x.clone(memory_format=torch.preserve_format) for x in made]
            want, got = program(*made), compiled(*mine)
            for x, y in zip([*made, *flat(want)], [*mine, *flat(got)], strict=True):
                torch.testing.assert_close(y, x, rtol=1e-5, atol=1e-5)
            for w, g in zip(flat(want), flat(got), strict=True):
                for x, y in zip(made, mine, strict=True):
                    assert (w is x) == (g is y)


def test_version_counters_move(tmp_path: Any) -> None:
    with config.patch(cache_dir=str(tmp_path)):
        compiled = dynamo.compile(lambda x: x.add_(1) * 2, backend="inductor")
        x = torch.zeros(4)
        before = x._version
        compiled(x)
        assert x._version > before
        assert x.tolist() == [1.0] * 4
