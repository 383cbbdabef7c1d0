"""Lazy modules that have not run yet are made while they are traced, as eager makes them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import dynamo
from dynamo.testing import CompileCounter


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d()
        self.linear = nn.LazyLinear(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(self.norm(self.conv(x).relu()).flatten(1))


class Own(nn.modules.lazy.LazyModuleMixin, nn.Module):
    """Its parameter is made of the values of its input."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.UninitializedParameter()

    def initialize_parameters(self, x: torch.Tensor) -> None:
        self.weight.materialize((x.shape[-1],))
        self.weight.data.copy_(x.mean(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


MAKERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "sequential": (lambda: nn.Sequential(nn.LazyLinear(3), nn.ReLU(), nn.LazyLinear(2)), (2, 4)),
    "net": (Net, (2, 3, 6, 6)),
    "instance norm": (lambda: nn.Sequential(nn.LazyInstanceNorm1d(affine=True)), (2, 3, 5)),
}


def state(module: nn.Module) -> dict[str, Any]:
    return {name: value.tolist() for name, value in module.state_dict().items()}


@pytest.mark.parametrize("name", MAKERS)
def test_lazy_modules_in_one_graph(name: str) -> None:
    make, shape = MAKERS[name]
    ours, x, counter = make(), torch.randn(shape), CompileCounter("eager")
    eager = make()
    compiled = dynamo.compile(ours, backend=counter, fullgraph=True)
    for _ in range(2):
        torch.manual_seed(3)
        result = compiled(x)
        torch.manual_seed(3)
        expected = eager(x)
        assert torch.equal(result, expected)
        result.sum().backward()
        expected.sum().backward()
    assert counter.frame_count == 1 and state(ours) == state(eager)
    assert list(map(type, ours.modules())) == list(map(type, eager.modules()))
    for mine, theirs in zip(ours.parameters(), eager.parameters(), strict=True):
        assert torch.equal(mine.grad, theirs.grad)


def test_what_may_look_at_values_runs_as_it_is() -> None:
    ours, x = nn.Sequential(Own()), torch.randn(3, 2)
    eager = copy.deepcopy(ours)
    assert torch.equal(dynamo.compile(ours, backend="eager")(x), eager(x))
    assert state(ours) == state(eager)
    with pytest.raises(dynamo.exc.Unsupported, match="lazy module"):
        dynamo.compile(nn.Sequential(Own()), backend="eager", fullgraph=True)(x)


def test_wrong_input_is_the_programs_error() -> None:
    net = nn.Sequential(nn.LazyConv2d(2, 3))
    with pytest.raises(RuntimeError):
        dynamo.compile(net, backend="eager")(torch.randn(3))
