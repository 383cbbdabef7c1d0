"""More than 200 operators over random sizes: eager's results whatever the trace assumed."""

from __future__ import annotations

import random
import warnings

import pytest
import torch

import dynamo
from tests.shapes.more_operators import MORE
from tests.shapes.operators import OPERATORS
from tests.shapes.test_numbers import assert_same

ALL = {**OPERATORS, **MORE}


def check(name: str, dynamic: bool | None, sizes: list[tuple[int, int]]) -> None:
    """Results and kinds of exceptions for each size in turn."""
    program = ALL[name]
    compiled = dynamo.compile(program, backend="eager", dynamic=dynamic)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for size in sizes:
            x = torch.randn(size)
            try:
                wanted = program(x)
            except (RuntimeError, IndexError, ValueError) as error:
                with pytest.raises(type(error)):
                    compiled(x)
                continue
            assert_same(compiled(x), wanted)


def random_sizes(count: int) -> list[tuple[int, int]]:
    columns = random.choice((2, 4, 6))
    rows = [random.choice((0, 1, 2, 3, 4, 5, 7, 8, 12, 17, 40)) for _ in range(count)]
    return [(n, columns if random.random() < 0.7 else random.choice((1, 4, 6, 8))) for n in rows]


def test_there_are_many() -> None:
    assert len(ALL) >= 200


@pytest.mark.parametrize("name", list(MORE)[::5])
def test_some_sizes(name: str) -> None:
    check(name, None, [(4, 6), (7, 6), (1, 6), (5, 4)])


@pytest.mark.long
@pytest.mark.parametrize("dynamic", [None, True, False])
@pytest.mark.parametrize("name", ALL)
def test_random_sizes(name: str, dynamic: bool | None) -> None:
    check(name, dynamic, random_sizes(14))
