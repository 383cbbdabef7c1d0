"""Operators whose backward is the library's own: they run as they are, the rest is compiled."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import dynamo
from inductor import metrics


class Recurrent(nn.Module):
    def __init__(self, kind: str, **options: Any) -> None:
        super().__init__()
        self.layers = getattr(nn, kind)(6, 8, batch_first=True, **options)
        self.head = nn.Linear(16 if options.get("bidirectional") else 8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(torch.tanh(x))[0]).relu()


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 6, sparse=True)
        self.head = nn.Linear(6, 3)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.head(self.table(words).tanh()).relu()


class Separator(nn.Module):
    """A U-Net over waves: strided convolutions, gates, a recurrent layer, and skips that are cut
    to the length of what they meet."""

    def __init__(self, channels: int = 4, depth: int = 2) -> None:
        super().__init__()
        self.down, self.up, given = nn.ModuleList(), nn.ModuleList(), 2
        for level in range(depth):
            self.down.append(nn.Sequential(
                nn.Conv1d(given, channels, 8, 4), nn.ReLU(),
                nn.Conv1d(channels, 2 * channels, 1), nn.GLU(1)))
            last = [nn.ReLU()] if level else []
            self.up.insert(0, nn.Sequential(
                nn.Conv1d(2 * channels, 2 * channels, 3, padding=1), nn.GLU(1),
                nn.ConvTranspose1d(channels, given, 8, 4), *last))
            given, channels = channels, 2 * channels
        self.middle = nn.LSTM(given, given, 2, bidirectional=True)
        self.linear = nn.Linear(2 * given, given)

    def forward(self, wave: torch.Tensor) -> torch.Tensor:
        mean, spread = wave.mean(-1, keepdim=True), wave.std(-1, keepdim=True)
        x, skips = (wave - mean) / (spread + 1e-5), []
        for layer in self.down:
            x = layer(x)
            skips.append(x)
        x = self.linear(self.middle(x.permute(2, 0, 1))[0]).permute(1, 2, 0)
        for layer in self.up:
            skip = skips.pop()
            start = (skip.shape[-1] - x.shape[-1]) // 2
            x = layer(torch.cat([x, skip[..., start:][..., : x.shape[-1]]], 1))
        x = nn.functional.pad(x, (0, wave.shape[-1] - x.shape[-1]))
        return x * spread + mean


def train(model: nn.Module, inputs: list[torch.Tensor]) -> None:
    """Outputs and gradients as eager's, for all inputs; nothing runs as captured."""
    other = copy.deepcopy(model)
    compiled = dynamo.compile(other)
    dynamo.counters.clear()
    for x in inputs:
        model.zero_grad()
        other.zero_grad()
        torch.manual_seed(3)
        wanted = model(x)
        torch.manual_seed(3)
        found = compiled(x)
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
        wanted.square().sum().backward()
        found.square().sum().backward()
        for one, two in zip(model.parameters(), other.parameters(), strict=True):
            assert one.grad is not None and two.grad is not None
            assert one.grad.layout is two.grad.layout
            torch.testing.assert_close(
                two.grad.to_dense(), one.grad.to_dense(), rtol=1e-4, atol=1e-4)
    assert not dynamo.counters["inductor"] and not sum(dynamo.counters["not_compiled"].values())


@pytest.mark.parametrize("kind", ["LSTM", *(pytest.param(kind, marks=pytest.mark.long) for kind in ("GRU", "RNN"))])
def test_recurrent(kind: str) -> None:
    before = metrics.snapshot()["kernels"]
    train(Recurrent(kind), [torch.randn(4, 5, 6) for _ in range(3)])
    assert metrics.snapshot()["kernels"] > before


@pytest.mark.parametrize("options", [
    {"num_layers": 2, "bidirectional": True}, {"num_layers": 2, "dropout": 0.3},
])  # fmt: skip
def test_deep_lstm(options: Any) -> None:
    train(Recurrent("LSTM", **options), [torch.randn(4, 5, 6) for _ in range(2)])


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
@pytest.mark.parametrize("axis", [0, 1])
def test_sizes(kind: str, axis: int) -> None:
    sizes = [(4, 5, 6), (4, 6, 6), (4, 9, 6), (4, 3, 6)]
    shapes = [(a, b, c) if axis else (b, a, c) for a, b, c in sizes]
    train(Recurrent(kind), [torch.randn(shape) for shape in shapes])


def test_lstm_in_a_step() -> None:
    def losses(compiles: bool) -> list[float]:
        torch.manual_seed(0)
        model = Recurrent("LSTM")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
        rates = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

        def step(x: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        run = dynamo.compile(step) if compiles else step
        found = []
        for _ in range(12):
            found.append(run(torch.randn(4, 5, 6)).item())
            rates.step()
        return found

    wanted = losses(False)
    dynamo.counters.clear()
    torch.testing.assert_close(losses(True), wanted, rtol=1e-4, atol=1e-6)
    assert not dynamo.counters["inductor"]["graphs run as captured"]


def test_sparse_gradients() -> None:
    train(Words(), [torch.randint(0, 20, (4, size)) for size in (5, 5, 6, 7, 8)])


@pytest.mark.long  # a whole model of what the tests above do
def test_separator() -> None:
    train(Separator(), [torch.randn(2, 2, size) for size in (256, 256, 300)])
