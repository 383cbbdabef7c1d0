"""Containers that take in their own items, and iterators without end: no trace goes on for ever."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import dynamo


class Items(list):
    pass


class Listed(list):
    def __iter__(self) -> Iterator[Any]:
        yield torch.full((2,), 7.0)


class Table(dict):
    pass


class Members(set):
    pass


def grows(a: Any) -> Any:
    for item in a:
        if len(a) > 40:
            break
        a.append(item * 2)
    return a[-1]


def add_in_place(a: Any) -> Any:
    a += a
    return a[0] + len(a)


def union_in_place(a: Any) -> Any:
    a |= a
    return torch.ones(2) + len(a)


CASES: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "extend": (list, lambda a: (a.extend(a), a[0] + len(a))[1]),
    "by its items": (list, lambda a: (a.extend(x for x in a[:]), a[0] + len(a))[1]),
    "+=": (list, add_in_place),
    "+= of a subclass": (Items, add_in_place),
    "extend of a subclass": (Items, lambda a: (a.extend(a), a[0] + len(a))[1]),
    "extend of one with __iter__": (Listed, lambda a: (a.extend(a), a[0] + len(a))[1]),
    "slice": (list, lambda a: (a.__setitem__(slice(1, 1), a), a[0] + len(a))[1]),
    "loop that grows": (list, grows),
    "deque": (collections.deque, lambda a: (a.extend(a), a.extendleft(a), a[0] + len(a))[2]),
    "deque +=": (collections.deque, add_in_place),
    "update": (lambda v: dict(enumerate(v)), lambda a: (a.update(a), a[0] + len(a))[1]),
    "update of a subclass":
        (lambda v: Table(enumerate(v)), lambda a: (a.update(a), a[0] + len(a))[1]),
    "set": (lambda v: {1, 2}, lambda a: (a.update(a, a), torch.ones(2) + len(a))[1]),
    "set |=": (lambda v: {1, 2}, union_in_place),
    "set of a subclass": (lambda v: Members({1, 2}), union_in_place),
    "difference": (lambda v: {1, 2}, lambda a: (a.difference_update(a), torch.ones(2) + len(a))[1]),
}


@pytest.mark.parametrize("name", CASES)
def test_container_that_is_changed_by_itself(name: str) -> None:
    make, f = CASES[name]
    values = [torch.randn(2), torch.randn(2)]
    ours, eager = make(values), make(values)
    result, expected = dynamo.compile(f, backend="eager")(ours), f(eager)
    assert torch.equal(result, expected) and len(ours) == len(eager)
    assert type(ours) is type(eager)


@pytest.mark.parametrize("take", [list, lambda items: [0].extend(items)])
def test_iterator_that_gives_very_much(take: Callable[[Any], Any]) -> None:
    """The graph breaks, with a reason, long before memory is full."""
    def f(x: torch.Tensor, n: int) -> torch.Tensor:
        taken.append(take(i for i in range(n)) is None)
        return x + 1

    taken: list[bool] = []
    dynamo.reset()
    assert torch.equal(dynamo.compile(f, backend="eager")(torch.ones(2), 40_000), torch.ones(2) + 1)
    assert any("value_too_large" in reason for reason in dynamo.counters["graph_break"])
