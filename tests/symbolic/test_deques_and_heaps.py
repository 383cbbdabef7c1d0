"""Deques and heaps that a program brings: they are read, changed in place, and guarded."""

from __future__ import annotations

import bisect
import collections
import copy
import heapq
import operator
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynamo
from dynamo.testing import CompileCounter

HELD: dict[str, Any] = {}


def drained(d: Any) -> torch.Tensor:
    total = torch.zeros(2)
    while d:
        total = total + d.popleft()
    return total


def drained_by_error(d: Any) -> torch.Tensor:
    total = torch.zeros(2)
    try:
        while True:
            total = total * 2 + d.pop()
    except IndexError as error:
        return total + len(str(error))


def summed(d: Any) -> torch.Tensor:
    return sum([x * i for i, x in enumerate(d)], torch.zeros(2))


def changed_while_iterated(d: Any) -> Any:
    try:
        for x in d:
            d.append(x)
    except RuntimeError as error:
        return d[0] + len(d), str(error)


def written_while_iterated(d: Any) -> Any:
    for i, x in enumerate(d):
        d[i] = x + 1
    d.reverse()
    return d[0] * 2


def many_changes(d: Any) -> Any:
    d.rotate(2), d.appendleft(d[0] * 3), d.extend([d[1], d[2]]), d.extendleft([d[0], d[-1]])
    d.rotate(-3), d.insert(1, d[0] + 1), d.extend(d)
    d += [d[2]]
    del d[0]
    other = d.copy()
    other.append(d.popleft())
    return other[-1] + d[3] + len(other), d.maxlen, other.maxlen


def asked(d: Any) -> Any:
    kept = d[0]
    d.clear(), d.extend([4, 5, 7])
    d.remove(5)
    return kept + d.index(7) + d.count(7) + (7 in d)


def repeated(d: Any) -> Any:
    other = kept = collections.deque([1, 2], 3)
    full = collections.deque([1, 2], 2)
    for _ in full:
        full *= 3
    other *= 2
    d.append(d[0]), d.rotate(1)
    e = d
    d *= True
    d *= 2
    try:
        for _ in d:
            d *= 2
    except RuntimeError as error:
        return d[0] * 2, str(error), list(other), other is kept, e is d, len(e), operator.imul(collections.deque([5]), 0)


FUNCTIONS = [drained, drained_by_error, summed, changed_while_iterated, written_while_iterated,
             many_changes, asked, repeated, lambda d: (d.clear(), torch.ones(2) + len(d))[1],
             lambda d: d.pop() + 1]


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, list | tuple | collections.deque):
        return type(one) is type(other) and len(one) == len(other) and all(map(equal, one, other))
    return type(one) is type(other) and one == other


@pytest.mark.parametrize("f", FUNCTIONS)
@pytest.mark.parametrize("how", ["argument", "global"])
def test_deques_from_outside(f: Callable[..., Any], how: str) -> None:
    counter = CompileCounter("eager")

    def of_global() -> Any:
        return f(HELD["deque"])

    compiled = dynamo.compile(f if how == "argument" else of_global, backend=counter, fullgraph=True)
    for limit in (None, None, 20):
        ours = collections.deque([torch.randn(2) for _ in range(4)], limit)
        eager = copy.deepcopy(ours)
        HELD["deque"] = ours
        assert equal(compiled(ours) if how == "argument" else compiled(), f(eager))
        assert equal(ours, eager) and ours.maxlen == eager.maxlen
    assert counter.frame_count == 2


def test_limits_are_kept() -> None:
    def f(d: Any, x: torch.Tensor) -> Any:
        d.append(x)
        d.appendleft(x + 1)
        return d[-1] * len(d)

    compiled = dynamo.compile(f, backend="eager", fullgraph=True)
    for limit in (3, 1, 0, 2):
        ours, x = collections.deque([torch.ones(2)] * limit, limit), torch.randn(2)
        eager = copy.deepcopy(ours)
        if limit:
            assert equal(compiled(ours, x), f(eager, x)) and equal(ours, eager)
        else:
            with pytest.raises(IndexError):
                compiled(ours, x)


def test_break_in_a_loop_over_a_deque() -> None:
    def f(d: Any, x: torch.Tensor) -> torch.Tensor:
        for item in d:
            x = x * 2 + item
            dynamo.graph_break()
            d[0] = x
        return x

    ours = collections.deque(torch.randn(3, 2))
    eager, x = copy.deepcopy(ours), torch.randn(2)
    assert equal(dynamo.compile(f, backend="eager")(ours, x), f(eager, x)) and equal(ours, eager)


def heaps(items: list[Any], x: torch.Tensor) -> Any:
    heapq.heapify(items)
    found = [heapq.heappop(items), heapq.heappushpop(items, 4), heapq.heapreplace(items, 9)]
    heapq.heappush(items, -3)
    bisect.insort(found, 5)
    bisect.insort_left(found, 2, key=lambda v: -v)
    found += heapq.nlargest(3, items) + heapq.nsmallest(2, items, key=lambda v: v % 5)
    return x * found[0] + len(items), found


def test_heaps_have_the_order_of_heapq() -> None:
    for _ in range(4):
        ours, x = [random.randrange(20) for _ in range(random.randrange(4, 24))], torch.randn(2)
        eager = list(ours)
        compiled = dynamo.compile(heaps, backend="eager", fullgraph=True, isolate_recompiles=True)
        assert equal(compiled(ours, x), heaps(eager, x)) and ours == eager
    with pytest.raises(IndexError, match="index out of range"):
        dynamo.compile(lambda x: heapq.heappop([]) + x, backend="eager")(torch.ones(1))
