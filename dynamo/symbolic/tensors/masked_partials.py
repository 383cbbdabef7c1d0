"""DTensors that are masked and partial, as an embedding split by rows gives: the mask is no tensor
of theirs.

It lies in a buffer of the placement, which torch's cache of shardings has for later calls too, from
the operation that masks to the one that reduces. So both have to be in one graph, or in none; and
what a trace leaves in a buffer must not be seen by the program, or by another trace.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import torch

MASKED = frozenset(("_MaskPartial", "MaskPartial"))
MODULE = "torch.distributed.tensor._ops._mask_buffer"


def is_masked(placement: Any) -> bool:
    cls = type(placement)
    return cls.__name__ in MASKED and cls.__module__.startswith("torch.distributed.")


def has_mask(tensor: Any) -> bool:
    """True for a DTensor with such a placement; none of other classes has a spec."""
    spec = getattr(tensor, "_spec", None)
    return spec is not None and any(map(is_masked, getattr(spec, "placements", ())))


@functools.cache
def forget_traced_masks() -> None:
    """From now on a buffer forgets what a trace has left there, when the program masks, or another
    trace. (torch compares a second mask with the first.)"""
    buffer = getattr(sys.modules.get(MODULE), "MaskBuffer", None)
    if buffer is None:
        return
    materialize = buffer.materialize_mask

    @functools.wraps(materialize)
    def materialize_mask(self: Any, mask: torch.Tensor) -> None:
        if self.refcount and _trace_of(self.data) not in (None, _trace_of(mask)):
            self.data, self.refcount = None, 0
        materialize(self, mask)

    buffer.materialize_mask = materialize_mask


def _trace_of(mask: Any) -> Any:
    """What a fake belongs to, perhaps below functional tensors; None for a real tensor."""
    inner = getattr(mask, "functional", mask)
    if torch._is_functional_tensor(inner):
        inner = torch._from_functional_tensor(inner)
    return getattr(inner, "world", None)
