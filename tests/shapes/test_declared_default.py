"""Sizes that the user has declared, on the default backend: one compile for all of them, and eager's results."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import dynamo
from dynamo import Dim
from dynamo.testing import CompileCounter
from tests.parametrize import rotated

SIZES = (5, 2, 9, 16, 3, 31)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out, self.norm = nn.Linear(8, 24), nn.Linear(8, 8), nn.LayerNorm(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = self.qkv(self.norm(x)).view(batch, length, 3, 2, 4).permute(2, 0, 3, 1, 4)
        mask = torch.ones(length, length, dtype=torch.bool).tril()
        weights = (q @ k.transpose(-1, -2) * 0.5).masked_fill(~mask, float("-inf")).softmax(-1)
        return x + self.out((weights @ v).transpose(1, 2).reshape(batch, length, 8))


class Pooled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv1d(8, 4, 3, padding=1), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.gelu(self.conv(x.transpose(1, 2)))
        return self.head(x.amax(-1) + x.sum(-1) / x.shape[-1])


class Joined(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        steps = torch.arange(x.shape[1]).to(x.dtype)[:, None]
        return torch.cat([x * steps, x.cumsum(1), F.pad(x, (0, 0, 1, 2))], 1).flatten(1)


def nothing(x: torch.Tensor) -> None:
    pass


def dynamic(x: torch.Tensor) -> None:
    dynamo.mark_dynamic(x, 0)
    dynamo.mark_dynamic(x, 1)


def in_range(x: torch.Tensor) -> None:
    dynamo.mark_dynamic(x, 0, min=2, max=64)
    dynamo.mark_dynamic(x, 1, min=2, max=64)


def one_static(x: torch.Tensor) -> None:
    dynamo.mark_static(x, 0)


NAMED = {"x": {0: Dim("batch", min=2, max=64), 1: Dim("length", min=2, max=64)}}
# How it is declared, `dynamic=`, the batch sizes, and how often each model is compiled.
ROWS: dict[str, tuple[Callable[[torch.Tensor], None], Any, tuple[int, ...], int]] = {
    "marked": (dynamic, None, SIZES, 1),
    "range": (in_range, None, SIZES, 1),
    "named": (nothing, NAMED, SIZES, 1),
    "all": (nothing, True, SIZES, 1),
    "automatic": (nothing, None, SIZES, 2),
    "static": (one_static, None, (4,) * 6, 2),
    "two static": (one_static, None, (4, 4, 4, 6, 6, 6), 3),
}


@rotated("how, model", ROWS, [Attention, Pooled, Joined])
def test_models(how: str, model: type[nn.Module]) -> None:
    mark, setting, batches, compiles = ROWS[how]
    torch.manual_seed(0)
    ours = model()
    eager = copy.deepcopy(ours).double()
    default = dynamo.lookup_backend("inductor")
    counter = CompileCounter(default)
    compiled = dynamo.compile(ours, backend=counter, dynamic=setting)
    for batch, length in zip(batches, reversed(SIZES), strict=True):
        x = torch.randn(batch, length, 8)
        wanted = x.double().requires_grad_()
        x.requires_grad_()
        mark(x)
        expected, found = eager(wanted), compiled(x)
        torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-5)
        expected.square().sum().backward()
        found.square().sum().backward()
        torch.testing.assert_close(x.grad.double(), wanted.grad, rtol=1e-3, atol=1e-4)
    assert counter.frame_count == compiles
