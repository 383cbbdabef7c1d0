"""Deques: subclasses that leave compiled code, and comparisons that change what is searched."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynamo


class Window(deque):
    pass


class Named(deque):
    def __init__(self, items: Any, name: str) -> None:
        super().__init__(items, 2)
        self.name = name


class Recorder:
    """Changes the container that it is compared in."""

    def __init__(self, container: Any, seen: list[str], change: str, equal: bool) -> None:
        self.container, self.seen, self.change, self.equal = container, seen, change, equal

    def __eq__(self, other: Any) -> bool:
        self.seen.append("eq")
        getattr(self.container, self.change)(*(["new"] if self.change == "append" else []))
        return self.equal

    __hash__ = None  # type: ignore[assignment]


@dynamo.disable
def opaque(x: Any) -> Any:
    return x


def shape(made: Any) -> Any:
    return type(made), made.maxlen, [float(item) for item in made], vars(made)


@pytest.mark.parametrize("breaks", [False, True])
@pytest.mark.parametrize("make", [
    lambda: Window([1, 2], 3), lambda: Window(), lambda: Named([1, 2, 3], "n"),
])  # fmt: skip
def test_a_subclass_leaves(make: Callable[[], Any], breaks: bool) -> None:
    def f(x: torch.Tensor) -> Any:
        made = make()
        made.append(x + 1)
        if breaks:
            opaque(x)
        made.append(4)
        return made

    dynamo.reset()
    x = torch.ones(1)
    assert shape(dynamo.compile(f, backend="eager")(x)) == shape(f(x))


def test_what_a_subclass_gives() -> None:
    def f(x: torch.Tensor) -> Any:
        made = Window([1, 2], 3)
        results = made.copy(), made + made, made * 2, copy.copy(made)
        return [*map(shape, results)], (x + 1).sum().item()

    dynamo.reset()
    assert dynamo.compile(f, backend="eager")(torch.ones(1)) == f(torch.ones(1))


def test_a_subclass_that_holds_itself() -> None:
    def f(x: torch.Tensor) -> Any:
        made = Window([x + 1])
        made.append(made)
        return made

    dynamo.reset()
    made = dynamo.compile(f, backend="eager")(torch.ones(1))
    assert type(made) is Window
    assert made[1] is made and len(made) == 2


@pytest.mark.parametrize("equal", [False, True])
@pytest.mark.parametrize("change", ["clear", "append"])
@pytest.mark.parametrize("search", [
    lambda items: 3 in items, lambda items: items.count(3), lambda items: items.index(3),
    lambda items: items.remove(3),
])  # fmt: skip
def test_a_comparison_changes_what_is_searched(
    search: Callable[[Any], Any], change: str, equal: bool
) -> None:
    def f(x: torch.Tensor) -> Any:
        items, seen = deque(), []  # type: ignore[var-annotated]
        for _ in range(3):
            items.append(Recorder(items, seen, change, equal))
        try:
            found = search(items)
        except (RuntimeError, ValueError, IndexError) as error:
            found = type(error)
        return found, seen, len(items), float((x + 1).sum())

    dynamo.reset()
    x = torch.ones(1)
    assert dynamo.compile(f, backend="eager")(x) == f(x)
