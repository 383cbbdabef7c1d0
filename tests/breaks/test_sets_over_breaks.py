"""A set that a comprehension fills behind graph breaks stays one object."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import dynamo


class Key:
    """Its hash is known to Python alone, so adding it to a set breaks the graph."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __hash__(self) -> int:
        return hash(self.value)

    def __eq__(self, other: Any) -> bool:
        return bool(self.value == other.value)


@pytest.mark.parametrize("letters", ["a", "ab", "aba", ""])
def test_a_comprehension_keeps_its_first_item(letters: str) -> None:
    def f(x: torch.Tensor) -> Any:
        y = x + 1
        dynamo.graph_break()
        found = {Key(letter) for letter in letters}
        return y, found

    dynamo.reset()
    compiled = dynamo.compile(f, backend="eager")
    for _ in range(2):
        assert compiled(torch.ones(2))[1] == f(torch.ones(2))[1]
