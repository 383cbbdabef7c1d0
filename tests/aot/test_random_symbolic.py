"""Random programs with views and in-place operations, captured with symbolic sizes and run on
other sizes than those they were captured for.

    python -m tests.aot.test_random_symbolic 0 2000     # seeds to try
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from dynamo import aot
from dynamo.aot.symbols import assumption_check
from dynamo.shapes.symbolic import SymbolicWorld
from tests.aot.compare import layout, sharing
from tests.aot.programs import traced
from tests.aot.test_random_programs import execute, flat, generate

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
    torch.manual_seed(seed)
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
) -> tuple[Any, list[torch.Tensor], list[Any]]:
    """Outputs, inputs, and the gradients of the leaves that they come from (None without)."""
    leaves: list[torch.Tensor] = []
    inputs = make_inputs(seed, grad, sizes, leaves)
    torch.manual_seed(seed + 1)
    out = call(*inputs)
    wanted = [o for o in (*out, *inputs) if o.requires_grad]
    if grad and wanted:
        torch.manual_seed(seed + 2)
        sum((o * torch.randn(o.shape, dtype=torch.float64)).sum() for o in wanted).backward()
    return out, inputs, [x.grad for x in leaves]


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
    for got, want in zip(flat(actual), flat(expected), strict=True):
        assert (got is None) == (want is None)
        if want is not None:
            assert layout(got) == layout(want)
            torch.testing.assert_close(got, want, equal_nan=True)
    wanted, found = sharing([*expected[0], *expected[1]]), sharing([*actual[0], *actual[1]])
    assert wanted[:2] == found[:2]
    return "same"


@pytest.mark.parametrize("grad", [False, True])
def test_random_programs(grad: bool) -> None:
    outcomes = [outcome for seed in range(25) for outcome in check(seed, grad)]
    assert outcomes.count("same") >= 40


def main(first: int, count: int) -> None:
    """Tries seeds and prints what fails, then how often each outcome came."""
    outcomes: dict[str, int] = {}
    for seed in range(first, first + count):
        for grad in (False, True):
            try:
                found = check(seed, grad)
            except BaseException as error:  # noqa: BLE001
                found = [f"FAILED {type(error).__name__}"]
                print(f"seed {seed} grad {grad}: {type(error).__name__} {str(error)[:200]}")
            for outcome in found:
                outcomes[outcome[:90]] = outcomes.get(outcome[:90], 0) + 1
    for outcome, times in sorted(outcomes.items(), key=lambda item: -item[1]):
        print(times, outcome)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
