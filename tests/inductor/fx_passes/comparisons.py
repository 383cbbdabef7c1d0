"""How results of rewritten graphs are compared."""

from __future__ import annotations

import torch


def close(ours: torch.Tensor, theirs: torch.Tensor, exact: torch.Tensor) -> None:
    """In half precision: as close to what float64 gives as ATen's result is, of its dtype and strides."""
    assert ours.dtype is theirs.dtype and ours.shape == theirs.shape
    assert all(n == 1 or a == b for n, a, b in zip(ours.shape, ours.stride(), theirs.stride(), strict=True))
    limit = 2 * (theirs - exact).abs().max() + 1e-3 * exact.abs().max()
    assert (ours - exact).abs().max() <= limit
