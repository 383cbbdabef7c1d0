"""Products of parameters of which a test need not see all."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any

import pytest

ROW = type(pytest.param())


def rotated(
    names: str, first: Iterable[Any], *others: Iterable[Any], each: int = 1, ids: Callable[[Any], Any] | None = None
) -> pytest.MarkDecorator:
    """The product of parameters that do not depend on each other, most of it marked as long.

    names: as of `parametrize`. first: the parameter with the most values. each: with how many combinations of the
    others each value of it is seen by default; they take turns, so that each value of the others is seen, too.
    """
    rest = list(itertools.product(*others))
    rows = []
    for number, value in enumerate(first):
        chosen = {(number * each + turn) % len(rest) for turn in range(each)}
        rows += [pytest.param(value, *values, marks=() if at in chosen else pytest.mark.long)
                 for at, values in enumerate(rest)]
    return pytest.mark.parametrize(names, rows, ids=ids)


def few(values: Iterable[Any], count: int) -> list[Any]:
    """Values of a parameter of which this many are seen by default, evenly spread; the others are long."""
    rows = list(values)
    kept = {place * len(rows) // count for place in range(count)}
    return [pytest.param(row, marks=() if place in kept else pytest.mark.long) for place, row in enumerate(rows)]


def threes(values: Iterable[Any]) -> list[list[Any]]:
    """Three values at a time, for a test that compiles them as one program: it costs most by being one."""
    rows = list(values)
    return [rows[at : at + 3] for at in range(0, len(rows), 3)]


def long_where(values: Iterable[Any], repeated: Container[Any]) -> list[Any]:
    """Values of a parameter of which those that repeat others are long."""
    return [pytest.param(value, marks=pytest.mark.long if value in repeated else ()) for value in values]


def rotate_products(items: Iterable[pytest.Item]) -> None:
    """Marks most combinations of parameters that a test has in decorators of their own as long.

    Such parameters do not depend on each other. By default each value of each is seen, in as many tests as the longest
    of them has values. A test marked `every_combination` keeps all.
    """
    products = defaultdict(list)
    for item in items:
        axes = list(item.iter_markers("parametrize"))
        if len(axes) > 1 and not item.get_closest_marker("every_combination"):
            products[getattr(item, "originalname", ""), item.parent].append((item, axes))
    for rows in products.values():
        _rotate([item for item, _ in rows], rows[0][1])


def _rotate(items: list[Any], axes: list[pytest.Mark]) -> None:
    """items: the tests of one function, with these decorators."""
    numbers = [_numbers(*axis.args[:2]) for axis in axes]
    places = [tuple(known.get(_identity(names, item.callspec.params)) for names, known in numbers) for item in items]
    if any(None in place for place in places):
        return
    seen = [sorted(set(column)) for column in zip(*places)]
    kept = {tuple(values[number % len(values)] for values in seen) for number in range(max(map(len, seen)))}
    for item, place in zip(items, places):
        if place not in kept:
            item.add_marker(pytest.mark.long)


def _identity(names: list[str], values: Mapping[str, Any]) -> tuple[int, ...]:
    return tuple(id(values[name]) for name in names)


def _numbers(names: str | Sequence[str], rows: Any) -> tuple[list[str], dict[tuple[int, ...], int]]:
    """The names of a decorator, and which of its rows has which values. Without rows where a generator made them, which
    is empty now."""
    split = [name.strip() for name in names.split(",") if name.strip()] if isinstance(names, str) else list(names)
    found: dict[tuple[int, ...], int] = {}
    for place, row in enumerate(rows):
        values = row.values if isinstance(row, ROW) else row if len(split) > 1 else (row,)
        found.setdefault(tuple(map(id, values)), place)
    return split, found
