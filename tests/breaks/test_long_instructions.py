"""Single instructions that take more of the trace than it may have run as plain Python."""

from __future__ import annotations

from functools import reduce
from typing import Any

import pytest
import torch

import dynamo
from dynamo.base.config import config


def wait(count: int = 300) -> int:
    total = 0
    for i in range(count):
        total = total + i
    return total


class Slow:
    def __lt__(self, other: Any) -> bool:
        return wait() > 0

    def __bool__(self) -> bool:
        return wait() > 0

    def __enter__(self) -> int:
        return wait(200)

    def __exit__(self, *error: Any) -> bool:
        return wait() > 0

    def __iter__(self) -> Any:
        self.left = 3
        return self

    def __next__(self) -> int:
        self.left -= 1
        if self.left < 0:
            raise StopIteration
        return wait()


def call(x: Any) -> Any:
    y = x + 1
    return y * sorted(range(300), key=lambda value: -value)[2]


def inlined(x: Any) -> Any:
    return (x + 1) * wait(400)


def compare(x: Any) -> Any:
    return x + 1 if Slow() < Slow() else x


def branch(x: Any) -> Any:
    slow = Slow()
    x = x * 3
    if not slow:
        return x
    return x + (2 if slow and x is not None else 3)


def loop(x: Any) -> Any:
    for item in Slow():
        x = x + item
    return x


def block(x: Any) -> Any:
    with Slow() as value:
        x = x + value
        raise ValueError
    return x


def guarded(x: Any) -> Any:
    try:
        x = x + sorted(range(300), key=lambda value: -value)[2]
        raise KeyError(wait())
    except KeyError as error:
        return x + error.args[0] + sorted(range(300), key=lambda value: -value)[1]
    finally:
        wait()


@pytest.mark.parametrize("limit", (100, 150, 400))
@pytest.mark.parametrize("f", (call, inlined, compare, branch, loop, block, guarded))
def test_an_instruction_that_is_too_long(f: Any, limit: int) -> None:
    x = torch.ones(3)
    with config.patch(max_steps=limit):
        compiled = dynamo.compile(f, backend="eager")
        for _ in range(2):
            assert torch.equal(compiled(x), f(x))


def test_the_report_names_the_long_call() -> None:
    with config.patch(max_steps=100):
        report = dynamo.explain(call)(torch.ones(3))
    assert "one call or operator takes more instructions than a trace may have" in str(report)


MANY = {
    "join": lambda items: "".join(map(str, items)), "sum": lambda items: sum(map(abs, items)),
    "filter": lambda items: list(filter(None, map(int, items))),
    "sort": lambda items: sorted((-item, item) for item in items),
    "key": lambda items: sorted(items, key=abs), "reduce": lambda items: reduce(max, items),
    "dict": lambda items: dict(zip(map(str, items), items, strict=True)),
}


@pytest.mark.parametrize("name", MANY)
def test_calls_that_one_instruction_makes_count(name: str) -> None:
    def f(x: torch.Tensor, items: Any) -> Any:
        return x + 1, MANY[name](items)

    x = torch.ones(3)
    with config.patch(max_steps=150):
        dynamo.counters.clear()
        for count in (8, 300):
            found = dynamo.compile(f, backend="eager")(x, range(count))
            assert str(found) == str(f(x, range(count)))
            broken = any("too_long" in reason for reason in dynamo.counters["graph_break"])
            assert broken == (count == 300), dynamo.counters
