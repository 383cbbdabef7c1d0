"""What a program of this suite is, and the table of all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Compile = Callable[..., Any]  # compile(function or module, **options of dynamo.compile)
Step = Callable[[], Any]  # a unit of work; its result is tensors, in any containers
HALF = torch.bfloat16


@dataclass(frozen=True, slots=True)
class Place:
    """Where a program runs, and how large it is: small ones are for correctness on a CPU."""

    device: str
    small: bool

    def of(self, small: Any, large: Any) -> Any:
        return small if self.small else large

    @property
    def half(self) -> torch.dtype:
        """bfloat16; float32 on a CPU, where results are compared and not times."""
        return torch.float32 if self.small else HALF

    def normal(self, *size: int, dtype: torch.dtype | None = None, grad: bool = False) -> Tensor:
        made = torch.randn(size, device=self.device, dtype=dtype or self.half)
        return made.requires_grad_(grad)

    def integers(self, below: int, *size: int) -> Tensor:
        return torch.randint(0, below, size, device=self.device)


class Unfit(Exception):
    """Raised by a program that has no meaning in a place: it says what the place lacks."""


Program = Callable[[Compile, Place], Step]
PROGRAMS: dict[str, Program] = {}


def program(function: Program) -> Program:
    """Put a function of a compiler and a place into the table, under its name.

    It makes models and inputs (the seed is set before), hands to the compiler what a user would,
    and returns a step. Eager runs the same function with a compiler that returns what it is given.
    """
    name = function.__name__
    if name in PROGRAMS:
        raise ValueError(f"two programs are called {name}")
    PROGRAMS[name] = function
    return function


def built(place: Place, make: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """A module made where it runs: to fill a large one on a CPU takes long."""
    with torch.device(place.device):
        return make(*args, **options).to(place.device, place.half)


def train(
    compile: Compile,
    model: torch.nn.Module,
    *args: Any,
    criterion: Callable[[Any], Tensor] | None = None,
    **keywords: Any,
) -> Step:
    """Forward, a loss (the mean of squares of all results, unless a criterion is given), and
    backward; gives the loss and the gradients' norms, which tell of a wrong gradient without
    holding all of them."""
    compiled = compile(model)

    def step() -> Any:
        loss = (criterion or squares)(compiled(*args, **keywords))
        loss.backward()
        with torch.no_grad():
            norms = [p.grad.float().norm() for p in model.parameters() if p.grad is not None]
        model.zero_grad(set_to_none=True)
        return loss.detach(), torch.stack(norms)

    return step


def infer(compile: Compile, model: Any, *args: Any, mode: str = "", **keywords: Any) -> Step:
    """A call without gradients. mode: of the compiler."""
    if isinstance(model, torch.nn.Module):
        model.eval()
    compiled = compile(model, mode=mode) if mode else compile(model)

    @torch.no_grad()
    def step() -> Any:
        return compiled(*args, **keywords)

    return step


def leaves(value: Any) -> list[Tensor]:
    """All tensors in a result, of any containers; an object of a library's counts as a mapping."""
    if hasattr(value, "to_tuple"):
        value = value.to_tuple()
    found = torch.utils._pytree.tree_leaves(value)
    return [leaf for leaf in found if isinstance(leaf, Tensor)]


def squares(value: Any) -> Tensor:
    """A loss of whatever a model returns."""
    numbers = [leaf for leaf in leaves(value) if leaf.is_floating_point()]
    return torch.stack([leaf.float().square().mean() for leaf in numbers]).sum()
