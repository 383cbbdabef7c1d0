"""Cheap checks of in-place operations while they are functionalized.

torch's functionalization runs each in-place operation on meta tensors first, by meta kernels in
Python. A helper of the frequent ones (add_, sub_, mul_, logical_and_) imports SymPy, half a second
in a fresh process. Inside of `cheap_checks` an equal for static sizes that imports nothing stands
in for it; all other arguments go on to the original.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch import _meta_registrations as kernels

_broadcast = kernels.check_inplace_broadcast


def check_inplace_broadcast(own: Any, *others: Any) -> None:
    """As torch's: the result of broadcasting must have the size of the tensor written to."""
    if all(type(extent) is int for size in (own, *others) for extent in size):
        if all(_fits(tuple(own), tuple(other)) for other in others):
            return
    _broadcast(own, *others)


def _fits(own: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """True where `other` broadcasts to `own`."""
    if len(other) > len(own):
        return False
    paired = zip(reversed(own), reversed(other), strict=False)
    return all(extent in (1, wanted) for wanted, extent in paired)


@contextlib.contextmanager
def cheap_checks() -> Iterator[None]:
    """The replacement holds inside; nesting is fine."""
    before = kernels.check_inplace_broadcast
    kernels.check_inplace_broadcast = check_inplace_broadcast
    try:
        yield
    finally:
        kernels.check_inplace_broadcast = before
