"""Products of parameters of which a test need not see all."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest


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


def rotate_products(items: Iterable[pytest.Item]) -> None:
    """Marks most combinations of parameters that a test has in decorators of their own as long.

    Such parameters do not depend on each other. By default each value of each is seen, in as many tests as the longest
    of them has values. A test marked `every_combination` keeps all.
    """
    products = defaultdict(list)
    for item in items:
        axes = list(item.iter_markers("parametrize"))
        if len(axes) > 1 and not item.get_closest_marker("every_combination"):
            places = [_place(item, *axis.args[:2]) for axis in axes]
            if None not in places:
                products[getattr(item, "originalname", ""), item.parent].append((item, places))
    for rows in products.values():
        seen = [sorted({row[1][axis] for row in rows}) for axis in range(len(rows[0][1]))]
        kept = {tuple(values[number % len(values)] for values in seen) for number in range(max(map(len, seen)))}
        for item, places in rows:
            if tuple(places) not in kept:
                item.add_marker(pytest.mark.long)


def _place(item: Any, names: str | Sequence[str], rows: Any) -> int | None:
    """Which of the rows of a decorator this test has; None where they were made by a generator, which is empty now."""
    names = [name.strip() for name in names.split(",") if name.strip()] if isinstance(names, str) else list(names)
    given = [item.callspec.params[name] for name in names]
    for place, row in enumerate(rows):
        values = row.values if isinstance(row, type(pytest.param())) else row if len(names) > 1 else (row,)
        if all(value is other for value, other in zip(values, given)):
            return place
    return None
