"""Products of parameters of which a test need not see all."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
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
