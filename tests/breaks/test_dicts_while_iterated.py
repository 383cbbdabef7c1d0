"""A dict that gets values while it is iterated over, with a graph break in each round."""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynamo

KINDS: dict[str, Callable[[], dict[str, int]]] = {
    "dict": lambda: {"gone": 0, "a": 1, "b": 2, "c": 3},
    "OrderedDict": lambda: OrderedDict(gone=0, a=1, b=2, c=3),
    "defaultdict": lambda: defaultdict(int, gone=0, a=1, b=2, c=3),
    "Counter": lambda: Counter(gone=0, a=1, b=2, c=3),
}


def in_a_loop(d: Any, x: torch.Tensor) -> Any:
    told = []
    for key in d:
        told.append(key)
        d[key] = d[key] * 2
        dynamo.graph_break()
    return x + 1, told


def one_step(d: Any, key: str, x: torch.Tensor) -> torch.Tensor:
    d[key] = len(d) + d[key]
    return x + d[key]


def removed(d: Any, x: torch.Tensor) -> Any:
    d["n"] = 1
    del d["a"]
    d["a"] = 9
    d.pop("b")
    d["q"] = d["n"]
    return x + len(d), list(d)


def made(kind: str) -> Any:
    d = KINDS[kind]()
    del d["gone"]  # its place in the table stays empty
    return d


@pytest.mark.parametrize("function", [in_a_loop, removed])
@pytest.mark.parametrize("kind", KINDS)
def test_the_program_writes(kind: str, function: Any) -> None:
    want, found = made(kind), made(kind)
    x = torch.ones(())
    assert dynamo.compile(function, backend="eager")(found, x) == function(want, x)
    assert list(found.items()) == list(want.items())


@pytest.mark.parametrize("kind", KINDS)
def test_the_loop_is_outside(kind: str) -> None:
    def told(step: Any) -> list[Any]:
        d = made(kind)
        return [(key, step(d, key, torch.ones(())).item(), dict(d)) for key in d]

    assert told(dynamo.compile(one_step, backend="eager")) == told(one_step)
