"""Random programs with views and in-place operations, captured with symbolic sizes and run on
other sizes than those they were captured for.

    python -m tests.aot.test_random_symbolic 0 2000     # seeds to try
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from dynamo import aot
from dynamo.aot.symbols import assumption_check
from dynamo.shapes.symbolic import SymbolicWorld
from tests.aot.programs import traced
from tests.aot.test_random_programs import (
    Result,
    assert_same,
    execute,
    generate,
    observe,
    try_seeds,
)
from tests.seeds import drawn

FIRST = (5, 6)
SIZES = ((4, 9), (2, 3), (9, 4), (7, 7))
COUNT = 3


class OtherSizes(Exception):
    """The graph was not made for these sizes."""


def make_input(kind: int, at: int, m: int, n: int, base: torch.Tensor) -> torch.Tensor:
    like = {"dtype": torch.float64}
    if kind == 1:
        return torch.randn(n, m, **like).t()
    if kind == 2:
        return torch.randn(m, 2 * n, **like)[:, ::2]
    if kind == 3:
        return base[m * n * at :][: m * n].view(m, n)
    return torch.randn(n, **like) if kind == 4 else torch.randn(m, n, **like)


def make_inputs(
    seed: int, grad: bool, sizes: tuple[int, int], leaves: list[torch.Tensor] | None = None
) -> list[torch.Tensor]:
    """Inputs of several layouts; the leaves that they come from are added to `leaves`."""
    rng = random.Random(seed)
    torch.default_generator.manual_seed(seed)
    m, n = sizes
    base = torch.randn(COUNT * m * n, dtype=torch.float64)
    made = []
    for at in range(COUNT):
        x = make_input(rng.randrange(5), at, m, n, base)
        if grad and rng.random() < 0.6:
            x = x.detach().requires_grad_()
            if leaves is not None:
                leaves.append(x)
            x = x if rng.random() < 0.5 else x * 1
        made.append(x)
    return made


def show_symbols(gm: torch.fx.GraphModule, examples: list[torch.Tensor]) -> None:
    """Gives the placeholders fakes with two symbols, as the frontend would."""
    world = SymbolicWorld()
    symbols = {size: world.size(f"s{at}", size) for at, size in enumerate(FIRST)}
    m, n = (symbols[size] for size in FIRST)
    strides = {1: 1, FIRST[0]: m, FIRST[1]: n, 2: 2, 2 * FIRST[1]: 2 * n}
    nodes = [node for node in gm.graph.nodes if node.op == "placeholder"]
    for node, x in zip(nodes, examples, strict=True):
        node.meta["example_value"] = world.make(
            x, [symbols[size] for size in x.shape], [strides[step] for step in x.stride()])


def checked(module: torch.fx.GraphModule, fakes: list[Any]) -> Callable[..., Any]:
    holds = assumption_check(module.meta["symbols"])

    def run(*inputs: Any) -> Any:
        if not holds(*inputs):
            raise OtherSizes
        return module.forward(*inputs)

    return run


def run(
    call: Callable[..., Any], seed: int, grad: bool, sizes: tuple[int, int]
) -> Result:
    leaves: list[torch.Tensor] = []
    inputs = make_inputs(seed, grad, sizes, leaves)
    return observe(call, inputs, leaves, seed, grad)


def check(seed: int, grad: bool) -> list[str]:
    """What became of a random program at each size; raises where it differs from eager."""
    rng = random.Random(seed + 7)
    steps, returned = generate(rng, make_inputs(seed, grad, FIRST), grad)
    examples = make_inputs(seed, grad, FIRST)
    gm = traced(lambda a, b, c: execute(steps, returned, [a, b, c]))
    show_symbols(gm, examples)
    with torch.set_grad_enabled(grad):
        try:
            if grad:
                call = aot.compile_training(gm, examples, checked, checked, symbolic=True)
            else:
                call = aot.compile_inference(
                    gm, examples, checked, epilogue_in_graph=bool(seed % 2), symbolic=True)
        except aot.Unsupported as reason:
            return [str(reason)]
        return [compare(call, gm.forward, seed, grad, sizes) for sizes in (FIRST, *SIZES)]


def compare(call: Any, eager: Any, seed: int, grad: bool, sizes: tuple[int, int]) -> str:
    try:
        actual = run(call, seed, grad, sizes)
    except OtherSizes:
        assert sizes != FIRST
        return "other sizes"
    except RuntimeError:
        with pytest.raises(RuntimeError):
            run(eager, seed, grad, sizes)
        return "error"
    try:
        expected = run(eager, seed, grad, sizes)
    except RuntimeError as error:
        assert "a function that returns multiple views" in str(error)
        return "views that eager alone refuses to use"
    assert_same(actual, expected)
    return "same"


@pytest.mark.every_combination
@pytest.mark.parametrize("seeds", [range(12), pytest.param(drawn(range(12, 25)), marks=pytest.mark.long)], ids=["few", "more"])
@pytest.mark.parametrize("grad", [False, True])
def test_random_programs(grad: bool, seeds: Sequence[int]) -> None:
    outcomes = [outcome for seed in seeds for outcome in check(seed, grad)]
    assert outcomes.count("same") >= 19


if __name__ == "__main__":
    try_seeds(int(sys.argv[1]), int(sys.argv[2]), check)
