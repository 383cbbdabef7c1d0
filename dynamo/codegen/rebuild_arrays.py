"""How the new bytecode makes numpy arrays, and numbers of numpy, of what the graph gives."""

from __future__ import annotations

from typing import Any

import torch

from dynamo.codegen.rebuild import Rebuilder, rebuilds
from dynamo.symbolic.numpy.array import ArrayVar
from dynamo.symbolic.numpy.scalars import SymbolicNumpyNumberVar
from dynamo.symbolic.tensors.nested import NestedSizeVar, ragged_part


@rebuilds(ArrayVar)
def array(rebuilder: Rebuilder, var: ArrayVar) -> None:
    """In the memory of the graph's result."""
    make = number_of if var.scalar else read_only_of if var.read_only else array_of
    rebuilder.call_const(make, var.tensor)


@rebuilds(SymbolicNumpyNumberVar)
def symbolic_number(rebuilder: Rebuilder, var: SymbolicNumpyNumberVar) -> None:
    """Of the number of each call."""
    rebuilder.call_const(var.python_type(), var.number)


@rebuilds(NestedSizeVar)
def ragged_size(rebuilder: Rebuilder, var: NestedSizeVar) -> None:
    """Of the tensor at each call."""
    rebuilder.call_const(ragged_part, var.tensor, var.axis, var.factor)


def array_of(tensor: torch.Tensor) -> Any:
    """A view, for its `base` is an array then: programs ask for the size of a base."""
    return tensor.numpy().view()


def read_only_of(tensor: torch.Tensor) -> Any:
    array = array_of(tensor)
    array.flags.writeable = False
    return array


def number_of(tensor: torch.Tensor) -> Any:
    return tensor.numpy()[()]
