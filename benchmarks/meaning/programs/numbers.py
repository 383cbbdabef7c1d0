"""Random numbers: of Python, of torch's generators, and of generators of the program's own."""

from __future__ import annotations

import random
from typing import Any

import torch

from benchmarks.meaning.engines import Engine
from benchmarks.meaning.program import program


@program("python-random", "the module `random` inside of a compiled function", 197101,
         "seed shuffle sample augment")
def python_random(engine: Engine, variant: str) -> Any:
    def draw(x: torch.Tensor) -> Any:
        if variant == "seed":
            random.seed(7)
            return x + random.random(), random.randint(0, 99), random.uniform(1, 2)
        if variant == "shuffle":
            order = list(range(6))
            random.shuffle(order)
            return x[order], order
        if variant == "sample":
            return x[random.sample(range(6), 3)], random.choice("abc"), random.gauss(0, 1)
        if random.random() < 0.5:
            x = x.flip(0)
        if random.randint(0, 1):
            x = x * random.uniform(0.5, 2)
        return x

    compiled = engine.compile(draw)
    random.seed(3)
    x = torch.arange(6.0)
    return [compiled(x) for _ in range(6)], random.random()


@program("generators", "generators of torch: seeded, saved, restored and forked", 118735)
def generators(engine: Engine, variant: str) -> Any:
    def draw() -> Any:
        own = torch.Generator().manual_seed(42)
        a = torch.rand(2, generator=own)
        torch.manual_seed(42)
        b = torch.rand(2)
        state = torch.get_rng_state()
        c = torch.rand(3)
        torch.set_rng_state(state)
        d = torch.rand(3)
        with torch.random.fork_rng():
            e = torch.randn(2)
        return a, b, c, d, e, torch.randn(2), torch.randperm(5)

    compiled = engine.compile(draw)
    return compiled(), compiled(), torch.rand(2)
