"""Numbers, texts and sequences that are too large to be made while compiling, or to be shown."""

from __future__ import annotations

import collections
import copy
import itertools
import operator
import random
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynamo
from dynamo.base.counters import counters

HUGE = 7**6000  # Python refuses to write it in digits
ROWS: dict[str, Callable[[], Any]] = {
    "len of a range": lambda: len(range(10**30)),
    "an item of a range": lambda: range(10**30)[10**29],
    "the last of a range": lambda: range(10**30)[-1],
    "none of a range": lambda: range(10**30)[10**31],
    "a range reversed": lambda: next(reversed(range(10**30))),
    "in a range": lambda: 10**29 in range(10**30),
    "truth of a range": lambda: 1 if range(10**30) else 2,
    "zip with a range": lambda: list(zip([1], range(10**30), strict=False)),
    "islice": lambda: list(itertools.islice([1, 2], 10**30)),
    "count": lambda: list(zip([1, 2], itertools.count(10**30), strict=False)),
    "enumerate": lambda: list(enumerate([1, 2], 10**30)),
    "repeat": lambda: next(itertools.repeat(5, 10**30)),
    "insert": lambda: [0, 1].insert(10**30, 5),
    "rotate": lambda: collections.deque([1, 2]).rotate(10**30),
    "a list": lambda: [0] * sys.maxsize,
    "a list in place": lambda: operator.imul([0, 1], sys.maxsize),
    "a tuple": lambda: (0, 1) * sys.maxsize,
    "a text": lambda: "ab" * sys.maxsize,
    "bytes": lambda: bytes(sys.maxsize),
    "a width": lambda: "%*d" % (sys.maxsize, 1),  # noqa: UP031
    "a random number": lambda: random.randrange(HUGE) < 0,
    "a graph's argument": lambda: torch.manual_seed(HUGE),
    "copied": lambda: copy.deepcopy(HUGE) == 7**6000,
    "compared": lambda: HUGE == 7**6000,
}


def outcome(function: Callable[..., Any], *args: Any) -> Any:
    try:
        return function(*args)
    except Exception as error:
        return type(error), str(error)


@pytest.mark.parametrize("name", ROWS)
def test_errors_and_results_are_those_of_python(name: str) -> None:
    row = ROWS[name]

    def f(x: torch.Tensor) -> Any:
        y = x + 1
        result = row()
        return result, y.sum().item()

    expected = outcome(f, torch.ones(2))
    with dynamo.config.patch(suppress_errors=False):
        assert outcome(dynamo.compile(f, backend="eager"), torch.ones(2)) == expected


def in_place() -> int:
    items = [0]
    items *= 1 << 18
    return len(items)


@pytest.mark.parametrize("make", [
    lambda: len([0] * (1 << 18)),
    lambda: len((0,) * (1 << 18)),
    in_place,
    lambda: len("a" * (1 << 25)),
    lambda: len(b"a" * (1 << 25)),
    lambda: len(bytes(1 << 25)),
    lambda: len("%*d" % (1 << 25, 1)),  # noqa: UP031
    lambda: len("%33000000d" % 1),  # noqa: UP031
    lambda: len(f"{1:33000000d}"),
    lambda: len(format(1, "33000000d")),
    lambda: len("a".ljust(1 << 25)),
    lambda: (1 << (1 << 21)).bit_length(),
    lambda: (2 ** (1 << 21)).bit_length(),
    lambda: pow(2, 1 << 21).bit_length(),
    lambda: len(list(range(1 << 18))),
    lambda: len(tuple(range(1 << 18))),
])
def test_plain_python_makes_what_is_large(make: Callable[[], int]) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, int]:
        y = x + 1
        return y * 2, make()

    counters.clear()
    result, size = dynamo.compile(f, backend="eager")(torch.ones(2))
    assert torch.equal(result, torch.full((2,), 4.0)) and size == make()
    assert any(key.startswith("value_too_large") for key in counters["graph_break"])


def test_texts_with_many_digits_are_folded() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, str]:
        name = "run {} of {:{}}".format("20240101_000000", 3, 4)
        date = "%s: " % "20240101_000000"  # noqa: UP031
        return x + 1, date + name + f"{1:4d}" + "a" * 50 + str(2**100)

    compiled = dynamo.compile(f, backend="eager", fullgraph=True)
    assert compiled(torch.ones(2))[1] == f(torch.ones(2))[1]
