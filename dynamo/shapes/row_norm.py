"""`F.rms_norm` of rows whose length is open, in steps.

In: its arguments. Out: its result. The operator that a GPU has for it takes no symbols, and torch's
C++ function hands them over all the same: the backward then reads them as numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import functional

OPERATOR = torch.ops.aten._fused_rms_norm.default


def rms_norm(
    input: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None = None,
    eps: float | None = None,
) -> torch.Tensor:
    """`F.rms_norm`; what has no symbols, and what it refuses, is left to it."""
    is_symbolic = any(type(extent) is torch.SymInt for extent in normalized_shape)
    rank = len(normalized_shape)
    fits = 0 < rank <= input.dim() and tuple(input.shape[-rank:]) == tuple(normalized_shape)
    fits = fits and (weight is None or tuple(weight.shape) == tuple(normalized_shape))
    if not is_symbolic or not fits or input.device.type == "cpu":
        return functional.rms_norm(input, normalized_shape, weight, eps)  # type: ignore[arg-type]
    steps = torch._decomp.decomposition_table[OPERATOR]
    result: torch.Tensor = steps(input, normalized_shape, weight, eps)[0]
    return result
