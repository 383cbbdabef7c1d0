"""Random nested objects, a function that reads random parts of them, random mutations in between:
each call must give what eager gives. SEEDS in the environment: how many programs (80)."""

from __future__ import annotations

import os
import random
import types
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import dynamo
from tests.seeds import some

SEEDS = int(os.environ.get("SEEDS", "80"))
CALLS = 6


class Node:
    shared = 1

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)

    def own(self) -> Any:
        return self.shared

    @property
    def computed(self) -> Any:
        return len(self.__dict__)


class Leaf(Node):
    def own(self) -> Any:
        return self.shared + 1


class Block(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(size, size)
        self.register_buffer("shift", torch.ones(size))
        self.scale, self.act = 2.0, nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(self.linear(x)) * self.scale + self.shift


def plain(x: Any, by: Any = 1, *, more: Any = 2) -> Any:
    return x * by + more


def make_function(by: int) -> Any:
    made = types.FunctionType(plain.__code__, plain.__globals__, "plain", (by,), None)
    made.__kwdefaults__ = {"more": by}
    return made


def make_closure(k: Any) -> Any:
    return lambda x: x + k


def value(r: random.Random, depth: int = 0) -> Any:
    """A random value; the same for equal random states."""
    deep: list[Callable[[], Any]] = [
        lambda: [value(r, depth + 1) for _ in range(r.randrange(3))],
        lambda: {f"k{i}": value(r, depth + 1) for i in range(r.randrange(3))},
        lambda: OrderedDict((f"k{i}", value(r, depth + 1)) for i in range(r.randrange(3))),
        lambda: (value(r, depth + 1), value(r, depth + 1)),
        lambda: r.choice([Node, Leaf])(a=value(r, depth + 1), b=value(r, depth + 1)),
        lambda: types.SimpleNamespace(a=value(r, depth + 1)),
    ]
    flat: list[Callable[[], Any]] = [
        lambda: r.choice([None, True, False, 0, 1, 2, 3, -1, 0.5, 2.0, "a", "bc"]),
        lambda: torch.full((r.choice([2, 3]),), float(r.randrange(5))),
        lambda: torch.ones(3, dtype=r.choice([torch.float64, torch.int64])),
        lambda: {1, r.randrange(4)}, lambda: make_function(r.randrange(3)),
        lambda: make_closure(r.randrange(3)), lambda: r.choice([Node, Leaf, len, abs]),
        lambda: Block(3), lambda: range(r.randrange(3)),
    ]
    return r.choice(flat + deep * (depth < 3))()


def parts(root: Any) -> list[Any]:
    """The objects below a value, in a fixed order."""
    found, queue = [], [root]
    while queue and len(found) < 60:
        item = queue.pop(0)
        found.append(item)
        if isinstance(item, dict):
            queue += item.values()
        elif isinstance(item, list | tuple):
            queue += item
        elif isinstance(item, Node | types.SimpleNamespace):
            queue += vars(item).values()
    return found


def read(item: Any, x: Any, way: int) -> Any:
    """What a program may do with a value of any kind."""
    if way == 0:
        return x + (item is None) + (2 if item else 3)
    if isinstance(item, torch.Tensor):
        return x + item.sum() if way % 2 else x * item.shape[0]
    if isinstance(item, bool | int | float):
        return x * item if way % 2 else x + (item > 1)
    if isinstance(item, str):
        return x + len(item)
    if isinstance(item, dict):
        for key, inner in item.items():
            x = x + len(key) + (1 if inner is None else 0)
        return x + ("k1" in item)
    if isinstance(item, list | tuple | set | range):
        return x + len(item) + sum(isinstance(i, int) for i in item)
    if isinstance(item, nn.Module):
        return item(torch.ones(3)).sum() + x + item.training
    if isinstance(item, Node):
        return x + item.own() + item.computed + hasattr(item, "c") + getattr(item, "d", 4)
    if isinstance(item, types.SimpleNamespace):
        return x + (item.a is None) + hasattr(item, "z")
    if isinstance(item, types.FunctionType):
        return item(x) + getattr(item, "mark", 0)
    return x + (item is Node) + (item is len) + callable(item)


def walk(root: Any, path: tuple[Any, ...]) -> Any:
    for kind, key in path:
        root = getattr(root, key) if kind == "attr" else root[key]
    return root


def reader(r: random.Random, root: Any) -> Callable[[Any, Any], Any]:
    """A function that reads some random places."""
    places: list[Any] = []
    queue: list[tuple[Any, tuple[Any, ...]]] = [(root, ())]
    while queue:
        item, path = queue.pop(0)
        places.append(path)
        if isinstance(item, dict):
            queue += [(v, (*path, ("item", k))) for k, v in item.items()]
        elif isinstance(item, list | tuple):
            queue += [(v, (*path, ("item", i))) for i, v in enumerate(item)]
        elif isinstance(item, Node | types.SimpleNamespace):
            queue += [(v, (*path, ("attr", k))) for k, v in vars(item).items()]
    chosen = [(r.choice(places), r.randrange(4)) for _ in range(3)]

    def program(root: Any, x: Any) -> Any:
        for path, way in chosen:
            try:
                x = read(walk(root, path), x, way)
            except (KeyError, IndexError, AttributeError, TypeError):
                x = x + 100
        return x

    return program


def mutate(r: random.Random, root: Any) -> None:
    """One random change of a random part."""
    item = r.choice(parts(root))
    if isinstance(item, dict):
        key = f"k{r.randrange(3)}"
        action = r.randrange(3)
        if action == 0:
            item[key] = value(r, 3)
        elif action == 1:
            item.pop(key, None)
        elif item:
            first = next(iter(item))
            item[first] = item.pop(first)
    elif isinstance(item, list):
        if item and r.random() < 0.6:
            item[r.randrange(len(item))] = value(r, 3)
        else:
            item.append(value(r, 3))
    elif isinstance(item, set):
        item ^= {r.randrange(3)}
    elif isinstance(item, Node | types.SimpleNamespace):
        name = r.choice("aabcdz")
        setattr(item, name, value(r, 3))
        if isinstance(item, Node) and r.random() < 0.2:
            item.__class__ = r.choice([Node, Leaf])
        if r.random() < 0.2:
            item.__dict__.pop(r.choice("ab"), None)
    elif isinstance(item, nn.Module):
        r.choice([
            item.eval, item.train, lambda: setattr(item, "scale", r.choice([3.0, 4.0])),
            lambda: setattr(item, "act", r.choice([nn.Tanh, nn.ReLU])()),
            lambda: [nn.init.constant_(p, 0.5) for p in item.linear.parameters()],
            lambda: setattr(item, "linear", nn.Identity()),
            lambda: item.register_forward_hook(lambda m, i, o: o + 1),
            lambda: setattr(item, "forward", lambda x: x * 3),
        ])()
    elif isinstance(item, types.FunctionType):
        r.choice([
            lambda: setattr(item, "mark", r.randrange(3)),
            lambda: setattr(item, "__defaults__", (r.randrange(3),)),
            lambda: setattr(item, "__kwdefaults__", {"more": r.randrange(3)}),
        ])()
    elif isinstance(item, torch.Tensor):
        r.choice([lambda: item.add_(1), lambda: item.resize_(r.choice([2, 4])).fill_(1)])()


def outcome(function: Any, root: Any) -> Any:
    try:
        return function(root, torch.ones(2, dtype=torch.float64))
    except Exception as error:
        return type(error)


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    return type(a) is type(b) and bool(a == b)


def check(seed: int) -> None:
    roots = []
    for _ in range(2):
        torch.default_generator.manual_seed(seed)
        roots.append(Node(a=value(random.Random(seed)), b=[value(random.Random(seed + 1), 1)]))
    mine, theirs = roots
    function = reader(random.Random(seed), mine)
    compiled = dynamo.compile(function, backend="eager", recompile_limit=100)
    for call in range(CALLS):
        expected, got = outcome(function, theirs), outcome(compiled, mine)
        assert same(got, expected), (seed, call, got, expected)
        for root in (mine, theirs):
            torch.default_generator.manual_seed(seed * CALLS + call)
            mutate(random.Random(seed * CALLS + call), root)


@pytest.mark.parametrize("part", some(range(4), 2))
def test_random_mutations_are_seen(part: int) -> None:
    for seed in range(part, part + SEEDS, 4):
        check(seed)
