"""Random programs over tensors whose sizes are expressions, valid for all sizes from 2 on.

A value is a tensor and a label for each of its dimensions; equal labels are equal sizes.
Run as a script: `python random_sizes.py first last` checks these seeds.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from for_all_sizes import check

Labels = tuple[str, ...]
Step = tuple[Callable[[list[torch.Tensor]], torch.Tensor], Labels]
SIZES = ((2, 2), (2, 7), (3, 17), (16, 3), (7, 64), (5, 129))
UNARY = [torch.tanh, torch.sigmoid, torch.abs, lambda x: x * 0.5 + 1, lambda x: F.gelu(x),
         lambda x: x.clamp(-1, 1), torch.sin]
BINARY = [torch.add, torch.mul, torch.sub, torch.maximum, lambda x, y: x / (y.abs() + 1)]
REDUCE = [lambda x, d: x.sum(d), lambda x, d: x.mean(d), lambda x, d: x.amax(d)]


def pick(rng: random.Random, pool: list[Labels], rank: int = 1) -> int | None:
    found = [at for at, labels in enumerate(pool) if len(labels) >= rank]
    return rng.choice(found) if found else None


def unary(rng: random.Random, pool: list[Labels]) -> Step:
    at, function = rng.randrange(len(pool)), rng.choice(UNARY)
    return lambda v: function(v[at]), pool[at]


def binary(rng: random.Random, pool: list[Labels]) -> Step | None:
    at, function = rng.randrange(len(pool)), rng.choice(BINARY)
    same = [n for n, labels in enumerate(pool) if labels and labels == pool[at][-len(labels):]]
    other = rng.choice(same) if same else at
    return lambda v: function(v[at], v[other]), pool[at]


def reduce(rng: random.Random, pool: list[Labels]) -> Step | None:
    at = pick(rng, pool)
    if at is None:
        return None
    dim, function = rng.randrange(len(pool[at])), rng.choice(REDUCE)
    if rng.random() < 0.3:
        return lambda v: v[at] - function(v[at], dim).unsqueeze(dim), pool[at]
    return lambda v: function(v[at], dim), (*pool[at][:dim], *pool[at][dim + 1:])


def normalise(rng: random.Random, pool: list[Labels]) -> Step | None:
    at = pick(rng, pool)
    if at is None:
        return None
    if rng.random() < 0.5:
        dim = rng.randrange(len(pool[at]))
        return lambda v: v[at].softmax(dim), pool[at]
    return lambda v: F.layer_norm(v[at], v[at].shape[-1:]), pool[at]


def turn(rng: random.Random, pool: list[Labels]) -> Step | None:
    at = pick(rng, pool, 2)
    if at is None:
        return None
    order = rng.sample(range(len(pool[at])), len(pool[at]))
    return lambda v: v[at].permute(order), tuple(pool[at][n] for n in order)


def merge(rng: random.Random, pool: list[Labels]) -> Step | None:
    at = pick(rng, pool, 2)
    if at is None:
        return None
    dim = rng.randrange(len(pool[at]) - 1)
    name = "*".join(sorted(pool[at][dim : dim + 2]))
    labels = (*pool[at][:dim], f"({name})", *pool[at][dim + 2:])
    return lambda v: v[at].flatten(dim, dim + 1), labels


def split(rng: random.Random, pool: list[Labels]) -> Step | None:
    found = [(at, d) for at, labels in enumerate(pool) for d, x in enumerate(labels) if x == "8"]
    if not found:
        return None
    at, dim = rng.choice(found)
    labels = (*pool[at][:dim], "2", "4", *pool[at][dim + 1:])
    return (lambda v: v[at].unflatten(dim, (2, 4)), labels) if len(labels) < 5 else None


def part(rng: random.Random, pool: list[Labels]) -> Step | None:
    at = pick(rng, pool)
    if at is None:
        return None
    dim = rng.randrange(len(pool[at]))
    if pool[at][dim] not in ("b", "n", "8"):
        return None
    start = rng.choice([0, 1])
    labels = (*pool[at][:dim], f"[{pool[at][dim]}-1]", *pool[at][dim + 1:])
    return lambda v: v[at].narrow(dim, start, v[at].size(dim) - 1), labels


def join(rng: random.Random, pool: list[Labels]) -> Step | None:
    at = pick(rng, pool)
    if at is None:
        return None
    dim = rng.randrange(len(pool[at]))
    rest = lambda labels: (*labels[:dim], *labels[dim + 1:])  # noqa: E731
    size = len(pool[at])
    fits = [n for n, x in enumerate(pool) if len(x) == size and rest(x) == rest(pool[at])]
    other = rng.choice(fits)
    name = f"({pool[at][dim]}+{pool[other][dim]})"
    labels = (*pool[at][:dim], name, *pool[at][dim + 1:])
    return lambda v: torch.cat((v[at], v[other]), dim), labels


def product(rng: random.Random, pool: list[Labels]) -> Step | None:
    at = pick(rng, pool, 2)
    if at is None:
        return None
    labels = (*pool[at][:-1], pool[at][-2])
    return lambda v: torch.tanh(v[at]) @ v[at].transpose(-1, -2) * 0.1, labels


def shift(rng: random.Random, pool: list[Labels]) -> Step | None:
    at = pick(rng, pool)
    if at is None:
        return None
    dim = rng.randrange(len(pool[at]))
    kind = rng.randrange(3)
    if kind == 0:
        return lambda v: v[at].flip(dim), pool[at]
    if kind == 1:
        labels = (*pool[at][:-1], f"({pool[at][-1]}+3)")
        return lambda v: F.pad(v[at], (1, 2)), labels
    return lambda v: v[at] + torch.arange(v[at].size(-1)) * 0.1, pool[at]


STEPS = [unary, unary, binary, binary, reduce, normalise, turn, merge, split, part, join, product,
         shift]


def make(seed: int, length: int = 9) -> Callable[..., Any]:
    """A program of three inputs [b, n, 8], [n, 8], [b, n]."""
    rng = random.Random(seed)
    pool: list[Labels] = [("b", "n", "8"), ("n", "8"), ("b", "n")]
    steps = []
    while len(steps) < length:
        step = rng.choice(STEPS)(rng, pool)
        if step is not None and len(step[1]) < 5 and sum(map(len, step[1])) < 40:
            steps.append(step[0])
            pool.append(step[1])

    def program(*inputs: torch.Tensor) -> Any:
        values = list(inputs)
        for step in steps:
            values.append(step(values))
        return values[-1], values[-2], values[-4]

    return program


def inputs(seed: int) -> Callable[[Any], list[torch.Tensor]]:
    def at(size: Any) -> list[torch.Tensor]:
        b, n = size
        numbers = torch.Generator().manual_seed(seed * 1000 + b * 31 + n)
        return [torch.randn(shape, generator=numbers) for shape in ((b, n, 8), (n, 8), (b, n))]

    return at


def run(seed: int) -> None:
    """Check one program at all sizes; sizes at which an assumption fails may be recompiled."""
    check(make(seed), inputs(seed), SIZES, (5, 11), builds=None)


if __name__ == "__main__":
    for number in range(int(sys.argv[1]), int(sys.argv[2])):
        try:
            run(number)
        except Exception as error:
            print(number, type(error).__name__, str(error)[:300].replace("\n", " "), flush=True)
