"""Concatenations that grow share the memory of the last one."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import dynamo
from inductor.fx_passes.growing_cats import share_growing_cats

aten = torch.ops.aten
Program = Callable[[torch.Tensor, torch.Tensor], Any]


@pytest.fixture
def cats(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """How many concatenations each graph has before the pass, and behind it."""
    seen: list[tuple[int, int]] = []

    def count(module: torch.fx.GraphModule) -> int:
        return len(module.graph.find_nodes(op="call_function", target=aten.cat.default))

    def spying(module: torch.fx.GraphModule, *rest: Any) -> torch.fx.GraphModule:
        before = count(module)
        module = share_growing_cats(module, *rest)
        seen.append((before, count(module)))
        return module

    run = importlib.import_module("inductor.fx_passes.pipeline")
    monkeypatch.setattr(run, "share_growing_cats", spying)
    dynamo.reset()
    return seen


class Dense(nn.Module):
    """A dense block, as in densenet121. dim: of the channels."""

    def __init__(self, layers: int = 5, growth: int = 4, channels: int = 6) -> None:
        super().__init__()
        sizes = [channels + growth * n for n in range(layers)]
        self.norms = nn.ModuleList(nn.BatchNorm2d(size) for size in sizes)
        self.convs = nn.ModuleList(nn.Conv2d(size, growth, 3, padding=1) for size in sizes)
        for norm in self.norms:
            nn.init.uniform_(norm.running_mean)
            nn.init.uniform_(norm.running_var, 0.5, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features = [x]
        for norm, conv in zip(self.norms, self.convs, strict=True):
            features.append(conv(F.relu(norm(torch.cat(features, 1)))))
        return torch.cat(features, 1).tanh()


def test_a_dense_block(cats: list[tuple[int, int]]) -> None:
    model = Dense().eval()
    compiled = dynamo.compile(model, fullgraph=True, options={"graph_cache": False})
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(2, 6, 8, 8)
            found, expected = compiled(x), model(x)
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
            assert found.stride() == expected.stride()
    assert cats == [(6, 1)]  # the first one has one part


def test_training_is_the_same(cats: list[tuple[int, int]]) -> None:
    model = Dense()
    model.train()
    compiled = dynamo.compile(model, fullgraph=True, options={"graph_cache": False})
    x = torch.randn(2, 6, 8, 8)
    gradients = []
    for call in (compiled, model):
        model.zero_grad()
        call(x).sin().sum().backward()
        gradients.append([p.grad.clone() for p in model.parameters()])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
    assert cats and all(before == after for before, after in cats)


def grown(use: Callable[[torch.Tensor], torch.Tensor], first: bool = False) -> Program:
    def program(x: torch.Tensor, y: torch.Tensor) -> Any:
        one = torch.cat([x, y], 1)
        used, shown = use(one), one if first else one.relu()
        two = torch.cat([x, y, used], 1)
        three = torch.cat([x, y, used, two.sum(1, keepdim=True)], 1)
        return shown, three.exp()

    return program


def twice(x: torch.Tensor, y: torch.Tensor) -> Any:
    """One part more than once, another dim first, and two that grow out of one."""
    one = torch.cat([x, x], 1)
    total = one.sum(1, keepdim=True)
    two = torch.cat([x, x, y], 1)
    rows = torch.cat([two, two * 2], 0)
    mean, positive = two.mean(1, keepdim=True), two.relu()
    three = torch.cat([x, x, y, total], 1)
    other = torch.cat([x, x, y, mean], 1)
    return rows + 1, three.cos(), other.sin(), positive


def read_late(x: torch.Tensor, y: torch.Tensor) -> Any:
    """Somebody reads the first one when the next one has been written."""
    one = torch.cat([x, y], 1)
    two = torch.cat([x, y, y], 1)
    three = torch.cat([x, y, y, one.relu()], 1)
    return two * 2, three * 3, one.sum()


def written(x: torch.Tensor, y: torch.Tensor) -> Any:
    one = torch.cat([x, y], 1)
    two = torch.cat([x, y, one.relu()], 1)
    x = x.add_(1)
    three = torch.cat([x, y, two], 1)
    return one + 1, two + 2, three + 3


PROGRAMS: dict[str, tuple[Program, list[tuple[int, int]]]] = {
    "ours": (grown(lambda one: one.sin()), [(3, 0)]),
    "a library reads it": (
        grown(lambda one: torch.linalg.qr(one)[0][:, :1] * 1), [(3, 3)]),
    "a result": (grown(lambda one: one.sin(), first=True), [(3, 3)]),
    "a view of it": (grown(lambda one: one[:, 1:].flip(0) * 2), [(3, 3)]),
    "twice": (twice, [(5, 2)]),
    "read late": (read_late, [(3, 3)]),
    "written between": (written, [(3, 3)]),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str, cats: list[tuple[int, int]]) -> None:
    program, counts = PROGRAMS[name]
    compiled = dynamo.compile(program, fullgraph=True, options={"graph_cache": False})
    for _ in range(2):
        x, y = torch.randn(8, 3), torch.randn(8, 2)
        again = x.clone()
        for found, expected in zip(compiled(x, y), program(again, y), strict=True):
            torch.testing.assert_close(found, expected)
            assert found.stride() == expected.stride()
        torch.testing.assert_close(x, again)
    assert cats == counts


def test_other_dtypes_have_memory_of_their_own(cats: list[tuple[int, int]]) -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        one = torch.cat([x, y], 1)
        two = torch.cat([x, y, one.half()], 1)
        return torch.cat([x, y, one.half(), two.double()], 1) * 2

    compiled = dynamo.compile(program, fullgraph=True, options={"graph_cache": False})
    x, y = torch.randn(4, 3), torch.randn(4, 2)
    torch.testing.assert_close(compiled(x, y), program(x, y))
    assert cats == [(3, 3)]
