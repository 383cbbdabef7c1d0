"""Tuples that are keys of a dict from outside, as those of graphs with several kinds of edges."""

from __future__ import annotations

import collections
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynamo

EDGES = {("author", "writes", "paper"): torch.ones(3), ("paper", "cites", "author"): torch.ones(3) * 2}


def by_parts(x: torch.Tensor, edges: Any) -> Any:
    offsets: dict[Any, int] = {}
    for kind in edges.keys():
        source, target = kind[0], kind[-1]
        offsets[kind] = len(source)
        x = x + edges[kind] * (target == "author")
    return x, offsets, [kind[0] for kind in offsets]


def of_items(x: torch.Tensor, edges: Any) -> Any:
    out: dict[str, list[torch.Tensor]] = {"author": [], "paper": []}
    for (kind, value), at in zip(edges.items(), range(2), strict=True):
        out[kind[2]].append(x * value + at)
    return out, [type(kind[:]) for kind in edges], sorted(edges)[0][1:]


def as_tuples(x: torch.Tensor, edges: Any) -> Any:
    key = next(iter(edges))
    return x + 1, [
        key[::-1], len(key), "paper" in key, (*key, 1), key + (1,), key * 2, key.index("paper"),
        operator.itemgetter(0, 2)(key), key == ("author", "writes", "paper"), key < ("b",),
        tuple(key) is key, key[:] is key, list(reversed(key)),
    ], key


def out_of_range(x: torch.Tensor, edges: Any) -> Any:
    for key in edges:
        try:
            x = x + len(key[3])
        except IndexError as error:
            return x + 1, str(error)
    return x, ""


@pytest.mark.parametrize("edges", [EDGES, collections.OrderedDict(EDGES)])
@pytest.mark.parametrize("f", [by_parts, of_items, as_tuples, out_of_range])
def test_in_one_graph(f: Callable[..., Any], edges: Any) -> None:
    x = torch.randn(3)
    ours, eagers = dynamo.compile(f, backend="eager", fullgraph=True)(x, edges), f(x, edges)
    torch.testing.assert_close(ours[0], eagers[0])
    assert ours[1:] == eagers[1:]
    if f is as_tuples:
        assert ours[2] is eagers[2]


def test_another_key_is_noticed() -> None:
    def f(x: torch.Tensor, edges: Any) -> Any:
        return x, [kind[1] for kind in edges]

    compiled = dynamo.compile(f, backend="eager", fullgraph=True)
    x = torch.ones(2)
    for names in (("a", "b"), ("a", "b"), ("a", "c"), ("d",)):
        edges = {("x", name): name for name in names}
        assert compiled(x, edges)[1] == list(names)
