"""Batch normalization of sequences and images that lie in memory in another order, of many sizes."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import dynamo


class Sequences(nn.Module):
    """x: (N, length, channels), as in models of speech."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x.transpose(1, 2)).transpose(1, 2) * 2


class Images(nn.Module):
    """x: (N, height, 5, channels)."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x.permute(0, 3, 1, 2)).relu()


@pytest.mark.parametrize("model, size", [(Sequences, ()), (Images, (5,))])
@pytest.mark.parametrize("training", [True, False])
def test_one_graph(model: type[nn.Module], size: tuple[int, ...], training: bool) -> None:
    eager = model().train(training)
    plain = copy.deepcopy(eager)
    dynamo.counters.clear()  # of other tests
    compiled, before = dynamo.compile(plain), dynamo.counters["stats"]["graphs"]
    for length in range(3, 15):
        x = torch.randn(2, length, *size, 4, requires_grad=True)
        found, wanted = compiled(x), eager(x)
        torch.testing.assert_close(found, wanted)
        assert found.stride() == wanted.stride()
        grad = torch.randn_like(wanted)
        gradients = [torch.autograd.grad(each, x, grad)[0] for each in (found, wanted)]
        torch.testing.assert_close(*gradients)
        assert gradients[0].stride() == gradients[1].stride()
    torch.testing.assert_close(plain.state_dict(), eager.state_dict())
    assert dynamo.counters["stats"]["graphs"] - before <= 4  # of 12 lengths
    assert not dynamo.counters["not_compiled"]
