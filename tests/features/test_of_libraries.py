"""Constructs that libraries use and programs of our own had not: one graph each, eager's values."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import dynamo
from dynamo.testing import CompileCounter


@pytest.fixture(autouse=True)
def forget() -> None:
    dynamo.reset()


DRAWS: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda x: torch.randn(x.shape, generator=None, dtype=x.dtype, device=x.device),
    lambda x: torch.rand(3, generator=None),
    lambda x: torch.randint(0, 9, (3,), generator=None),
    lambda x: torch.randperm(3, generator=None),
    lambda x: torch.bernoulli(x.sigmoid(), generator=None),
    lambda x: torch.multinomial(x.softmax(0), 2, generator=None).sum(),
]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("draw", DRAWS)
def test_no_generator(draw: Callable[[torch.Tensor], torch.Tensor], dynamic: bool) -> None:
    """`generator=None` is torch's own generator, of which the compiler draws nothing."""
    x = torch.ones(3)
    found = []
    for program in (draw, dynamo.compile(draw, backend="eager", fullgraph=True, dynamic=dynamic)):
        torch.manual_seed(4)
        found.append((program(x), torch.get_rng_state()))
    (want, state), (got, after) = found
    assert torch.equal(want, got) and torch.equal(state, after)


TYPED: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda x: torch.tensor(1, dtype=int),
    lambda x: torch.tensor([-1, 2], dtype=int, device=x.device) + torch.as_tensor([1.5, 2], dtype=float),
    lambda x: torch.zeros(3, dtype=bool),
    lambda x: torch.full((3,), 2, dtype=float) + x,
    lambda x: torch.zeros_like(x, dtype=complex),
    lambda x: x.to(int),
    lambda x: x.to(dtype=bool),
    lambda x: x.sum(0, dtype=float),
    lambda x: x.new_tensor([1, 2], dtype=int),
    lambda x: torch.tensor([-1, 2.5, x.shape[0]], dtype=int) + x,
    lambda x: torch.as_tensor([[1, 2, 3]], dtype=float) * x,
    lambda x: torch.tensor((True, False), dtype=complex),
    lambda x: torch.tensor([math.pi, x.shape[0] / 2], dtype=float) + torch.tensor([0, 1], dtype=bool),
]


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("typed", TYPED)
def test_classes_as_dtypes(typed: Callable[[torch.Tensor], torch.Tensor], backend: str) -> None:
    x = torch.tensor([0.5, 1.0, -2.0])
    got = dynamo.compile(typed, backend=backend, fullgraph=True)(x)
    want = typed(x)
    assert torch.equal(got, want) and got.dtype == want.dtype
    assert not dynamo.counters["internal_errors"]


class ByClass(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, cls: type) -> torch.Tensor:
        return x * (2 if cls is int else 3)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad, None


def test_classes_that_are_no_dtypes() -> None:
    """A function of the program gets the class itself."""
    allowed = torch.compiler.allow_in_graph(lambda x, cls: x * (5 if cls is int else 7))
    x = torch.ones(3)
    for program in (lambda x: ByClass.apply(x, int), lambda x: allowed(x, int)):
        assert torch.equal(dynamo.compile(program, backend="eager")(x), program(x))


class OnlyCall(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.calls = 0

    def __call__(self, x: torch.Tensor, *, times: int = 1) -> torch.Tensor:
        self.calls += 1
        return self.linear(x) * times + self.calls


class AroundForward(OnlyCall):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)

    def __call__(self, x: torch.Tensor, *, times: int = 1) -> torch.Tensor:
        return nn.Module.__call__(self, x) * times - 1


@pytest.mark.parametrize("cls", [OnlyCall, AroundForward])
def test_modules_with_their_own_call(cls: type[OnlyCall]) -> None:
    module = cls()
    plain = copy.deepcopy(module)
    for each in (module, plain):
        each.register_forward_hook(lambda module, args, out: out * 2)
    counter = CompileCounter()
    compiled = dynamo.compile(module, backend=counter)
    x = torch.ones(2, 3)
    for times in (2, 2):
        assert torch.equal(compiled(x, times=times), plain(x, times=times))
    assert counter.frame_count >= 1 and not dynamo.counters["graph_break"]
    assert module.calls == plain.calls
    assert type(pickle.loads(pickle.dumps(dynamo.compile(cls(), backend="eager")))) is cls
