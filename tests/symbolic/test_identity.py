"""What programs do with `id`, with the truth of classes, and with numbers that only optimizers hold."""

from __future__ import annotations

import copy
import datetime
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim.optimizer import _get_value

import dynamo
from dynamo.testing import CompileCounter


class Kind(type):
    truth, length = True, 1

    def __bool__(cls) -> bool:
        return Kind.truth


class Sized(type):
    length = 1

    def __len__(cls) -> int:
        return Sized.length


class WithTruth(metaclass=Kind):
    pass


class WithLength(metaclass=Sized):
    pass


class Zone(datetime.tzinfo):
    hours = 0

    def utcoffset(self, when: Any) -> datetime.timedelta:
        return datetime.timedelta(hours=Zone.hours)


WHEN = datetime.datetime(2020, 1, 1, tzinfo=Zone())


def seen_before(x: Any, seen: Any) -> Any:
    return x + 1, id(x) in seen, id(seen) in seen


def found_by_number(x: Any, table: Any) -> Any:
    return x + 1, table.get(id(x)), {id(x): 1}.get(next(iter(table), 0))


def in_tuples(x: Any, seen: Any) -> Any:
    return x + 1, (id(x), "a") in {(number, "a") for number in seen}


def copied(x: Any, table: Any) -> Any:
    made = {"n": None, "t": [None, True], "table": copy.deepcopy(table)}
    twin = copy.deepcopy(made)
    return x + 1, twin, twin["t"] is made["t"]


def same_class(x: Any, other: Any) -> Any:
    return x + 1, {id(torch.Tensor): 1}.get(id(type(x))), id(None) in {id(x), id(other)}


OF_ANY_KIND = [seen_before, in_tuples, copied, same_class]


@pytest.mark.parametrize(
    "kind,program",
    [(kind, program) for kind in (set, dict.fromkeys) for program in OF_ANY_KIND]
    + [(dict.fromkeys, found_by_number)],
)
def test_ids_of_other_times(kind: Any, program: Callable[..., Any]) -> None:
    x, y = torch.rand(2), torch.rand(2)
    compiled = dynamo.compile(program, backend="eager")
    for seen in (kind([id(x)]), kind([id(y), id(x)]), kind([]), kind([id(None)])):
        for value in (x, y):
            want, got = program(value, seen), compiled(value, seen)
            torch.testing.assert_close(got[0], want[0])
            assert got[1:] == want[1:]


def test_truth_of_classes() -> None:
    def f(x: Any) -> Any:
        return x + (1 if WithTruth else 2) + (10 if WithLength else 20)

    compiled = dynamo.compile(f, backend="eager")
    try:
        for Kind.truth, Sized.length in ((True, 1), (False, 1), (True, 0)):
            assert compiled(torch.zeros(1)).item() == f(torch.zeros(1)).item()
    finally:
        Kind.truth, Sized.length = True, 1


def test_time_zones_written_in_python() -> None:
    def f(x: Any) -> Any:
        return x + 1, WHEN.isoformat()

    compiled = dynamo.compile(f, backend="eager")
    try:
        for Zone.hours in (0, 3):
            assert compiled(torch.zeros(1))[1] == WHEN.isoformat()
    finally:
        Zone.hours = 0


def test_numbers_of_optimizers_elsewhere() -> None:
    def f(x: Any, count: Any) -> Any:
        number = _get_value(count)
        return x * number, number, isinstance(number, float), round(number), x.int() * number

    compiled = dynamo.compile(f, backend="eager")
    for count in (3.0, 4.0):
        want, got = (g(torch.ones(2), torch.tensor(count)) for g in (f, compiled))
        assert got[1:4] == want[1:4]
        assert got[4].dtype == want[4].dtype


def adder(number: int, factor: int | None = None) -> Callable[..., Any]:
    def plain(x: torch.Tensor) -> torch.Tensor:
        return x + number

    def scaled(x: torch.Tensor, k: Any = factor) -> torch.Tensor:
        return x * k + number

    return plain if factor is None else scaled


def test_functions_that_are_compared() -> None:
    """What is asked of one is guarded, and no more: others with its code have the graph, too."""
    def f(x: torch.Tensor, g: Any, h: Any) -> torch.Tensor:
        found = [g is adder, g is None, g is h, g is len, hasattr(g, "missing")]
        if hasattr(g, "__code__"):
            found += [g.__code__.co_argcount, g.__name__ == "plain", *[k or 9 for k in g.__defaults__ or ()]]
        return x + sum(k * int(value) for k, value in enumerate(found, 3))

    one, counter, x = adder(1), CompileCounter(), torch.randn(3)
    compiled = dynamo.compile(f, backend=counter, recompile_limit=32)
    marked = adder(2)
    marked.missing = 1  # type: ignore[attr-defined]
    pairs = [(one, one), (one, adder(2)), (adder, None), (None, None), (len, None), (len, len), (adder(1, 3), one),
             (adder(1, 4), one), (adder(2, 4), adder), (one, adder), (adder, adder), (marked, None)]
    for g, h in [*pairs, *pairs]:
        assert torch.equal(compiled(x, g, h), f(x, g, h)), (g, h)

    other = CompileCounter()
    asks = dynamo.compile(lambda x, g: x if g is None or g is adder else g(x) + g.__code__.co_argcount, backend=other)
    for number in range(4):
        assert torch.equal(asks(x, adder(number * 2)), x + number * 2 + 1)
    assert other.frame_count <= 2  # the number becomes symbolic
