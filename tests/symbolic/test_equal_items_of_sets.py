"""Which of equal items (1, True, 1.0) a set keeps."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import dynamo


def kept(x: torch.Tensor, n: Any) -> Any:
    some = {1, 2}
    some.update([n, 3])
    own = {n}
    own &= {1}
    return (x + 1, {*[1, n]} - {2}, {1, n}, set([n, 1]), {1} | {n}, {1} & {n}, {n} & {1}, {1, 2} & {n}, {n} & {1, 2},
            {1}.intersection([n, 5]), {1: 0, n: 2}, {1} ^ {2, n}, frozenset([1, n]) - {5}, some, own)


@pytest.mark.parametrize("n", [1, True, 1.0])
def test_of_equal_items(n: Any) -> None:
    compiled = dynamo.compile(kept, backend="eager")
    for value in (n, 1, n):
        found, wanted = compiled(torch.ones(1), value)[1:], kept(torch.ones(1), value)[1:]
        for one, two in zip(found, wanted, strict=True):
            assert sorted(map(repr, one)) == sorted(map(repr, two))


def test_the_order_of_sets_is_theirs() -> None:
    """Of what is joined, and of items with equal keys: an equal set may have another order."""
    def f(x: Any, texts: Any, numbers: Any) -> Any:
        return x + 1, "".join(texts), sorted(numbers, key=lambda n: 0)

    compiled = dynamo.compile(f, backend="eager")
    for start in range(97, 117):
        texts, numbers = {chr(start + at) for at in range(5)}, {8, 1, start}
        assert compiled(torch.ones(1), texts, numbers)[1:] == f(torch.ones(1), texts, numbers)[1:]
