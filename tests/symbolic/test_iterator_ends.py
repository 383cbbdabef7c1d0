"""Iterators asked again after an exception and after their end: those of C code go on, as in eager."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import dynamo
from dynamo.testing import CompileCounter


class Pausing:
    """1, 2, an end, 4, 5, an end, ..."""

    def __init__(self) -> None:
        self.count = 0

    def __iter__(self) -> Pausing:
        return self

    def __next__(self) -> int:
        self.count += 1
        if self.count % 3 == 0:
            raise StopIteration
        return self.count


class Failing(Pausing):
    """1, an exception, 3, 4, 5 and the end."""

    def __next__(self) -> int:
        self.count += 1
        if self.count == 2:
            raise ValueError("second")
        if self.count > 5:
            raise StopIteration
        return self.count


def ten(x: int, *others: int) -> int:
    if x == 2:
        raise ValueError(x)
    return x * 10


def same(x: int) -> int:
    return ten(x) // 10


def drain(make: Callable[[], Iterator[Any]]) -> list[Any]:
    """Nine answers."""
    iterator, found = make(), []
    for _ in range(9):
        try:
            found.append(next(iterator))
        except StopIteration:
            found.append("end")
        except (ValueError, TypeError) as error:
            found.append((type(error), error.args))
    return found


MAKERS: dict[str, Callable[[], Any]] = {
    "map fails": lambda: map(ten, [1, 2, 3]),
    "map pauses": lambda: map(ten, Pausing()),
    "filter fails": lambda: filter(ten, [1, 2, 3]),
    "filter pauses": lambda: filter(None, Pausing()),
    "zip fails": lambda: zip(Failing(), Failing(), strict=False),
    "zip pauses": lambda: zip(Pausing(), Pausing(), strict=False),
    "enumerate fails": lambda: enumerate(Failing()),
    "enumerate pauses": lambda: enumerate(Pausing()),
    "iter of a call": lambda: iter(Failing().__next__, 4),
    "iter of a call that pauses": lambda: iter(Pausing().__next__, 9),
    "accumulate fails": lambda: itertools.accumulate([1, 2, 3, 4], lambda a, b: ten(b)),
    "accumulate reads what fails": lambda: itertools.accumulate(Failing()),
    "accumulate pauses": lambda: itertools.accumulate(map(same, Pausing())),
    "chain fails": lambda: itertools.chain(Failing(), [7]),
    "chain pauses": lambda: itertools.chain(Pausing(), [7]),
    "chain of no iterable": lambda: itertools.chain.from_iterable([[1], 5, [2]]),  # type: ignore[list-item]
    "islice fails": lambda: itertools.islice(Failing(), 0, 9, 2),
    "islice pauses": lambda: itertools.islice(Pausing(), 6),
    "pairwise fails": lambda: itertools.pairwise(Failing()),
    "pairwise pauses": lambda: itertools.pairwise(Pausing()),
    "generator fails": lambda: (ten(x) for x in [1, 2, 3]),
}


@pytest.mark.parametrize("name", MAKERS)
def test_what_follows_an_end(name: str) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, list[Any]]:
        y = x * 2
        return y + 1, drain(MAKERS[name])

    out, found = dynamo.compile(f, backend="eager")(torch.ones(2))
    want, expected = f(torch.ones(2))
    assert found == expected and torch.equal(out, want)


def test_an_iterator_of_a_list_that_has_ended_is_no_break() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, list[Any]]:
        iterator = itertools.islice([1, 2], 2)
        return x * 2, [*iterator, *iterator, next(iterator, "end")]

    counter = CompileCounter("eager")
    assert dynamo.compile(f, backend=counter, fullgraph=True)(torch.ones(2))[1] == [1, 2, "end"]
    assert counter.frame_count == 1
