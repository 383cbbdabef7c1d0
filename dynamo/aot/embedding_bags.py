"""Gradients of bags of embeddings on a GPU, in ATen operations.

What each element of a bag gets is added to its row, and what is computed from the gradient before
comes along. ATen sorts the indices first: 452 of the 1,472 us of a step of DLRM's tables on an
H200. Each function gives NotImplemented for what stays ATen's.
"""

from __future__ import annotations

from typing import Any

import torch

from dynamo.aot.frequent import widened

aten = torch.ops.aten
Tensor = torch.Tensor
Maybe = Tensor | None
SUM, MEAN = 0, 1  # modes


def on_gpu(x: Tensor) -> bool:
    return x.device.type == "cuda"


def embedding_bag_backward(
    grad: Tensor, indices: Tensor, offsets: Tensor, bag_of: Tensor, bag_size: Tensor,
    greatest: Tensor, rows: int, scale_by_frequency: bool, mode: int, sparse: bool,
    weights: Maybe = None, padding: int = -1,
) -> Any:
    """Of sums and means on a GPU: what each element of a bag gets is added to its row. ATen sorts
    the indices first. bag_of: the bag of each index; weights: of each."""
    if not on_gpu(grad) or sparse or scale_by_frequency or mode not in (SUM, MEAN):
        return NotImplemented
    if not _has_bags(grad, indices, bag_of) or torch.are_deterministic_algorithms_enabled():
        return NotImplemented
    each = widened(grad)
    if mode == MEAN:
        each = each / bag_size.clamp(min=1).unsqueeze(-1)
    each = each[bag_of]
    if weights is not None:
        each = each * widened(weights).unsqueeze(-1)
    if padding >= 0:
        each = torch.where((indices == padding).unsqueeze(-1), 0.0, each)
    table = each.new_zeros((rows, grad.shape[-1]))
    return aten.index_put.default(table, [indices], each, True).to(grad.dtype)


def embedding_bag_weights_backward(
    grad: Tensor, weight: Tensor, indices: Tensor, offsets: Tensor, bag_of: Tensor, mode: int,
    padding: int = -1,
) -> Any:
    """The gradient of the weights within bags that are summed, on a GPU."""
    if not on_gpu(grad) or mode != SUM or not _has_bags(grad, indices, bag_of):
        return NotImplemented
    found = (widened(grad)[bag_of] * widened(weight)[indices]).sum(-1)
    if padding >= 0:
        found = torch.where(indices == padding, 0.0, found)
    return found.to(grad.dtype)


def _has_bags(grad: Tensor, indices: Tensor, bag_of: Tensor) -> bool:
    """Whether there is a bag for each index, in the dtypes that are added."""
    is_float = grad.dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16)
    return is_float and indices.dtype is bag_of.dtype is torch.int64 and 0 not in (
        grad.numel(), indices.numel(), bag_of.numel())
