"""Which convolutions our own library (`codegen/cpp/convolution.py`) computes, and their sizes.

In: a call of `aten.convolution`. Out: its `Geometry`, or None where it is another kind.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from inductor.ir.graph import ExternKernel, ViewRef

Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Geometry:
    """Sizes of a convolution of two dimensions, without groups."""

    images: int
    channels: int
    size: Pair
    out_channels: int
    out_size: Pair
    window: Pair
    stride: Pair
    padding: Pair
    dilation: Pair

    def numbers(self) -> tuple[int, ...]:
        """As the library takes them."""
        sizes = (self.images, *self.size, self.channels, *self.out_size, self.out_channels)
        return (*sizes, *self.window, *self.stride, *self.padding, *self.dilation)

    def depth(self) -> int:
        """How many products an element of the result sums up."""
        return self.channels * self.window[0] * self.window[1]

    def suits_winograd(self) -> bool:
        """Whether `codegen/cpp/winograd.py` can compute it: its channels fill any vector."""
        once = self.stride == (1, 1) == self.dilation
        return self.window == (3, 3) and once and self.channels % 16 == 0

    def operations(self) -> int:
        """Products of a number with a number."""
        return self.images * self.out_size[0] * self.out_size[1] * self.out_channels * self.depth()


def is_own_convolution(call: ExternKernel) -> bool:
    """Whether a call is a convolution of our own."""
    return call.ours and call.target is torch.ops.aten.convolution.default


def geometry_of(call: ExternKernel) -> Geometry | None:
    """The sizes of a convolution that our own can compute: one of float32 of two dimensions, from
    dense channels last to dense channels last, in sizes that are known."""
    x, weight, bias, stride, padding, dilation, transposed, _, groups = call.args
    result = call.layout
    if call.target is not torch.ops.aten.convolution.default or call.kwargs or result is None:
        return None
    if not isinstance(x, ViewRef) or not isinstance(weight, ViewRef) or transposed or groups != 1:
        return None
    if not isinstance(bias, ViewRef | None) or len(x.size) != 4 or result.offset:
        return None
    dtypes = {x.dtype, weight.dtype, result.dtype, *([bias.dtype] if bias else [])}
    numbers = (*x.size, *weight.size, *result.size)
    if dtypes != {torch.float32} or not all(type(n) is int and n > 0 for n in numbers):
        return None
    is_last = x.stride == last_strides(x.size) and result.stride == last_strides(result.size)
    if not is_last or bias is not None and bias.stride != (1,):
        return None
    if not all(isinstance(each, tuple) and len(each) == 2 for each in (stride, padding, dilation)):
        return None
    pairs: Any = (weight.size[2:], stride, padding, dilation)
    sizes = (x.size[0], x.size[1], x.size[2:], result.size[1], result.size[2:])
    return Geometry(*sizes, *pairs)  # type: ignore[arg-type]


def last_strides(size: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a dense channels-last tensor."""
    _, channels, height, width = size
    return (channels * height * width, 1, width * channels, channels)
