"""Operations that write into a list whose tensors share memory: each sees what those before it have written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

import dynamo
from dynamo.aot.api import compile_inference


def twice(x: Tensor, y: Tensor) -> Tensor:
    torch._foreach_mul_([x, x], y[0])
    return x


def views(x: Tensor, y: Tensor) -> Tensor:
    torch._foreach_lerp_([x[1:], x[:-1]], [y[1:], y[:-1]], 0.5)
    return x


def crossed(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    torch._foreach_add_([x, y], [y, x], alpha=2)
    return x, y


def copied(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    torch._foreach_copy_([x, y], [y, x])
    return x, y


def factors(x: Tensor, y: Tensor) -> Tensor:
    made = x + y
    torch._foreach_addcdiv_([made, made, y], [x, x, x], [y, made, x], [2.0, 3.0, 4.0])
    torch._foreach_mul_([x, y], x.sum())
    return made


def each_with_itself(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    torch._foreach_mul_([x, y], [x, y])
    return x, y


PROGRAMS = (twice, views, crossed, copied, factors, each_with_itself)


@pytest.mark.parametrize("program", PROGRAMS)
def test_items_come_in_turn(program: Callable[..., Any]) -> None:
    given = [torch.rand(4, dtype=torch.double) + 0.5 for _ in range(2)]
    ours, eager = [x.clone() for x in given], [x.clone() for x in given]
    results = dynamo.compile(program, backend=recorded)(*ours), program(*eager)
    torch.testing.assert_close((results[0], ours), (results[1], eager), rtol=1e-12, atol=0)


def recorded(module: fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    return compile_inference(module, inputs, lambda aten, fakes: aten.forward)


def test_a_tied_weight_is_clipped_as_in_eager() -> None:
    given = torch.randn(5, 4, dtype=torch.double)

    def weights(compiled: bool) -> list[Tensor]:
        torch.manual_seed(0)
        first, second = nn.Linear(4, 4).double(), nn.Linear(4, 4).double()
        second.weight = first.weight
        every = [*first.parameters(), *second.parameters()]

        def step(x: Tensor) -> Tensor:
            second(first(x).tanh()).square().mean().backward()
            return nn.utils.clip_grad_norm_(every, 0.1)

        norm = (dynamo.compile(step) if compiled else step)(given)
        return [norm, *[weight.grad for weight in every if weight.grad is not None]]

    for found, expected in zip(weights(True), weights(False), strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_gradients_of_a_scaled_loss(backend: str) -> None:
    """What `GradScaler.unscale_` does: no warning, and eager's values."""
    dynamo.reset()

    def program(gradients: list[Tensor], found: Tensor, inverse: Tensor) -> Tensor:
        torch._amp_foreach_non_finite_check_and_unscale_(gradients, found, inverse)
        return gradients[0] + 1

    compiled = dynamo.compile(program, backend=backend, fullgraph=True)
    for dtype in (torch.float32, torch.float16, torch.float64):
        for value in (3.0, float("inf"), float("nan")):
            outcomes = []
            for run in (program, compiled):
                given = [torch.tensor([value, 1.5], dtype=dtype), torch.ones(3, 2, dtype=dtype).t() * 7]
                found, inverse = torch.zeros(1), torch.full((1,), 2.0**-26 if dtype is torch.float16 else 0.3)
                outcomes.append((run(given, found, inverse), given, found))
            assert repr(outcomes[0]) == repr(outcomes[1])
    assert not dynamo.counters["not_compiled"]
