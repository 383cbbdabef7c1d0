"""C code of the standard library that runs methods of the program in the middle of its work."""

from __future__ import annotations

import abc
import heapq
import operator
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynamo
from dynamo.frames import worth
from tests.parametrize import rotated


def use_heap(what: str, call: int) -> Callable[[torch.Tensor], Any]:
    """A function that uses a heap, whose items do what is said in a comparison."""

    def f(x: torch.Tensor) -> Any:
        log: list[Any] = []
        heap: list[Any] = []
        found: list[Any] = []

        class Item:
            def __init__(self, key: int) -> None:
                self.key = key

            def __lt__(self, other: Any) -> bool:
                log.append((self.key, other.key, [item.key for item in heap]))
                if len(log) == call:
                    if what == "grow":
                        heap.append(Item(0))
                    elif what == "shrink":
                        heap.pop()
                    elif what == "raise":
                        raise ValueError("refused")
                return self.key < other.key

        try:
            for key in (5, 3, 8, 1, 9, 2):
                heapq.heappush(heap, Item(key))
            for key in (4, 0, 7):
                found.append(heapq.heappushpop(heap, Item(key)).key)
                found.append(heapq.heapreplace(heap, Item(key)).key)
            while heap:
                found.append(heapq.heappop(heap).key)
            heap.extend(map(Item, (3, 1, 2, 9, 8, 4, 4)))
            heapq.heapify(heap)
            heapq._heapify_max(heap)  # type: ignore[attr-defined]
            found.append(heapq._heappop_max(heap).key)  # type: ignore[attr-defined]
            found.append(heapq._heapreplace_max(heap, Item(2)).key)  # type: ignore[attr-defined]
        except (RuntimeError, ValueError) as error:
            found.append((type(error), str(error)))
        return x + 1, found, log, [item.key for item in heap]

    return f


@rotated("call, what", [2, 3, 12, 30, 46], ["nothing", "grow", "shrink", "raise"], each=2)
def test_comparisons_of_a_heap(call: int, what: str) -> None:
    f, x = use_heap(what, call), torch.rand(2)
    assert dynamo.compile(f, backend="eager")(x)[1:] == f(x)[1:]


LENGTHS: dict[str, Callable[[torch.Tensor], Any]] = {
    "of no dimensions": lambda x: operator.length_hint(x.sum()),
    "of no dimensions, given": lambda x: operator.length_hint(x.sum(), 7),
    "of one dimension": lambda x: operator.length_hint(x, 7),
    "wrong default": lambda x: operator.length_hint(x, "a"),  # type: ignore[arg-type]
    "wrong default of a list": lambda x: operator.length_hint([], None),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", LENGTHS)
def test_length_hints(name: str) -> None:
    def f(x: torch.Tensor) -> Any:
        try:
            return x + 1, LENGTHS[name](x)
        except TypeError as error:
            return x + 2, str(error)

    x = torch.rand(3)
    assert dynamo.compile(f, backend="eager")(x)[1] == f(x)[1]


class Abstract(abc.ABC):
    @abc.abstractmethod
    def method(self) -> None: ...


class Concrete(Abstract):
    def method(self) -> None: ...


class Plain:
    pass


NAMES = (frozenset(), frozenset({"a", "b"}), {"c"}, frozenset({"d"}))


@pytest.mark.parametrize("base", [Abstract, Concrete, Plain])
def test_names_of_abstract_methods_that_change(base: Any) -> None:
    cls: Any = types.new_class("Changing", (), {}, lambda body: body.update(
        {name: value for name, value in vars(base).items() if name not in ("__dict__", "__weakref__")}))
    if base is not Plain:
        cls.__abstractmethods__ = base.__abstractmethods__

    def f(x: torch.Tensor) -> Any:
        try:
            cls()
        except TypeError as error:
            return x + 1, str(error)
        return x + 2, ""

    def g(x: torch.Tensor) -> Any:
        cls.__abstractmethods__ = frozenset({"inside"})
        return f(x)

    x, compiled = torch.rand(2), dynamo.compile(f, backend="eager")
    assert compiled(x)[1] == f(x)[1]
    for names in NAMES:
        cls.__abstractmethods__ = names
        assert compiled(x)[1] == f(x)[1]
    del cls.__abstractmethods__
    assert compiled(x)[1] == f(x)[1] == ""
    assert dynamo.compile(g, backend="eager")(x)[1] == g(x)[1] != ""


def test_a_dict_that_changes_while_it_is_searched_for_tensors() -> None:
    """As another thread may change it: here a trace function does."""
    held = {number: number for number in range(3)}

    def change(frame: Any, event: str, arg: Any) -> Any:
        if frame.f_code.co_filename == worth.__file__:
            held[len(held)] = 0
        return change

    before = sys.gettrace()
    sys.settrace(change)
    try:
        found = worth.holds_tensor(held)
    finally:
        sys.settrace(before)
    assert not found and len(held) > 3
