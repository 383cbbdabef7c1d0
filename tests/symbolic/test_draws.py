"""Comparisons with random numbers: known where every draw answers the same, else a break."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch

import dynamo
from dynamo.testing import CompileCounter


def drop(x, bound, compare, mirrored):
    for factor in (2, 3):
        draw = torch.rand([])
        if compare(bound, draw) if mirrored else compare(draw, bound):
            continue
        x = x * factor
    return x + torch.rand(3)


def run(f, *args):
    torch.manual_seed(5)
    return f(torch.ones(3), *args), torch.get_rng_state()


@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize("compare", [operator.lt, operator.le, operator.gt, operator.ge])
@pytest.mark.parametrize("bound", [-1, -0.5, 0, 0.0, 0.5, 1.0, float("nan")])
def test_outcome_and_generator_are_eagers(bound, compare, mirrored):
    dynamo.reset()
    expected, state = run(drop, bound, compare, mirrored)
    got, after = run(dynamo.compile(drop, backend="eager"), bound, compare, mirrored)
    assert torch.equal(got, expected) and torch.equal(after, state)


@pytest.mark.parametrize("bound, compare, mirrored", [
    (0.0, operator.lt, False), (0, operator.ge, False), (0.0, operator.gt, True),
    (-1, operator.le, False),
])
def test_a_known_outcome_does_not_break(bound, compare, mirrored):
    dynamo.reset()
    expected, state = run(drop, bound, compare, mirrored)
    compiled = dynamo.compile(drop, backend="inductor", fullgraph=True)
    got, after = run(compiled, bound, compare, mirrored)
    torch.testing.assert_close(got, expected)
    assert torch.equal(after, state)


def test_a_draw_that_was_written_to_is_asked():
    def f(x):
        draw = torch.rand([])
        draw.neg_()
        return x + 1 if draw < 0.0 else x - 1

    backend = CompileCounter()
    torch.manual_seed(1)
    assert torch.equal(dynamo.compile(f, backend=backend)(torch.ones(2)), torch.full((2,), 2.0))
    assert backend.frame_count == 2


def test_a_draw_without_memory_is_refused_as_in_eager():
    def f():
        return torch.rand([], device="meta") < 0.0 and 1

    for function in (f, dynamo.compile(f, backend="eager")):
        with pytest.raises((RuntimeError, NotImplementedError)):
            function()


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_new_takes_a_size_for_a_size(backend: str, dynamic: bool) -> None:
    def f(x: torch.Tensor) -> Any:
        return (x.new(x.shape[:1]).zero_() + x.sum(), x.new(torch.Size([3, 2])).fill_(2), x.new((3, 2)),
                x.new(x.size()).copy_(x) / x, x.new(torch.Size([])).fill_(1), x.new([4, 5]))

    compiled = dynamo.compile(f, backend=backend, dynamic=dynamic)
    for size in (2, 3, 4):
        x = torch.rand(size, 3, dtype=torch.float64)
        torch.testing.assert_close(compiled(x), f(x))


@pytest.mark.parametrize("draw", [
    lambda size: torch.rand(size, generator=None),
    lambda size: torch.randn(size, generator=None, dtype=torch.float64),
    lambda size: torch.randint(0, 5, size, generator=None),
    lambda size: torch.randint(5, size, generator=None),
    lambda size: torch.randperm(size[0], generator=None),
])  # fmt: skip
def test_no_generator_leaves_sizes_symbolic(draw) -> None:
    def f(x, generator=None):
        return draw(x.shape) + x.sum()

    dynamo.reset()
    counter = CompileCounter()
    compiled = dynamo.compile(f, backend=counter, fullgraph=True)
    for size in (4, 5, 6, 7):
        x = torch.ones(size, 3)
        torch.manual_seed(1)
        expected = f(x)
        torch.manual_seed(1)
        assert torch.equal(compiled(x), expected)
    assert counter.frame_count == 2
