"""`cumprod` in training, with a backward of as many steps as there are elements.

In: a tensor and an axis. Out: the products. Exists because ATen's backward asks whether there is a
zero; where only the running program knows that, it computes each element of a row from the whole
row: memory and time grow with the square of the length.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten
transforms_active = torch._C._are_functorch_transforms_active


def cumprod(input: Tensor, *args: Any, **options: Any) -> Tensor:
    """`torch.cumprod`, with eager's errors."""
    dim = _axis(*args, **options)
    if dim is None or not _is_learned(input) or not -input.dim() <= dim < input.dim():
        return torch.cumprod(input, *args, **options)
    return _Products.apply(input, dim % input.dim())  # type: ignore[no-untyped-call, no-any-return]


def _axis(dim: Any = None, *, dtype: Any = None, out: Any = None) -> int | None:
    return dim if type(dim) is int and dtype is None and out is None else None


def _is_learned(input: Any) -> bool:
    return (
        isinstance(input, Tensor) and input.dtype.is_floating_point and input.requires_grad
        and torch.is_grad_enabled() and not transforms_active()
    )  # fmt: skip


class _Products(torch.autograd.Function):
    """The products along an axis."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int) -> Tensor:
        result = torch.cumprod(x, dim)
        ctx.save_for_backward(x, result)
        ctx.dim = dim
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (grad,), (x, result) = grads, ctx.saved_tensors
        if torch.is_grad_enabled():  # the steps below have another gradient than this
            return aten.cumprod_backward.default(grad, x, ctx.dim, result), None
        return _gradient(grad, x, ctx.dim, result), None


def _gradient(grad: Tensor, x: Tensor, dim: int, result: Tensor) -> Tensor:
    """ATen's steps for rows with zeros, which come to those for rows without where there is none:
    elements before the first zero, and the first zero; those behind it have no gradient."""
    if x.numel() <= 1 or x.shape[dim] == 1:
        return grad
    is_zero = x == 0
    zeros = is_zero.cumsum(dim)
    before, alone = zeros == 0, zeros == 1
    sums = (result * grad).masked_fill(~before, 0.0).flip(dim).cumsum(dim).flip(dim)
    behind = x.masked_fill(~alone | is_zero, 1.0).cumprod(dim)
    total = (behind * grad.masked_fill(~alone, 0.0)).sum(dim, keepdim=True)
    ones = torch.ones_like(result.narrow(dim, 0, 1))
    ahead = torch.cat([ones, result.narrow(dim, 0, x.shape[dim] - 1)], dim)
    return torch.where(before, sums / x, torch.where(alone & is_zero, total * ahead, 0.0))
