"""Which convolutions our own library (`kernels/cpu/convolution.py`) computes, and their sizes.

In: a call of `aten.convolution`. Out: its `Geometry`, or None where it is another kind.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from inductor.ir.graph import ExternKernel, ViewRef

Pair = tuple[int, int]
# Channels of a vector and of a panel, on the processor where these are widest.
WIDEST_VECTOR, WIDEST_PANEL = 16, 32

# Convolutions that may be computed together, and pointers that what follows each of them gets.
MOST_LINKS, MOST_POINTERS = 8, 32


@dataclass(frozen=True, slots=True)
class Geometry:
    """Sizes of a convolution of two dimensions. groups: what a channel of the result sums up are
    the channels of its group; the weight is [out channels, channels of a group, *window]."""

    images: int
    channels: int
    size: Pair
    out_channels: int
    out_size: Pair
    window: Pair
    stride: Pair
    padding: Pair
    dilation: Pair
    groups: int = 1

    def numbers(self) -> tuple[int, ...]:
        """As the library takes them."""
        sizes = (self.images, *self.size, self.channels, *self.out_size, self.out_channels)
        steps = (*self.stride, *self.padding, *self.dilation)
        return (*sizes, *self.window, *steps, self.groups)

    def depth(self) -> int:
        """How many products an element of the result sums up."""
        return self.channels // self.groups * self.window[0] * self.window[1]

    def suits_winograd(self) -> bool:
        """Whether `kernels/cpu/winograd.py` can compute it: its channels fill any vector."""
        once = self.stride == (1, 1) == self.dilation
        whole = self.groups == 1 and self.channels % 16 == 0
        return self.window == (3, 3) and once and whole

    def is_depthwise(self) -> bool:
        """Whether each channel has a window of its own (`kernels/cpu/depthwise.py`)."""
        return 1 < self.groups == self.channels == self.out_channels

    def with_rows(self, count: int) -> Geometry:
        """The convolution that makes so many rows of the result of an image. Padding stays."""
        (down, _), (window, _), (dilation, _) = self.stride, self.window, self.dilation
        rows = (count - 1) * down + (window - 1) * dilation + 1 - 2 * self.padding[0]
        return replace(self, size=(rows, self.size[1]), out_size=(count, self.out_size[1]))

    def operations(self) -> int:
        """Products of a number with a number."""
        return self.images * self.out_size[0] * self.out_size[1] * self.out_channels * self.depth()


def is_own_convolution(call: ExternKernel) -> bool:
    """Whether a call is a convolution of our own."""
    return call.ours and call.target is torch.ops.aten.convolution.default


def geometry_of(call: ExternKernel) -> Geometry | None:
    """The sizes of a convolution that our own can compute: one of float32 of two dimensions, from
    dense channels last to dense channels last, in sizes that are known. Groups: none, each channel
    one, or such that whole panels of any processor fall into each."""
    result = call.layout
    if call.target is not torch.ops.aten.convolution.default or call.kwargs or result is None:
        return None
    x, weight, bias, stride, padding, dilation, transposed, _, groups = call.args
    if not isinstance(x, ViewRef) or not isinstance(weight, ViewRef) or transposed:
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
    how: Any = (weight.size[2:], stride, padding, dilation, groups)
    sizes = (x.size[0], x.size[1], x.size[2:], result.size[1], result.size[2:])
    found = Geometry(*sizes, *how)  # type: ignore[arg-type]
    is_grouped = groups != 1 and (found.out_channels // found.groups) % WIDEST_PANEL == 0
    if groups == 1 or is_grouped or found.is_depthwise() and found.channels >= WIDEST_VECTOR:
        return found
    return None


def last_strides(size: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a dense channels-last tensor."""
    _, channels, height, width = size
    return (channels * height * width, 1, width * channels, channels)
