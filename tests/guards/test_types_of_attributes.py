"""A function that asks a value for an attribute, an iterator or its truth, and does nothing else with
it, depends on its type."""

from __future__ import annotations

import collections
from typing import Any

import pytest
import torch

import dynamo


class Plain:
    pass


VALUES = [torch.ones(2), collections.defaultdict(int), [], {}, 5, "text", Plain(), torch.ones(3)]


@pytest.mark.parametrize("name", ["default_factory", "abs", "grad", "shape", "append", "real"])
@pytest.mark.parametrize("first", range(len(VALUES)))
def test_of_any_value(name: str, first: int) -> None:
    def asks(value: Any) -> bool:
        return hasattr(value, name)

    def reads(value: Any) -> bool:
        try:
            getattr(value, name)
        except AttributeError:
            return False
        return True

    for function in (asks, reads):
        compiled = dynamo.compile(function, backend="eager")
        for value in (VALUES[first], *VALUES):
            assert compiled(value) is function(value), (type(value), function)


@pytest.mark.parametrize("first", [[1], iter([1]), enumerate([]), list[int], Plain(), 5],
                         ids=lambda value: type(value).__name__)
def test_iterators_and_truth(first: Any) -> None:
    def iterable(value: Any) -> bool:
        try:
            iter(value)
        except TypeError:
            return False
        return True

    def filled(value: Any) -> bool:
        return bool(value)

    for function in (iterable, filled):
        compiled = dynamo.compile(function, backend="eager")
        for value in (first, [], Plain(), None, {}, iter([]), 5, [1]):
            assert compiled(value) is function(value), (type(value), function)
