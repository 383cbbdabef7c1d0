"""Registers operators of which graphs hold forward and backward: `name` and `name_backward`.

Where a tensor among the arguments needs a gradient, `name` is called through a function of
autograd; `name_backward` has no derivative of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

LIBRARY = torch.library.Library("dynamo_jit", "FRAGMENT")


class Kernels(NamedTuple):
    """What computes an operator: empty results, ATen operators, our kernels."""

    meta: Callable[..., Any]
    cpu: Callable[..., Any]
    cuda: Callable[..., Any]


def register(
    name: str, forward: Kernels, backward: Kernels, derivative: type[torch.autograd.Function]
) -> None:
    """Both operators, which are defined. derivative: takes the operator's arguments."""

    def with_derivative(*args: Any) -> Any:
        tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
            return derivative.apply(*args)
        return below_autograd(name, *args)

    def without_derivative(*args: Any) -> Any:
        return below_autograd(f"{name}_backward", *args)

    rules = {name: (forward, with_derivative), f"{name}_backward": (backward, without_derivative)}
    for operator, (kernels, above) in rules.items():
        for key, kernel in zip(("Meta", "CPU", "CUDA"), kernels, strict=True):
            LIBRARY.impl(operator, kernel, key)
        LIBRARY.impl(operator, above, "Autograd")


def below_autograd(name: str, *args: Any) -> Any:
    """Calls the operator's kernel."""
    with torch._C._AutoDispatchBelowAutograd():
        return getattr(torch.ops.dynamo_jit, name)(*args)
