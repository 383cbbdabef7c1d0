"""`list.index` and `tuple.index` with a start and a stop."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

import dynamo


@pytest.mark.parametrize("kind", [list, tuple])
def test_as_python(kind: Any) -> None:
    def function(x: torch.Tensor, items: Any, *places: Any) -> Any:
        try:
            return x * 2, items.index(2, *places)
        except ValueError as error:
            return x * 2, str(error)

    items = kind([1, 2, 3, 2])
    bounds = (0, 1, 2, 4, 9, -1, -3, -9)
    cases: list[tuple[int, ...]] = [(first,) for first in bounds]
    cases += list(itertools.product(bounds[::2], bounds))
    for places in cases:
        dynamo.reset()
        compiled = dynamo.compile(function, backend="eager", fullgraph=True)
        assert compiled(torch.ones(1), items, *places)[1] == function(torch.ones(1), items, *places)[1], places


def test_what_is_no_place() -> None:
    def function(x: torch.Tensor, place: Any) -> Any:
        try:
            return x * 2, [1, 2].index(2, place)
        except TypeError as error:
            return x * 2, str(error)

    for place in None, 1.0, True:
        assert dynamo.compile(function, backend="eager")(torch.ones(1), place)[1] == function(torch.ones(1), place)[1]
