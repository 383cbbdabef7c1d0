"""What a user said about dimensions of a tensor: dynamic, maybe dynamic, or static.

Kept as an attribute of the tensor object itself, so that it lives as long as the tensor does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

NAME = "_dynamo_marks"
NONE: Mapping[int, Mark] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Mark:
    """kind: "dynamic" (fixing it is an error), "maybe" or "static". low, high: the range."""

    kind: str
    low: int | None = None
    high: int | None = None


def set_mark(tensor: Any, axis: int, mark: Mark) -> None:
    """Marks a dimension. Errors: IndexError where the tensor has none of that number."""
    if not -tensor.dim() <= axis < tensor.dim():
        raise IndexError(f"a tensor of {tensor.dim()} dimensions has no dimension {axis}")
    tensor.__dict__[NAME] = {**marks_of(tensor), axis % tensor.dim(): mark}


def marks_of(tensor: Any) -> Mapping[int, Mark]:
    """The marks of a tensor by dimension."""
    found: Mapping[int, Mark] = tensor.__dict__.get(NAME, NONE)
    return found
