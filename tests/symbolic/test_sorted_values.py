"""Sorting known numbers, texts and tuples: as in eager, without a rule for each comparison."""

import functools
import random
from typing import Any
from unittest import mock

import pytest
import torch

import dynamo
from dynamo.symbolic.core import table

DRAW = random.Random(3)
NAN = float("nan")
ROWS: dict[str, list[Any]] = {
    "ints": [DRAW.randrange(50) for _ in range(40)],
    "large ints": [DRAW.randrange(1 << 70) for _ in range(20)],
    "floats": [DRAW.random() for _ in range(20)] + [-0.0, 0.0, float("inf")],
    "nan": [3.0, NAN, 1.0, NAN, 2.0, float("nan")],
    "texts": ["b", "a", "B", "", "ab", "a"],
    "bytes": [b"b", b"a", b""],
    "tuples": [(DRAW.randrange(5), str(DRAW.randrange(5)), i) for i in range(40)],
    "lengths": [(1, 2), (1,), (), (1, 2, 0), (0, 9, 9)],
    "nested": [(1, (2, "b")), (1, (2, "a")), (0, (9, "z"))],
    "tuples with nan": [(1.0, NAN), (NAN, 1), (1.0, 2), (NAN, 0)],
    "tuples with the same list": [(1, [2]), (0, [3]), (1, [1])],
    "bools": [True, False, True, 0, 2],
    "mixed numbers": [1, 0.5, True, 2, -1.5],
    "mixed in tuples": [(1, "b"), (1.0, "a"), (True, "c"), (0.5, "d")],
    "texts and ints": ["a", 1],
    "texts and ints in tuples": [(1, "a"), (1, 2)],
    "decided before what has no order": [(1, None), (0, None), (2, object)],
    "what has no order": [(1, None), (1, None), (1, 1)],
    "none": [None, None],
}


def in_order(t: torch.Tensor, items: list[Any], reverse: bool) -> Any:
    try:
        made = sorted(items, reverse=reverse)
        items = items.copy()
        items.sort(key=lambda x: (x, 1), reverse=reverse)
        return made, items, t + 1
    except TypeError as error:
        return type(error), str(error), t + 1


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", ROWS)
def test_sorted_as_in_eager(name: str, reverse: bool) -> None:
    items = ROWS[name]
    expected = in_order(torch.ones(2), items, reverse)
    found = dynamo.compile(in_order, backend="eager")(torch.ones(2), items, reverse)
    assert repr(found[:2]) == repr(expected[:2])
    if isinstance(expected[0], list):
        assert all(map(lambda a, b: a is b, found[0], expected[0]))


def test_other_values_at_later_calls() -> None:
    def f(t: torch.Tensor, items: list[Any]) -> Any:
        return sorted(items), sorted(items, key=functools.cmp_to_key(lambda a, b: b[0] - a[0]))

    compiled = dynamo.compile(f, backend="eager")
    for items in ([(1, "a"), (2, "b")], [(2, "a"), (1, "b")], [(1, "b"), (1, "a")], [(1, "a")],
                  [(2, "b", 3), (2, "b")]):
        assert compiled(torch.ones(2), items) == f(torch.ones(2), items)


def test_only_what_decides_is_guarded() -> None:
    counts: list[int] = []

    def backend(module: torch.fx.GraphModule, _: Any) -> Any:
        counts.append(1)
        return module.forward

    def f(t: torch.Tensor, items: list[Any]) -> Any:
        return t + len(sorted(items))

    compiled = dynamo.compile(f, backend=backend)
    for last in ("a", "b", "c"):
        compiled(torch.ones(2), [(1, last), (0, last), (3, last)])
    assert len(counts) == 1


def test_comparisons_of_values_take_no_rules() -> None:
    asked: list[Any] = []
    apply = table.apply

    def counting(tx: Any, function: Any, args: Any, kwargs: Any) -> Any:
        asked.append(function)
        return apply(tx, function, args, kwargs)

    def f(t: torch.Tensor, items: list[Any]) -> Any:
        return sorted(items), t + 1

    with mock.patch.object(table, "apply", counting):
        dynamo.compile(f, backend="eager", fullgraph=True)(torch.ones(2), ROWS["tuples"])
    assert 0 < len(asked) < 30
