"""Sets that live over graph breaks: those that a comprehension fills, and those from outside."""

from __future__ import annotations

import collections
import types
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


NUMBERS, FROZEN, KINDS = {1, 2}, frozenset({1, 2}), {int, str}
HOLDER = types.SimpleNamespace(numbers={1})
Pair = collections.namedtuple("Pair", "a b")
HELD = {
    "in a tuple": lambda: (FROZEN, 1),
    "several": lambda: (NUMBERS, FROZEN, KINDS, HOLDER.numbers),
    "nested": lambda: ((NUMBERS,), [KINDS], {"a": FROZEN}),
    "in a slice": lambda: slice(FROZEN, KINDS),
    "in a named tuple": lambda: Pair(FROZEN, KINDS),
}


@pytest.mark.parametrize("store", [False, True])
@pytest.mark.parametrize("name", HELD)
def test_sets_from_outside_that_nothing_reads(name: str, store: bool) -> None:
    def f(x: torch.Tensor) -> Any:
        held = HELD[name]()
        if store:
            HOLDER.stored = held
        else:
            dynamo.graph_break()
        return x + 1, held

    with dynamo.config.patch(suppress_errors=False):
        assert dynamo.compile(f, backend="eager")(torch.ones(1))[1] == f(torch.ones(1))[1]
