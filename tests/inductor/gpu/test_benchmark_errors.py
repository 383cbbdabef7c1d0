"""The errors that the benchmarks on a GPU print: rounding is small, a wrong gradient is seen."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

sys.path.append(str(Path(__file__).parents[3]))
from benchmarks.gpu import greatest_distance


def gradients(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    model.zero_grad()
    attended = model(x, x, x)[0]
    return list(torch.autograd.grad(attended.square().mean(), model.parameters()))


@pytest.fixture
def results() -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Of a model in whose exact gradients there is a 0: attention does not see the key's bias."""
    model, x = nn.MultiheadAttention(16, 2, batch_first=True), torch.randn(2, 9, 16)
    nn.init.normal_(model.in_proj_bias)
    found, exact = gradients(model, x), gradients(model.double(), x.double())
    parts = [[*rest, *bias.chunk(3)] for rest, bias in (([g[0], *g[2:]], g[1]) for g in (found, exact))]
    assert parts[1][-2].abs().max() < 1e-12
    return parts[0], parts[1]


def test_rounding_is_small(results) -> None:
    assert 0 < greatest_distance(*results) < 1e-4


@pytest.mark.parametrize("number", range(6))
@pytest.mark.parametrize("wrong", [lambda g: g * 1.01 + 1e-3, lambda g: -g - 1e-3, lambda g: g * float("nan")])
def test_a_wrong_gradient_is_seen(results, number, wrong) -> None:
    found, exact = results
    found[number] = wrong(found[number])
    assert greatest_distance(found, exact) > 3e-3


def test_nothing_and_other_shapes() -> None:
    assert greatest_distance([torch.zeros(0)], [torch.zeros(0).double()]) == 0
    with pytest.raises(AssertionError, match="is not"):
        greatest_distance([torch.zeros(2)], [torch.zeros(3).double()])
