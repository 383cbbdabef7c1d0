"""`x[mask] = row` in training, in operators whose backward has sizes that are known.

In: a tensor, a key and a value. Out: the tensor is written. Exists because backward of ATen's
operator picks as many rows as the mask has places, of which only the running program knows the
number, though one row's gradient is their sum.
"""

from __future__ import annotations

from typing import Any

import torch


def put(tensor: torch.Tensor, key: Any, value: Any) -> None:
    """`tensor[key] = value`, with eager's errors."""
    if not _is_row_for_mask(tensor, key, value):
        tensor[key] = value
        return
    rest = tensor.dim() - key.dim()
    row = value.squeeze(0) if value.dim() > rest else value
    tensor.copy_(torch.where(key.reshape(*key.shape, *(1,) * rest), row, tensor))


def _is_row_for_mask(tensor: torch.Tensor, key: Any, value: Any) -> bool:
    """True where each place gets the same, which needs a gradient."""
    if not isinstance(key, torch.Tensor) or not isinstance(value, torch.Tensor):
        return False
    if key.dtype is not torch.bool or not value.requires_grad or not torch.is_grad_enabled():
        return False
    if value.dtype is not tensor.dtype or not value.device == key.device == tensor.device:
        return False
    rest = tensor.dim() - key.dim()
    if rest < 0 or not key.dim() or tuple(key.shape) != tuple(tensor.shape[: key.dim()]):
        return False
    sizes = tuple(value.shape)
    if len(sizes) == rest + 1 and sizes[0] == 1:
        sizes = sizes[1:]
    if len(sizes) > rest or not all(tensor.stride()):
        return False
    wanted = tuple(tensor.shape[tensor.dim() - len(sizes) :])
    return all(size in (1, other) for size, other in zip(sizes, wanted, strict=True))
