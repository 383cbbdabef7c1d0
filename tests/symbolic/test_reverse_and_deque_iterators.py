"""Iterators over what changes meanwhile: `reversed`, deques, dicts; and what `sum` refuses."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import dynamo


def drain(iterator: Iterator[Any]) -> list[Any]:
    """Five answers."""
    found: list[Any] = []
    for _ in range(5):
        try:
            found.append(next(iterator))
        except (StopIteration, RuntimeError) as error:
            found.append(repr(error))
    return found


def begun(container: Any, go: Callable[..., Iterator[Any]] = iter) -> Iterator[Any]:
    iterator = go(container)
    next(iterator)
    return iterator


def reversed_list_is_written() -> Any:
    items, found = [1, 2, 3], []
    for item in reversed(items):
        found.append(item)
        items[0] = 9
    return found


def reversed_list_shrinks() -> Any:
    items = [1, 2, 3]
    iterator = begun(items, reversed)
    items.clear()
    stopped = next(iterator, "end")
    items.extend((4, 5, 6))
    return stopped, drain(iterator), type(iterator)


def reversed_list_at_a_break() -> Any:
    items = [1, 2, 3]
    iterator = begun(items, reversed)
    dynamo.graph_break()
    items[0] = 7
    return drain(iterator), type(iterator)


def breaks_in_a_loop_over_reversed() -> Any:
    found: list[Any] = []
    for items in ([1, 2, 3], (1, 2), "ab", {1: 2}, {1: 2}.items()):
        for item in reversed(items):
            found.append(item)
            dynamo.graph_break()
    return found


def reversed_dict_grows() -> Any:
    table = {1: 1, 2: 2}
    iterator = begun(table, reversed)
    table[3] = 3
    return drain(iterator)


def reversed_dict_values_are_written() -> Any:
    table = {1: 1, 2: 2}
    iterator = begun(table.items(), reversed)
    table[1] = 5
    dynamo.graph_break()
    return drain(iterator), type(iterator)


def kinds() -> Any:
    several = ([1], (1,), range(2), {1: 1}, collections.deque([1]), "ab", b"a", {1: 2}.values())
    return [(type(reversed(item)), type(iter(item))) for item in several]


def text_iterator_at_a_break() -> Any:
    first, second = begun("abc"), begun("a")
    ended = next(second, "end")
    dynamo.graph_break()
    return drain(first), type(first), ended, drain(second)


def deque_grows_in_a_loop() -> Any:
    items = collections.deque([1, 2])
    try:
        for item in items:
            items.append(item)
    except RuntimeError as error:
        return str(error), items
    return None


def deque_at_a_break() -> Any:
    items = collections.deque([1, 2, 3])
    forward, backward = begun(items), begun(items, reversed)
    dynamo.graph_break()
    return drain(forward), type(forward), drain(backward), type(backward)


def sums() -> Any:
    found: list[Any] = [sum([0.1] * 10), sum([True, 2, 0.1, 0.2, 0.3]), sum((0.1, 1, 0.2), 0.5),
                        sum([[1], [2]], []), sum([1e308, 1e308, -1e308]), sum([])]  # fmt: skip
    for start in ("", b"", bytearray()):
        try:
            found.append(sum([start], start))  # type: ignore[arg-type, list-item]
        except TypeError as error:
            found.append(str(error))
    return found


class Hinted:
    """Tells each call of its methods."""

    def __init__(self, told: list[str]) -> None:
        self.told, self.count = told, 0

    def __iter__(self) -> Hinted:
        self.told.append("iter")
        return self

    def __next__(self) -> int:
        self.count += 1
        if self.count > 3:
            raise StopIteration
        return self.count

    def __length_hint__(self) -> int:
        self.told.append("hint")
        return 10


def calls_of_an_iterator() -> Any:
    told: list[str] = []
    kinds = (list, tuple, sorted, set, sum, max, dict.fromkeys, lambda items: [*items],
             lambda items: max(*items), lambda items: [].extend(items))
    return [kind(Hinted(told)) for kind in kinds], told  # type: ignore[operator]


PROGRAMS: list[Callable[[], Any]] = [
    reversed_list_is_written, reversed_list_shrinks, reversed_list_at_a_break,
    breaks_in_a_loop_over_reversed, reversed_dict_grows, reversed_dict_values_are_written, kinds,
    text_iterator_at_a_break, deque_grows_in_a_loop, deque_at_a_break, sums, calls_of_an_iterator,
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_as_in_eager(program: Callable[[], Any]) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, Any]:
        y = x * 2
        return y, program()

    out, found = dynamo.compile(f, backend="eager")(torch.ones(2))
    assert (found, out.tolist()) == (program(), [2.0, 2.0])


def test_the_sum_of_floats_that_change_is_pythons() -> None:
    def f(x: torch.Tensor, values: list[float]) -> tuple[torch.Tensor, float]:
        return x * 2, sum(values)

    compiled = dynamo.compile(f, backend="eager")
    for k in range(1, 20):
        values = [0.1 * k, 0.2, 0.3 * k, 1e16, 0.1, -1e16]
        assert compiled(torch.ones(2), values)[1] == sum(values)


LAYERS = torch.nn.ModuleList([torch.nn.Linear(3, 3), torch.nn.ReLU(), torch.nn.Linear(3, 3)])


class Sized:
    def __init__(self, items, length=None):
        self.items, self.length, self.asked = items, length, []

    def __len__(self):
        return len(self.items) if self.length is None else self.length

    def __getitem__(self, index):
        self.asked.append(index)
        return self.items[index]


def all_layers(x):
    for layer in reversed(LAYERS):
        x = layer(x)
    return x


def layers_of_a_sequence(x):
    for _, layer in zip(range(2), reversed(torch.nn.Sequential(*LAYERS)), strict=False):
        x = layer(x)
    return x


def items_of_an_object(x):
    sized, short = Sized([1, 2, 3]), Sized([1, 2], 5)
    found = reversed(sized)
    return x + 1, next(found), list(found), list(found), sized.asked, list(reversed(short)), short.asked


@pytest.mark.parametrize("function", [all_layers, layers_of_a_sequence, items_of_an_object])
def test_objects_with_a_length_backwards(function):
    compiled = dynamo.compile(function, backend="eager", fullgraph=True)
    for _ in range(2):
        assert repr(compiled(torch.ones(3))) == repr(function(torch.ones(3)))


def layers_over_breaks(x):
    for layer in reversed(LAYERS):
        x = layer(x)
        dynamo.graph_break()
    return x


def items_over_a_break(x):
    sized = Sized([1, 2, 3])
    found = reversed(sized)
    next(found)
    dynamo.graph_break()
    return x + 1, list(found), sized.asked


def layers_given_away(x):
    found = reversed(LAYERS)
    next(found)
    return x + 1, type(found), [type(layer) for layer in found], found.__length_hint__()


@pytest.mark.parametrize("function", [layers_over_breaks, items_over_a_break, layers_given_away])
def test_objects_with_a_length_backwards_over_breaks(function):
    compiled = dynamo.compile(function, backend="eager")
    for _ in range(2):
        assert repr(compiled(torch.ones(3))) == repr(function(torch.ones(3)))
