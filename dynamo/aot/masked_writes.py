"""`x[mask] = row` and `x[mask] = rows` in training, with a backward whose sizes are known.

In: a tensor, a key and a value. Out: the tensor is written. Exists because backward of ATen's
operator picks as many rows as the mask has places, of which only the running program knows the
number. But one row's gradient is their sum; and many rows are as many as the places, or the write
has raised.
"""

from __future__ import annotations

from typing import Any

import torch

transforms_active = torch._C._are_functorch_transforms_active


def put(tensor: torch.Tensor, key: Any, value: Any) -> None:
    """`tensor[key] = value`, with eager's errors."""
    if not _is_for_mask(tensor, key, value):
        tensor[key] = value
        return
    rest = tensor.dim() - key.dim()
    if _is_many(value, rest):
        rows = value.expand(value.shape[0], *tensor.shape[key.dim() :])
        tensor.copy_(_Rows.apply(tensor, key, rows))  # type: ignore[no-untyped-call]
        return
    row = value.squeeze(0) if value.dim() > rest else value
    tensor.copy_(torch.where(key.reshape(*key.shape, *(1,) * rest), row, tensor))


class _Rows(torch.autograd.Function):
    """The tensor with these rows at the places of the mask, in order."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, mask: torch.Tensor, rows: torch.Tensor) -> Any:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(mask)
        ctx.count = rows.shape[0]
        return tensor.index_put((mask,), rows)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (grad,), (mask,) = grads, ctx.saved_tensors
        if grad is None:
            return None, None, None
        rest = grad.shape[mask.dim() :]
        of_tensor = of_rows = None
        if ctx.needs_input_grad[0]:
            of_tensor = grad.masked_fill(mask.reshape(*mask.shape, *(1,) * len(rest)), 0)
        if ctx.needs_input_grad[2]:
            counts = mask.flatten().cumsum(0)
            wanted = torch.arange(1, ctx.count + 1, device=mask.device)
            places = torch.searchsorted(counts, wanted)
            of_rows = grad.reshape(mask.numel(), *rest).index_select(0, places)
        return of_tensor, None, of_rows


def _is_for_mask(tensor: torch.Tensor, key: Any, value: Any) -> bool:
    """True for a mask, and what needs a gradient: a row for all its places, or one for each."""
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
    if len(sizes) == rest + 1:
        if _is_many(value, rest) and transforms_active():
            return False
        sizes = sizes[1:]
    if len(sizes) > rest or not all(tensor.stride()):
        return False
    wanted = tuple(tensor.shape[tensor.dim() - len(sizes) :])
    return all(size in (1, other) for size, other in zip(sizes, wanted, strict=True))


def _is_many(value: torch.Tensor, rest: int) -> bool:
    return value.dim() == rest + 1 and value.shape[0] != 1
