"""What a program of these tests is: modules, optimizers and one step of its training.

A subclass of `Research` makes its modules in `build`, its optimizers in `prepare` and returns from
`step(*batch())` what is to be compared. `parts` names the attributes that are compiled where only the model is.
Numbers are drawn in float32 and converted, so that a program in float64 sees the same ones.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class Research:
    """One program, built with the same weights each time.

    tolerance: of a compiled program's distance to float64, where eager's own is smaller.
    """

    parts: tuple[str, ...] = ("model",)
    tolerance = 2e-5

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        self.dtype = dtype
        self.dice = torch.Generator().manual_seed(3)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.build()
        for value in vars(self).values():
            if isinstance(value, nn.Module):
                value.to(dtype)
        self.prepare()

    def build(self) -> None:
        raise NotImplementedError

    def prepare(self) -> None:
        """Optimizers, schedulers, copies of models: what needs the weights."""

    def batch(self) -> tuple[Any, ...]:
        """Fresh inputs of a step."""
        raise NotImplementedError

    def step(self, *batch: Any) -> Any:
        raise NotImplementedError

    def normal(self, *sizes: int) -> Tensor:
        return torch.randn(sizes, generator=self.dice).to(self.dtype)

    def uniform(self, *sizes: int) -> Tensor:
        return torch.rand(sizes, generator=self.dice).to(self.dtype)

    def ints(self, high: int, *sizes: int) -> Tensor:
        return torch.randint(high, sizes, generator=self.dice)

    def modules(self) -> dict[str, nn.Module]:
        return {name: value for name, value in vars(self).items() if isinstance(value, nn.Module)}


def mlp(*sizes: int, act: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    layers: list[nn.Module] = []
    for a, b in zip(sizes, sizes[1:], strict=False):
        layers += [nn.Linear(a, b), act()]
    return nn.Sequential(*layers[:-1])
