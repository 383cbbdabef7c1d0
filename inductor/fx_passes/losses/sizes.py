"""How many rows of the logits are computed at a time, and whether they are at all."""

from __future__ import annotations

import math
from typing import Any

import torch

FEWEST_BYTES = {"cpu": 64 << 20, "cuda": 256 << 20}
CHUNK_BYTES = {"cpu": 32 << 20, "cuda": 256 << 20}
FEWEST_ROWS = {"cpu": 128, "cuda": 2048}
EVEN = 128


def is_large(value: Any) -> bool:
    """Whether a tensor is so large that parts of it repay."""
    least = FEWEST_BYTES.get(value.device.type)
    return least is not None and value.numel() * value.dtype.itemsize >= least


def choose_rows(
    count: int, terms: int, columns: int, dtype: torch.dtype, kind: str, has_sums: bool
) -> int | None:
    """How many of `count` rows of a product of so many terms, on a kind of device; None for all.

    has_sums: there is the gradient of a weight. In half precision its sum is in float32, and the
    sum and the gradient are there together: no gain where that takes as much as the logits.
    """
    item = dtype.itemsize
    if has_sums and item == 2 and count < 2 * terms:
        return None
    fitting = CHUNK_BYTES[kind] // (columns * item)
    rows = max(fitting // EVEN * EVEN, FEWEST_ROWS[kind])
    parts = math.ceil(count / rows)
    if parts < 2:
        return None
    return min(rows, math.ceil(math.ceil(count / parts) / EVEN) * EVEN)
