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
