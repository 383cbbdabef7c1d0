"""`dynamo_jit::window_sums(x, weight, padding, flipped)`: a depthwise convolution of images, stride
1, for large windows.

x: [N, C, H, W]; weight: [C, 1, high, wide]; padding: zeros above and below, left and right;
flipped: each window is turned around, as the gradient of an input has it. Graphs hold it where a
kernel of our own computes it on a GPU (`inductor.kernels.gpu.windows`).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from inductor.kernels.gpu.windows import WindowCall, result_form

LIBRARY = torch.library.Library("dynamo_jit", "FRAGMENT")
LIBRARY.define("window_sums(Tensor x, Tensor weight, int[2] padding, bool flipped) -> Tensor")


@functools.cache
def _kernels() -> WindowCall:
    return WindowCall()


def _shape(x: Tensor, weight: Tensor, padding: Sequence[int], flipped: bool) -> Tensor:
    size, strides = result_form(x, weight, (padding[0], padding[1]))
    return x.new_empty_strided(size, strides)


def _by_aten(x: Tensor, weight: Tensor, padding: Sequence[int], flipped: bool) -> Tensor:
    window = weight.flip(2, 3) if flipped else weight
    found = torch.conv2d(x, window, padding=[*padding], groups=x.shape[1])
    return _shape(x, weight, padding, flipped).copy_(found)


def _by_kernel(x: Tensor, weight: Tensor, padding: Sequence[int], flipped: bool) -> Tensor:
    return _kernels()(x, weight, (padding[0], padding[1]), flipped)


for key, kernel in (("Meta", _shape), ("CPU", _by_aten), ("CUDA", _by_kernel)):
    LIBRARY.impl("window_sums", kernel, key)
