"""What a user said about dimensions of a tensor: dynamic, maybe dynamic, unbacked, or static.

Kept as an attribute of the tensor object itself, so that it lives as long as the tensor does (marks
that torch's own compiler keeps there count, too); or given by name to
`dynamo.compile(f, dynamic={"x": {0: Dim("batch")}})`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

NAME = "_dynamo_marks"
# The attributes in which torch.compile's marks are kept.
OF_TORCH = {
    "_dynamo_weak_dynamic_indices": "maybe",
    "_dynamo_propagated_dynamic_indices": "maybe",  # of nested tensors
    "_dynamo_dynamic_indices": "dynamic",
    "_dynamo_unbacked_indices": "unbacked",
    "_dynamo_strict_unbacked_indices": "strict",
    "_dynamo_static_indices": "static",
}
UNBACKED = ("unbacked", "strict")
NONE: Mapping[int, Mark] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Mark:
    """kind: "dynamic" (fixing it is an error), "maybe", "unbacked" (no decision may look at it; an
    operation that fits one size only is compiled for it), "strict" (unbacked, and fixing it is an
    error) or "static". low, high: the range. name: dimensions of one name have one size.
    """

    kind: str
    low: int | None = None
    high: int | None = None
    name: str = ""


@dataclass(frozen=True, slots=True)
class Dim:
    """A size that changes: a name, and the range that the compiled code has to hold for.

    Dimensions with equal names have equal sizes in each call.

    >>> Dim("batch", min=2, max=64)
    Dim(name='batch', min=2, max=64)
    """

    name: str
    min: int | None = None
    max: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise TypeError(f"Dim takes a name, not {self.name!r}")
        check_range(self.min, self.max)
        if self.max is not None and self.max < max(self.min or 0, 2):
            raise ValueError(f"no size is in the range of {self}; sizes 0 and 1 are constants")

    def mark(self) -> Mark:
        return Mark("dynamic", self.min, self.max, self.name)


def check_range(low: Any, high: Any) -> None:
    """Errors: TypeError for what is no size, ValueError for a range without sizes."""
    for size in (low, high):
        if size is not None and type(size) is not int:
            raise TypeError(f"a size is an int, not {size!r}")
    if low is not None and high is not None and low > high:
        raise ValueError(f"no size is in the range from {low} to {high}")


def set_mark(tensor: Any, axis: int, mark: Mark) -> None:
    """Marks a dimension. Errors: IndexError where the tensor has none of that number; TypeError and
    ValueError for what is no dimension, or no range."""
    if type(axis) is not int:
        raise TypeError(f"a dimension is an int, not {axis!r}")
    check_range(mark.low, mark.high)
    if not -tensor.dim() <= axis < tensor.dim():
        raise IndexError(f"a tensor of {tensor.dim()} dimensions has no dimension {axis}")
    tensor.__dict__[NAME] = {**marks_of(tensor), axis % tensor.dim(): mark}


def marks_of(tensor: Any) -> Mapping[int, Mark]:
    """The marks of a tensor by dimension; those of torch's own compiler count where there are none
    of ours."""
    found: Mapping[int, Mark] = tensor.__dict__.get(NAME, NONE)
    return found or _marks_of_torch(tensor.__dict__)


def _marks_of_torch(given: Mapping[str, Any]) -> Mapping[int, Mark]:
    ranges = {item.dim: (item.min, item.max) for item in given.get("_dynamo_dynamic_range", ())}
    ranges |= given.get("_dynamo_unbacked_bounds", {})
    names = given.get("_dynamo_shape_ids", {})
    return {
        axis: Mark(kind, *ranges.get(axis, (None, None)), names.get(axis, ""))
        for name, kind in OF_TORCH.items()
        for axis in given.get(name, ())
    }
