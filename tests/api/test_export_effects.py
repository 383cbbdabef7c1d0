"""`export` changes nothing of the program; buffers that get other tensors are copied into."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import dynamo

SEEN: list[int] = []


class Holder(nn.Module):
    def __init__(self, run: Callable[..., Any]) -> None:
        super().__init__()
        self.run = run
        self.norm = nn.BatchNorm1d(2)
        self.register_buffer("count", torch.zeros(1))
        self.register_buffer("mean", torch.zeros(2))
        self.steps = 0

    def forward(self, x: torch.Tensor) -> Any:
        return self.run(self, x)


def averaged(m: Any, x: torch.Tensor) -> Any:
    m.count += 1
    m.mean = m.mean * 0.9 + x.mean(0) * 0.1
    return m.norm(x) + m.mean + m.count


def old_ones_returned(m: Any, x: torch.Tensor) -> Any:
    old = m.mean
    m.mean = m.mean + x[0]
    return old, old * 2, m.mean


def exchanged(m: Any, x: torch.Tensor) -> Any:
    m.mean, m.norm.running_mean = m.norm.running_mean, m.mean
    m.count = m.count + x.sum()
    return x + m.norm.running_mean


def random_numbers(m: Any, x: torch.Tensor) -> Any:
    m.mean = functional.dropout(x, 0.5)[0]
    return torch.rand_like(x) + m.norm(x)


def in_place(m: Any, x: torch.Tensor) -> Any:
    x.add_(1)
    with torch.no_grad():
        m.norm.weight.mul_(2)
        m.mean.copy_(x[0])
    return x * m.norm.weight


def steps(m: Any, x: torch.Tensor) -> Any:
    m.steps += 1
    return x * 2


def seen(m: Any, x: torch.Tensor) -> Any:
    SEEN.append(1)
    return x * random.random()


def grads(m: Any, x: torch.Tensor) -> Any:
    m.norm(x).square().sum().backward()
    return x


def resized(m: Any, x: torch.Tensor) -> Any:
    m.mean = x * 2
    return x


def registered(m: Any, x: torch.Tensor) -> Any:
    m.register_forward_hook(print)
    m.register_buffer("more", x)
    return x


def state(m: Any, x: torch.Tensor) -> Any:
    tensors = [*m.named_parameters(), *m.named_buffers()]
    return (
        [(name, id(t), t.tolist(), t.requires_grad, t.grad) for name, t in tensors], m.steps,
        list(SEEN), x.tolist(), x.requires_grad, list(m.__dict__), len(m._forward_hooks),
        torch.get_rng_state().tolist(), random.getstate(),
    )


@pytest.mark.parametrize("aten", [False, True])
@pytest.mark.parametrize(
    "run", [averaged, old_ones_returned, exchanged, random_numbers, in_place])
def test_the_graph_does_what_the_call_would(run: Any, aten: bool) -> None:
    module, x = Holder(run), torch.randn(3, 2)
    want = copy.deepcopy(module)
    before = state(module, x)
    exported, _ = dynamo.export(module, x, aten_graph=aten)
    assert state(module, x) == before
    for _ in range(3):
        given = [torch.randn(3, 2)]
        given.append(given[0].clone())
        results = []
        for call, value in zip((want, exported), given, strict=True):
            torch.manual_seed(3)
            result = call(value)
            results.append(result if isinstance(result, tuple) else (result,))
        for left, right in zip(*results, strict=True):
            torch.testing.assert_close(left, right)
        assert torch.equal(*given)
        for left, right in zip(want.state_dict().values(), module.state_dict().values(), strict=True):
            torch.testing.assert_close(left, right)


@pytest.mark.parametrize("run", [steps, seen, grads, resized, registered])
def test_what_is_refused_has_not_happened(run: Any) -> None:
    module, x = Holder(run), torch.randn(3, 2)
    before = state(module, x)
    with pytest.raises(dynamo.exc.Unsupported):
        dynamo.export(module, x)
    assert state(module, x) == before
