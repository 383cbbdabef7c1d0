"""Python itself: generators that leave the function, iterators over what changes."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import torch

from benchmarks.meaning.engines import Engine
from benchmarks.meaning.program import program


@program("generator", "a generator begins in a compiled function and goes on outside of it", 198190,
         "returned sent break")
def generator(engine: Engine, variant: str) -> Any:
    def numbers(x: torch.Tensor) -> Generator[torch.Tensor, int | None, int]:
        total = 0
        for at in range(3):
            got = yield x * (at + 1)
            total += got or 1
        return total

    def returned(x: torch.Tensor) -> Any:
        made = numbers(x)
        return next(made), made

    def over_breaks(x: torch.Tensor) -> Any:
        made = numbers(x)
        a = next(made)
        engine.graph_break()
        b = made.send(4)
        engine.graph_break()
        return a, b, sum(made, torch.zeros(2))

    if variant == "break":
        compiled = engine.compile(over_breaks)
        return compiled(torch.ones(2)), compiled(torch.randn(2))
    first, made = engine.compile(returned)(torch.ones(2))
    seen: list[Any] = [first, type(made).__name__]
    try:
        while True:
            seen.append(made.send(5) if variant == "sent" else next(made))
    except StopIteration as end:
        seen.append(end.value)
    return seen


@program("iterators", "a list grows while a generator goes through it", 175855)
def iterators(engine: Engine, variant: str) -> Any:
    def forward(x: torch.Tensor) -> Any:
        values = [x.sum()]

        def walk() -> Any:
            for value in values:
                if len(values) < 4:
                    values.append(value + 1)
                yield value

        together = torch.stack(list(walk()))
        backwards = reversed([1, 2, 3])
        next(backwards)
        rest = list(iter(backwards))
        pairs = zip(values, iter(range(2)))  # noqa: B905
        next(pairs)
        return together, rest, [second for _, second in pairs], len(values)

    compiled = engine.compile(forward)
    return compiled(torch.ones(2)), compiled(torch.ones(3))
