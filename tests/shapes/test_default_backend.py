"""Operators of changing sizes on the default backend: eager's results, at each run for a few of them.

`pytest -m long tests/shapes/test_default_backend.py` checks all, which takes about half an hour.
"""

from __future__ import annotations

import random

import pytest
import torch
import torch.nn.functional as F

import dynamo
from tests.shapes.on_default_backend import (
    ALL,
    DIFFERENTIABLE,
    check,
    groups_of,
    random_sizes,
    world,
)

GROUP = 8


@pytest.mark.draws
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("backward", [False, True])
def test_some_operators(dynamic: bool | None, backward: bool) -> None:
    sizes = random_sizes(random.Random(random.getrandbits(64)), 4)
    with world(torch.float64):
        groups = groups_of(random.sample(DIFFERENTIABLE if backward else list(ALL), 6), sizes, GROUP)
    assert check(max(groups, key=len), dynamic, sizes, torch.float64, backward) == []


@pytest.mark.long
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("dynamic", [None, True, False])
@pytest.mark.parametrize("part", range(20))
def test_all_operators(part: int, dynamic: bool | None, dtype: torch.dtype) -> None:
    sizes = random_sizes(random.Random(random.getrandbits(64)), 6)
    with world(dtype):
        groups = groups_of(list(ALL)[part::20], sizes, GROUP)
    assert [text for names in groups for text in check(names, dynamic, sizes, dtype)] == []


@pytest.mark.long
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("part", range(20))
def test_all_gradients(part: int, dynamic: bool | None) -> None:
    sizes = random_sizes(random.Random(random.getrandbits(64)), 4)
    with world(torch.float64):
        groups = groups_of(DIFFERENTIABLE[part::20], sizes, GROUP)
        told = [check(names, dynamic, sizes, torch.float64, True) for names in groups]
    assert [text for texts in told for text in texts] == []


@pytest.mark.parametrize("dynamic", [None, True])
def test_an_index_that_is_out_of_range_for_some_sizes(dynamic: bool | None) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x.select_scatter(x[0] * 2, 0, 3) + 1

    compiled = dynamo.compile(program, dynamic=dynamic)
    for rows in (6, 5, 3, 4, 1, 7):
        x = torch.randn(rows, 3)
        if rows > 3:
            assert torch.equal(compiled(x), program(x))
        else:
            with pytest.raises(IndexError):
                compiled(x)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bags(mode: str, dtype: torch.dtype) -> None:
    def program(at: torch.Tensor, table: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        return F.embedding_bag(at % 7, table, offsets, mode=mode)

    compiled = dynamo.compile(program)
    for count, train in ((5, False), (9, True), (1, True), (6, False), (7, True)):
        at, offsets = torch.randint(100, (count,)), torch.tensor([0, count // 2])
        table = torch.randn(7, 4, dtype=dtype, requires_grad=train)
        found, wanted = compiled(at, table, offsets), program(at, table, offsets)
        torch.testing.assert_close(found, wanted)
        if train:
            torch.testing.assert_close(
                *(torch.autograd.grad(each.sin().sum(), table) for each in (found, wanted)))
