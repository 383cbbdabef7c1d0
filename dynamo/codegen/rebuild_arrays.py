"""How the new bytecode makes numpy arrays, and numbers of numpy, of what the graph gives."""

from __future__ import annotations

from typing import Any

import torch

from dynamo.codegen.rebuild import Rebuilder, rebuilds
from dynamo.symbolic.numpy.array import ArrayVar


@rebuilds(ArrayVar)
def array(rebuilder: Rebuilder, var: ArrayVar) -> None:
    """In the memory of the graph's result."""
    rebuilder.call_const(number_of if var.scalar else array_of, var.tensor)


def array_of(tensor: torch.Tensor) -> Any:
    """A view, for its `base` is an array then: programs ask for the size of a base."""
    return tensor.numpy().view()


def number_of(tensor: torch.Tensor) -> Any:
    return tensor.numpy()[()]
