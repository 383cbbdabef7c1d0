"""`dynamo_jit::topk_of_rows(x, k, largest, sorted)`: `torch.topk` along short rows, the last axis.

Graphs hold it where a kernel of our own computes it on a GPU (`inductor.kernels.gpu.topk`).
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from inductor.kernels.gpu.topk import TopkCall

LIBRARY = torch.library.Library("dynamo_jit", "FRAGMENT")
LIBRARY.define("topk_of_rows(Tensor x, int k, bool largest, bool sorted) -> (Tensor, Tensor)")


@functools.cache
def _kernels() -> TopkCall:
    return TopkCall()


def _shape(x: Tensor, k: int, largest: bool, sorted: bool) -> tuple[Tensor, Tensor]:
    size = (*x.shape[:-1], k)
    return x.new_empty(size), x.new_empty(size, dtype=torch.int64)


def _by_aten(x: Tensor, k: int, largest: bool, sorted: bool) -> tuple[Tensor, Tensor]:
    values, places = torch.topk(x, k, -1, largest, sorted)
    return values, places


def _by_kernel(x: Tensor, k: int, largest: bool, sorted: bool) -> tuple[Tensor, Tensor]:
    return _kernels()(x, k, largest, sorted)


for key, kernel in (("Meta", _shape), ("CPU", _by_aten), ("CUDA", _by_kernel)):
    LIBRARY.impl("topk_of_rows", kernel, key)
