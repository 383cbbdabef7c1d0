"""What a suspended generator, or what holds one, lives through a graph break."""

from __future__ import annotations

import contextlib
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import dynamo

EVENTS: list[Any] = []


def numbers() -> Iterator[int]:
    try:
        yield 1
        yield 2
    finally:
        EVENTS.append("end")


@contextlib.contextmanager
def managed(name: str) -> Iterator[str]:
    try:
        yield name
    finally:
        EVENTS.append(name)


class Tells:
    def __del__(self) -> None:
        EVENTS.append("died")


class Holder:
    def __init__(self, held: Any) -> None:
        self.held = held


def step(name: str) -> None:
    dynamo.graph_break()
    EVENTS.append(name)


def stack_taken_over(x: torch.Tensor) -> torch.Tensor:
    with contextlib.ExitStack() as stack:
        stack.enter_context(managed("m"))
        kept = stack.pop_all()  # noqa: F841
        step("inside")
    step("outside")
    return x + 1


def stack_replaced(x: torch.Tensor) -> torch.Tensor:
    for name in "abc":
        with contextlib.ExitStack() as stack:
            stack.enter_context(managed(name))
            kept = stack.pop_all()  # noqa: F841
            step(f"inside {name}")
        x = x + 1
    step("outside")
    return x


def in_a_list(x: torch.Tensor) -> torch.Tensor:
    kept = [numbers(), numbers()]
    next(kept[0])
    next(kept[1])
    step("first")
    kept.pop()
    step("second")
    kept = None  # type: ignore[assignment]
    step("third")
    return x * 2


def in_a_tuple_in_an_object(x: torch.Tensor) -> torch.Tensor:
    kept = Holder(({"a": Tells()},))
    step("first")
    other = kept
    kept = None  # type: ignore[assignment]
    step("second")
    other = Holder(None)  # noqa: F841
    step("third")
    return x * 2


def in_a_closure(x: torch.Tensor) -> torch.Tensor:
    generator = numbers()
    next(generator)
    kept = lambda: generator  # noqa: E731,F841
    step("first")
    return x * 2


def bound_method(x: torch.Tensor) -> torch.Tensor:
    generator = numbers()
    next(generator)
    kept = generator.send  # noqa: F841
    del generator
    step("first")
    kept = None  # noqa: F841
    step("second")
    return x * 2


def behind_a_frame(x: torch.Tensor) -> torch.Tensor:
    def inner(y: torch.Tensor) -> torch.Tensor:
        kept = [numbers()]
        next(kept[0])
        step("inner")
        return y + 1

    x = inner(x)
    step("outer")
    return x


def with_an_error(x: torch.Tensor) -> torch.Tensor:
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(managed("m"))
            kept = stack.pop_all()  # noqa: F841
            stack.callback(EVENTS.append, "callback")
            raise ValueError
    except ValueError:
        step("caught")
    return x + 1


def taken_over_twice(x: torch.Tensor) -> torch.Tensor:
    with contextlib.ExitStack() as stack:
        stack.enter_context(managed("m"))
        kept = stack.pop_all()
        with contextlib.ExitStack() as other:
            kept = other.pop_all()  # noqa: F841
            EVENTS.append("inside")
        x = x + 1
    step("outside")
    return x


def real_and_new_ones(x: torch.Tensor) -> torch.Tensor:
    first = numbers()
    next(first)
    step("first")
    second, third = managed("b").gen, managed("a").gen  # type: ignore[attr-defined]
    next(third)
    next(second)
    return x * 2


FUNCTIONS = [taken_over_twice, real_and_new_ones, stack_taken_over, stack_replaced, in_a_list, in_a_tuple_in_an_object, in_a_closure, bound_method,
             behind_a_frame, with_an_error]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_it_dies_when_it_does_in_eager(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    dynamo.reset()
    compiled = dynamo.compile(function, backend="eager")
    for _ in range(3):
        x = torch.randn(2)
        EVENTS.clear()
        wanted, events = function(x), EVENTS.copy()
        EVENTS.clear()
        assert torch.equal(compiled(x), wanted)
        assert events == EVENTS


def taken_from_its_holder(x: torch.Tensor, holder: Holder) -> torch.Tensor:
    kept, holder.held = holder.held, None  # noqa: F841
    step("inside")
    return x + 1


@pytest.mark.parametrize("kinds", ["none generator object", "object none generator", "plain object plain generator"])
def test_a_local_that_holds_another_kind_at_a_later_call(kinds: str) -> None:
    made = {"none": lambda: None, "object": Tells, "plain": lambda: Holder(1), "generator": numbers}
    compiled = dynamo.compile(taken_from_its_holder, backend="eager")
    for kind in 2 * kinds.split():
        seen = []
        for call in (taken_from_its_holder, compiled):
            value = made[kind]()
            if kind == "generator":
                next(value)
            EVENTS.clear()
            holder = Holder(value)
            del value
            call(torch.ones(2), holder)
            seen.append(list(EVENTS))
        assert seen[0] == seen[1]


@dynamo.disable
def outside(text: str) -> str:
    return text


class Refuses(Tells):
    def __init__(self, text: str) -> None:
        raise ValueError(text)


@pytest.mark.parametrize("named", [Refuses, types.SimpleNamespace(__del__=1)], ids=["class", "attribute"])
def test_what_is_let_go_has_a_del_that_is_not_for_itself(named: Any) -> None:
    def call(kind: Any, text: str) -> None:
        raise ValueError(kind is named and text)

    def function(x: torch.Tensor) -> tuple[torch.Tensor, str]:
        y, text = x + 1, ""
        try:
            Refuses(outside("a")) if named is Refuses else call(named, outside("a"))
        except ValueError as error:
            text = str(error)
        return y * 2, text

    compiled = dynamo.compile(function, backend="eager")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of guards that fail on the values that they were made from
        for _ in range(2):
            assert compiled(torch.ones(1)) == function(torch.ones(1))
