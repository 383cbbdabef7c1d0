"""Fake quantization, as compositions of simpler operations.

In: tensors of float32 with scales of float32 and zero points of int32, of the tensor or of its
channels. Out: the values that quantized ones stand for, and which lie within the range, with the
bits of ATen's kernels: the reciprocal of a scale is rounded first, and what is no number counts as
the lowest, of channels on a CPU also what is beyond the integers of 64 bits. ATen's are a pass over
memory each, and some look at all zero points on the host.
Source: `aten/src/ATen/native/quantized`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx

from dynamo.aot.fakes import facts_of, is_fake

aten = torch.ops.aten
Tensor = torch.Tensor
Results = tuple[Tensor, Tensor]  # values, and which are within the range
OF_NUMBERS = aten.fake_quantize_per_tensor_affine_cachemask.default
OF_TENSORS = aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default
OF_CHANNELS = aten.fake_quantize_per_channel_affine_cachemask.default
INTEGERS = 2.0**63  # and beyond: a processor converts such floats to the least integer
FILLED = {
    aten.zeros.default: None, aten.zeros_like.default: None, aten.new_zeros.default: None,
    aten.full.default: 1, aten.full_like.default: 1, aten.new_full.default: 2,
}  # fmt: skip


def per_tensor(x: Tensor, scale: float, zero: int, low: int, high: int) -> Results:
    number = aten.scalar_tensor.default(scale, dtype=torch.float32, device=x.device)
    return _quantized(x, number, float(zero), low, high)


def per_tensor_of_tensors(
    x: Tensor, scale: Tensor, zero: Tensor, enabled: Tensor, low: int, high: int
) -> Results:
    values, within = _quantized(x, scale.reshape(()), zero.reshape(()).to(x.dtype), low, high)
    is_on = enabled.reshape(()) != 0
    return torch.where(is_on, values, x), within | ~is_on


def per_channel(x: Tensor, scale: Tensor, zero: Tensor, axis: int, low: int, high: int) -> Results:
    size = [-1 if at == axis else 1 for at in range(x.dim())]
    most = INTEGERS if x.device.type == "cpu" else math.inf
    return _quantized(x, scale.view(size), zero.view(size).to(x.dtype), low, high, most)


def _quantized(
    x: Tensor, scale: Tensor, zero: Tensor | float, low: int, high: int, most: float = math.inf
) -> Results:
    """most: from which on a number counts as the lowest."""
    q = torch.round(x * (torch.ones_like(scale) / scale)) + zero
    above, below = q >= low, q <= high
    counts = above if most == math.inf else above & (q < most)
    bounded = torch.where(counts, torch.where(below, q, float(high)), float(low))
    return (bounded - zero) * scale, above & below


FORMS: Mapping[Any, Callable[..., Results]] = {
    OF_NUMBERS: per_tensor, OF_TENSORS: per_tensor_of_tensors, OF_CHANNELS: per_channel}


def raises_nothing(node: fx.Node) -> bool:
    """Whether a call is of dtypes that ATen takes, and its range has the zero points: of numbers,
    and of zeros. (ATen does not look at those in a tensor of one.)"""
    given: tuple[Any, ...] = node.args
    if node.kwargs or not _is_of(given[0], torch.float32):
        return False
    scale, zero, low, high = given[1], given[2], *given[-2:]
    if low > high:
        return False
    if node.target is OF_NUMBERS:
        return type(scale) is float and type(zero) is int and low <= zero <= high
    if not _is_of(scale, torch.float32) or not _is_of(zero, torch.int32):
        return False
    if node.target is OF_TENSORS:
        return all(_count(each) == 1 for each in (scale, zero, given[3]))
    size, axis = facts_of(given[0].meta["val"]).size, given[3]
    if not 0 <= axis < len(size) or not _count(scale) == _count(zero) == size[axis]:
        return False
    return _is_zero(zero) and low <= 0 <= high


def _is_of(node: Any, dtype: torch.dtype) -> bool:
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    return is_fake(value) and facts_of(value).dtype is dtype


def _count(node: fx.Node) -> int:
    """The elements of a tensor; -1 where that is known at a call only."""
    size = facts_of(node.meta["val"]).size
    return math.prod(size) if all(type(extent) is int for extent in size) else -1


def _is_zero(node: fx.Node) -> bool:
    """Whether a tensor is filled with zeros, perhaps converted since."""
    while node.target is aten._to_copy.default:
        node = node.args[0]  # type: ignore[assignment]
    if node.target not in FILLED:
        return False
    at = FILLED[node.target]
    return at is None or bool(len(node.args) > at and node.args[at] == 0)
