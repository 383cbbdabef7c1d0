"""What a graph writes into numbers on the CPU is one call, with the bits of ATen's own operators."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx

from dynamo.aot.api import functional_graph
from inductor.fx_passes.number_programs import write_numbers_at_once
from inductor.operators.device_numbers import COMPUTE_NUMBERS, Operation

aten = torch.ops.aten
Program = Callable[..., Any]


def recorded(program: Program, given: tuple[Tensor, ...]) -> fx.GraphModule:
    """The graph of a program that writes its arguments."""
    gm = fx.symbolic_trace(program)
    return functional_graph(gm, given, epilogue_in_graph=True).module


def check(program: Program, given: tuple[Tensor, ...]) -> int:
    """How many calls the rewritten graph has; it gives ATen's bits."""
    module = recorded(program, given)
    before, mine, wanted = len(calls(module)), copied(given), copied(given)
    write_numbers_at_once(module)
    module.recompile()
    module(*mine)
    program(*wanted)
    for one, other in zip(mine, wanted, strict=True):
        assert one.dtype is other.dtype and same(one, other)
    assert len(calls(module)) <= before
    return len(calls(module))


def same(one: Tensor, other: Tensor) -> bool:
    """Bits, but for those of NaN."""
    if one.isnan().any():
        return bool(other.isnan().any())
    return one.numpy().tobytes() == other.numpy().tobytes()


def copied(given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(x.clone() for x in given)


def calls(module: fx.GraphModule) -> list[fx.Node]:
    return [node for node in module.graph.nodes if node.op == "call_function"]


def numbers(*values: float, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    return tuple(torch.tensor(value, dtype=dtype) for value in values)


def nadam(step: Tensor, product: Tensor, other_step: Tensor, other: Tensor) -> None:
    for counter, held in ((step, product), (other_step, other)):
        counter.add_(1)
        mu = 0.9 * (1.0 - 0.5 * (0.96 ** (counter.double() * 0.004)))
        held.mul_(mu.float())


def asgd(step: Tensor, eta: Tensor, mu: Tensor) -> None:
    step.add_(1)
    eta.copy_(0.01 / ((1 + 1e-4 * 0.01 * step.double()) ** 0.75))
    mu.copy_(1 / (step - 2).clamp(1, 1e6))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("program", [nadam, asgd])
def test_steps(program: Program, dtype: torch.dtype) -> None:
    for first in (0.0, 1.0, 7.0, 1e5):
        given = numbers(first, 0.75, 3.0, 0.25, dtype=dtype)
        assert check(program, given if program is nadam else given[:3]) == 1


def swapped(a: Tensor, b: Tensor, c: Tensor) -> None:
    """All are read before one is written."""
    first = a * 1
    a.copy_(b + c)
    b.copy_(first - c)
    c.copy_(first)


def test_old_values_are_read() -> None:
    assert check(swapped, numbers(1.5, 2.25, -3.0)) == 1
    assert check(swapped, (*numbers(1.1, 2.2), *numbers(-3.3, dtype=torch.float64))) == 1


UNARY: tuple[Callable[[Any], Any], ...] = (
    torch.neg, torch.sqrt, torch.reciprocal, lambda x: x.double(), lambda x: x.float(), lambda x: x.clone(),
    lambda x: x.clamp_min(-0.5), lambda x: x.clamp_max(3), lambda x: x.clamp(-1, 2.5), lambda x: 3 - x, lambda x: 0.7**x,
    lambda x: x**1.7, lambda x: x * 1e-3, lambda x: x / 3, lambda x: 1 / x, lambda x: x + 2, lambda x: x - 0.1,
)  # fmt: skip
BINARY = (torch.add, torch.sub, torch.mul, torch.div)


def drawn(seed: int) -> Program:
    """Arithmetic that is drawn, of three numbers that all are written."""
    draw = random.Random(seed)
    rows = [(draw.choice(UNARY), draw.choice(BINARY), draw.randrange(9), draw.randrange(9)) for _ in range(9)]

    def program(a: Tensor, b: Tensor, c: Tensor) -> None:
        values = [a, b, c]
        for unary, binary, first, second in rows:
            values.append(unary(binary(values[first % len(values)], values[second % len(values)])))
        for goal, value in zip((a, b, c), values[-3:], strict=True):
            goal.copy_(value)

    return program


def test_bits_of_drawn_programs() -> None:
    draw = random.Random(5)
    values = (0.0, -0.0, 1.0, float("inf"), float("nan"), 1e-40, 1e300)
    for seed in range(60):
        given = tuple(
            torch.tensor(draw.choice((*values, draw.gauss(0, 3), draw.gauss(0, 1e-3))), dtype=draw.choice((torch.float32, torch.float64)))
            for _ in range(3))
        assert check(drawn(seed), given) == 1


def of_more(x: Tensor, a: Tensor, b: Tensor, n: Tensor) -> None:
    """A sum of a tensor, and an integer, are no such numbers; b is."""
    a.copy_(x.sum() + b)
    n.add_(1)
    b.copy_((b * 2 + 1) ** 0.3)


def test_what_is_no_number_stays() -> None:
    module = recorded(of_more, (torch.randn(3), *numbers(1.0, 2.0), torch.tensor(3)))
    write_numbers_at_once(module)
    (call,) = module.graph.find_nodes(op="call_function", target=COMPUTE_NUMBERS)
    assert [node.name for node in call.args[0]] == ["b"]
    assert len(module.graph.find_nodes(op="call_function", target=aten.copy_.default)) == 2
    assert check(of_more, (torch.randn(3), *numbers(1.0, 2.0), torch.tensor(3))) < 10


@pytest.mark.parametrize("change", [
    lambda a: a.copy_((a + 1) ** 2.0), lambda a: a.copy_((a + 1) ** 0.5), lambda a: a.copy_(torch.sin(a) * 2),
    lambda a: a.add_(a * 2, alpha=2), lambda a: a.copy_(torch.div(a + 1, 3, rounding_mode="floor")),
    lambda a: a.copy_(a * ((1 << 60) + 1) + 1), lambda a: a.copy_((a * 2).clamp(max=3)),
])  # fmt: skip
def test_other_operators(change: Program) -> None:
    def program(a: Tensor, b: Tensor) -> None:
        change(a)
        b.copy_(b * 2 + 1)

    assert 1 < check(program, numbers(2.5, 1.0)) < 8


def test_one_step_stays() -> None:
    def program(a: Tensor) -> None:
        a.mul_(2)

    module = recorded(program, numbers(2.0))
    write_numbers_at_once(module)
    assert not module.graph.find_nodes(op="call_function", target=COMPUTE_NUMBERS)


def test_the_operator() -> None:
    a, b = numbers(2.0, 3.0)
    wide = torch.tensor(0.1, dtype=torch.float64)
    COMPUTE_NUMBERS([a, wide], [a, b, wide], [10.0], [int(Operation.MUL), 1, 0, 3, int(Operation.ADD), 0, 4, 2], [5, 4])
    assert a == torch.tensor(20.0) + torch.tensor(0.1) and wide == 20.0
    for steps, ends in (([1, 1, 0], [0]), ([1, 1, 0, 9], [0]), ([99, 1, 0, 0], [0]), ([], [0, 0]), ([], [7])):
        with pytest.raises(RuntimeError):
            COMPUTE_NUMBERS([a], [a], [], steps, ends)
    with pytest.raises(RuntimeError, match="numbers on the CPU"):
        COMPUTE_NUMBERS([torch.ones(2)], [a], [], [], [0])
