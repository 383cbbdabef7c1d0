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


def popped(d: Any, key: str) -> None:
    d[key] = d.pop(key)


def over_a_break(d: Any, key: str) -> None:
    del d[key]
    dynamo.graph_break()
    d[key] = 5


def last_popped(d: Any, key: str) -> None:
    last, value = d.popitem()
    d[last + "n"] = value


def filled_again(d: Any, key: str) -> None:
    items = list(d.items())
    d.clear()
    for name, value in items:
        d[name] = value


def another_gone(d: Any, key: str) -> None:
    d[key + "n"] = 1
    del d["c" if "c" in d else "cn"]


def often(d: Any, key: str) -> None:
    for _ in range(4):
        d["c"] = d.pop("c")
    d["b"] = d.pop("b")


@pytest.mark.parametrize("place", ["outside", "inside", "behind"])
@pytest.mark.parametrize("change", [popped, over_a_break, last_popped, filled_again, another_gone, often])
@pytest.mark.parametrize("kind", KINDS)
def test_keys_come_and_go(kind: str, change: Any, place: str) -> None:
    """Where the number of keys is what it was, the iteration goes on where it stood in the table."""

    def f(d: Any, x: torch.Tensor) -> Any:
        told = []
        if place == "inside":
            d = {k: v for k, v in d.items()}
        try:
            for key in d:
                told.append(key)
                if place != "behind":
                    dynamo.graph_break()
                if len(told) < 9:
                    change(d, key)
                if place == "behind":
                    dynamo.graph_break()
        except (RuntimeError, KeyError) as error:
            told.append(str(error))
        return x + 1, told, list(d.items())

    dynamo.reset()
    x = torch.ones(())
    assert dynamo.compile(f, backend="eager")(made(kind), x) == f(made(kind), x)
