"""Calls that always break: one graph before and one behind, and a reason by which they are known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynamo
from dynamo.base import counters
from dynamo.testing import CompileCounter

HOOKED = torch.ones(3, requires_grad=True)
HOOKED.register_hook(lambda grad: grad * 2)


def backward(x: torch.Tensor) -> Any:
    HOOKED.grad = None
    loss = (HOOKED * x).sin().sum()
    loss.backward()
    return loss * 2, HOOKED.grad.clone()


def gradient(x: torch.Tensor) -> Any:
    (found,) = torch.autograd.grad((HOOKED * x).sin().sum(), HOOKED)
    return found * 2


def reads_seed(x: torch.Tensor) -> Any:
    return x * 2 + torch.rand(3), torch.initial_seed()


@pytest.mark.parametrize("program,code", [
    (backward, "backward"), (gradient, "backward"), (reads_seed, "random_state"),
])
def test_reason(program: Callable[[torch.Tensor], Any], code: str) -> None:
    def breaks() -> int:
        return sum(n for reason, n in counters.counters["graph_break"].items() if code in reason)

    counter = CompileCounter("eager")
    compiled = dynamo.compile(program, backend=counter)
    before = breaks()
    for seed in range(2):
        x = torch.rand(3)
        torch.manual_seed(seed)
        wanted = program(x)
        torch.manual_seed(seed)
        torch.testing.assert_close(compiled(x), wanted)
    assert breaks() > before and 1 <= len(counter.graphs) <= 4


def test_nested_tensors_break() -> None:
    nested = torch.nested.nested_tensor([torch.rand(2), torch.rand(3)])
    compiled = dynamo.compile(lambda n, x: (n.to_padded_tensor(0.0), x + 1), backend="eager")
    x = torch.rand(3)
    with dynamo.config.patch(suppress_errors=False):
        found = compiled(nested, x)
    torch.testing.assert_close(found, (nested.to_padded_tensor(0.0), x + 1))
