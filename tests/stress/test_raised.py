"""An exception that leaves compiled code keeps nothing alive once it is handled."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import dynamo


class Held:
    pass


@pytest.fixture(autouse=True)
def without_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def raises(x: torch.Tensor, held: Held) -> torch.Tensor:
    y = x + 1
    raise ValueError("x", y.shape)


def fails(x: torch.Tensor, held: Held) -> Any:
    return {}[x.dim()]


def raises_behind_a_break(x: torch.Tensor, held: Held) -> torch.Tensor:
    y = x + 1
    dynamo.graph_break()
    raise ValueError("x", y.shape)


def inner(x: torch.Tensor) -> None:
    raise ValueError("inner", x.shape)


def raised_below(x: torch.Tensor, held: Held) -> None:
    y = x + 1
    inner(y)


def raised_again(x: torch.Tensor, held: Held) -> None:
    y = x + 1
    try:
        inner(y)
    except ValueError as error:
        dynamo.graph_break()
        raise KeyError("again") from error


def fails_behind_a_handler(x: torch.Tensor, held: Held) -> Any:
    y = x + 1
    try:
        inner(y)
    except ValueError:
        dynamo.graph_break()
        y = y * 2
    dynamo.graph_break()
    return {}[y.dim()]


FUNCTIONS = (raises, fails, raises_behind_a_break, raised_below, raised_again, fails_behind_a_handler)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_what_the_frame_held_is_freed_at_once(function: Callable[..., Any]) -> None:
    dynamo.reset()
    compiled = dynamo.compile(function, backend="eager")
    for _ in range(3):
        held = Held()
        alive = weakref.ref(held)
        with pytest.raises((ValueError, KeyError)):
            compiled(torch.ones(2), held)
        del held
        assert alive() is None


def counts(events: list[str]) -> Iterator[int]:
    try:
        yield 1
        yield 2
    finally:
        events.append("end")


def drops_and_handles(x: torch.Tensor, events: list[str]) -> Any:
    for _ in range(2):
        numbers = counts(events)
        next(numbers)
    try:
        inner(x)
    except ValueError:
        dynamo.graph_break()
    return x + 1


def drops_and_raises(x: torch.Tensor, events: list[str]) -> Any:
    dynamo.graph_break()
    for _ in range(2):
        numbers = counts(events)
        next(numbers)
    inner(x)


@pytest.mark.parametrize("function", [drops_and_handles, drops_and_raises])
def test_generators_are_closed_before_the_call_is_over(function: Callable[..., Any]) -> None:
    compiled = dynamo.compile(function, backend="eager")
    for _ in range(2):
        events: list[str] = []
        with contextlib.suppress(ValueError):
            compiled(torch.rand(2), events)
        assert events == ["end", "end"]


def overwrites(x: torch.Tensor, events: list[str]) -> Any:
    for _ in range(2):
        numbers = counts(events)
        next(numbers)
        events.append("next")
    return x + 1


def keeps_to_the_end(x: torch.Tensor, events: list[str]) -> Any:
    first, second = counts(events), counts(events)
    next(first)
    dynamo.graph_break()
    next(second)
    dynamo.graph_break()
    events.append("last")
    return x + 1


def drops_an_attribute(x: torch.Tensor, events: list[str]) -> Any:
    box = Held()
    box.numbers = counts(events)
    next(box.numbers)
    dynamo.graph_break()
    box.numbers = None
    events.append("dropped")
    return x + 1


def test_nothing_that_a_finally_does_is_lost() -> None:
    compiled = dynamo.compile(drops_an_attribute, backend="eager")
    for _ in range(2):
        events: list[str] = []
        compiled(torch.ones(2), events)
        assert sorted(events) == ["dropped", "end"]


class Tells:
    def __init__(self, events: list[str]) -> None:
        self.events = events

    def __del__(self) -> None:
        self.events.append("died")


def deletes(x: torch.Tensor, events: list[str]) -> Any:
    told = Tells(events)
    dynamo.graph_break()
    events.append("alive")
    del told
    events.append("deleted")
    other = Tells(events)
    dynamo.graph_break()
    events.append("end")
    return x + 1, other is None


@pytest.mark.parametrize("function", [overwrites, keeps_to_the_end, deletes])
def test_generators_and_finalizers_run_in_order(function: Callable[..., Any]) -> None:
    compiled = dynamo.compile(function, backend="eager")
    for _ in range(2):
        expected: list[str] = []
        events: list[str] = []
        function(torch.ones(2), expected)
        compiled(torch.ones(2), events)
        assert events == expected
