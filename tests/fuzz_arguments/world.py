"""What lives between two calls: a module, former results, kept tensors. Two worlds of one seed are equal."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    """A module whose parts the changes of `changes.py` take, tie, swap and convert."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2, 2))
        self.bias = nn.Parameter(torch.randn(2))
        self.register_buffer("running", torch.zeros(2, 2))
        self.register_buffer("mask", None)
        self.part = nn.Linear(2, 2)
        self.act: Any = nn.Tanh()
        self.scale = 2.0
        self.plain = torch.randn(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.linear(self.act(x), self.weight, self.bias)
        if self.mask is not None:
            y = y * self.mask
        return self.part(y) * self.scale


@dataclass
class World:
    net: Net
    former: list[torch.Tensor] = field(default_factory=list)
    kept: dict[str, torch.Tensor] = field(default_factory=dict)


def make_world(seed: int) -> World:
    torch.default_generator.manual_seed(seed)
    return World(Net())
