"""Compiled training: values, gradients, buffers and errors are eager's."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import dynamo
from dynamo import aot
from dynamo.aot.min_cut import min_cut, save_all
from tests.aot.programs import captured, traced


def interpret(module: torch.fx.GraphModule, fakes: list[Any]) -> Callable[..., Any]:
    return module.forward


def compiler(
    seen: list[Any], cut: Any = min_cut, decompositions: Any = None
) -> Callable[..., Any]:
    """A backend that counts what it compiled."""

    def compile_graph(gm: torch.fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
        call = aot.compile_training(
            gm, examples, interpret, interpret, partition=cut, decompositions=decompositions
        )
        seen.append(call)
        return call

    return compile_graph


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.qkv = nn.Linear(8, 24)
        self.out = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).view(2, 5, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=0.0)
        return x + self.out(y.transpose(1, 2).reshape(2, 5, 8))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6, padding_idx=2)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.head(torch.tanh(self.embed(ids))), ids)


class Loss(nn.Module):
    def __init__(self, loss: nn.Module) -> None:
        super().__init__()
        self.net = nn.Linear(4, 4)
        self.loss = loss

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.loss(self.net(x), x.detach().sigmoid())


class Dropout(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 6), nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.dropout(F.gelu(self.a(x)), 0.5)
        return F.dropout(self.b(y), 0.3) + torch.rand_like(x)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 8), nn.SiLU(), nn.Linear(8, 3))


def conv_net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 4, 1),
        nn.GroupNorm(2, 4),
        nn.Hardswish(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 3),
        nn.LogSoftmax(-1),
    )


def R(*size: int) -> Callable[[], torch.Tensor]:
    return lambda: torch.randn(*size, dtype=torch.float64)


NETS: list[tuple[str, Callable[[], nn.Module], Callable[[], torch.Tensor]]] = [
    ("mlp", mlp, R(5, 4)),
    ("conv", conv_net, R(2, 2, 8, 8)),
    ("attention", Attention, R(2, 5, 8)),
    ("tied", Tied, lambda: torch.randint(11, (7,))),
    ("dropout", Dropout, R(5, 4)),
    ("mse", lambda: Loss(nn.MSELoss()), R(3, 4)),
    ("smooth l1", lambda: Loss(nn.SmoothL1Loss()), R(3, 4)),
    ("huber", lambda: Loss(nn.HuberLoss()), R(3, 4)),
    ("bce logits", lambda: Loss(nn.BCEWithLogitsLoss()), R(3, 4)),
    ("kl", lambda: Loss(nn.KLDivLoss(reduction="batchmean")), R(3, 4)),
    ("upsample", lambda: nn.Sequential(nn.Conv2d(1, 2, 1), nn.Upsample(scale_factor=2)), R(1, 1, 4, 4)),
    ("encoder", lambda: nn.TransformerEncoderLayer(8, 2, 16, 0.1, batch_first=True), R(2, 5, 8)),
]  # fmt: skip


@pytest.mark.parametrize("mode", ["min_cut", "save_all", "decomposed"])
@pytest.mark.parametrize("make, data", [row[1:] for row in NETS], ids=[row[0] for row in NETS])
def test_nets(make: Any, data: Any, mode: str) -> None:
    seen: list[Any] = []
    eager = make().double()
    other = copy.deepcopy(eager)
    table = aot.default_decompositions() if mode == "decomposed" else None
    backend = compiler(seen, save_all if mode == "save_all" else min_cut, table)
    compiled = dynamo.compile(other, backend=backend)
    for _ in range(2):
        x = data()
        ours, theirs = x.clone(), x.clone()
        if x.is_floating_point():
            ours.requires_grad_()
            theirs.requires_grad_()
        state = torch.get_rng_state()
        expected = eager(theirs)
        after = torch.get_rng_state()
        torch.set_rng_state(state)
        actual = compiled(ours)
        assert torch.equal(after, torch.get_rng_state())
        assert expected.stride() == actual.stride()
        torch.testing.assert_close(actual, expected)
        weight = torch.randn_like(expected)
        (expected * weight).sum().backward()
        (actual * weight).sum().backward()
        torch.testing.assert_close(ours.grad, theirs.grad)
        compare_states(eager, other)
    assert seen


def compare_states(eager: nn.Module, other: nn.Module) -> None:
    for (name, want), got in zip(eager.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(got.grad, want.grad, msg=lambda text, n=name: f"{n}: {text}")
        assert got.grad is None or got.grad.stride() == want.grad.stride()
    for want, got in zip(eager.buffers(), other.buffers(), strict=True):
        torch.testing.assert_close(got, want)
