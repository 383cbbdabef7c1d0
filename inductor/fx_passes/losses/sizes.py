"""How many rows of the logits are computed at a time, and whether they are at all."""

from __future__ import annotations

import math
from typing import Any

import torch

from inductor.ir.gpus import MEASURED, GpuProperties
from inductor.runtime.gpu_properties import properties_of

# Of a GPU as large and as fast as that on which they were measured: a part of its memory, and rows
# for which a GEMM does not wait for the weight.
FEWEST_BYTES = {"cpu": 64 << 20, "cuda": 256 << 20}
CHUNK_BYTES = {"cpu": 32 << 20, "cuda": 256 << 20}
FEWEST_ROWS = {"cpu": 128, "cuda": 2048}
EVEN = 128  # rows, for whole tiles of a GEMM; chosen, not measured


def is_large(value: Any) -> bool:
    """Whether a tensor is so large that parts of it repay."""
    least = FEWEST_BYTES.get(value.device.type)
    if least is None:
        return False
    least = _gpu_of(value.device).scaled_by_memory(least)
    return bool(value.numel() * value.dtype.itemsize >= least)


def _gpu_of(device: torch.device) -> GpuProperties:
    """That for which numbers are scaled; for a CPU none is."""
    return MEASURED if device.type == "cpu" else properties_of(device)


def choose_rows(
    count: int, terms: int, columns: int, dtype: torch.dtype, device: torch.device,
    has_sums: bool,
) -> int | None:
    """How many of `count` rows of a GEMM of so many terms, on a device; None for all.

    has_sums: there is the gradient of a weight. In half precision its sum is in float32, and the
    sum and the gradient are there together: no gain where that takes as much as the logits.
    """
    item = dtype.itemsize
    if has_sums and item == 2 and count < 2 * terms:
        return None
    gpu = _gpu_of(device)
    fitting = gpu.scaled_by_memory(CHUNK_BYTES[device.type]) // (columns * item)
    fewest = FEWEST_ROWS[device.type]
    if gpu is not MEASURED:
        fewest = math.ceil(gpu.scaled_by_intensity(fewest) / EVEN) * EVEN
    rows = max(fitting // EVEN * EVEN, fewest)
    parts = math.ceil(count / rows)
    if parts < 2:
        return None
    return min(rows, math.ceil(math.ceil(count / parts) / EVEN) * EVEN)
