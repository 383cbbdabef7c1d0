"""`dynamo_jit::topk_of_rows(x, k, largest, sorted)`: `torch.topk` along rows, the last axis.

Graphs hold it where kernels of our own compute it on a GPU: of short rows (`kernels/gpu/topk.py`),
or of few long ones (`kernels/gpu/long_topk.py`).
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from inductor.kernels.gpu.long_topk import LongTopkCall
from inductor.kernels.gpu.topk import MOST_COLUMNS, TopkCall

LIBRARY = torch.library.Library("dynamo_jit", "FRAGMENT")
LIBRARY.define("topk_of_rows(Tensor x, int k, bool largest, bool sorted) -> (Tensor, Tensor)")


@functools.cache
def _kernels() -> tuple[TopkCall, LongTopkCall]:
    return TopkCall(), LongTopkCall()


def _shape(x: Tensor, k: int, largest: bool, sorted: bool) -> tuple[Tensor, Tensor]:
    size = (*x.shape[:-1], k)
    return x.new_empty(size), x.new_empty(size, dtype=torch.int64)


def _by_aten(x: Tensor, k: int, largest: bool, sorted: bool) -> tuple[Tensor, Tensor]:
    values, places = torch.topk(x, k, -1, largest, sorted)
    return values, places


def _by_kernel(x: Tensor, k: int, largest: bool, sorted: bool) -> tuple[Tensor, Tensor]:
    of_short, of_long = _kernels()
    if x.shape[-1] > MOST_COLUMNS:
        return of_long(x, k, largest)
    return of_short(x, k, largest, sorted)


for key, kernel in (("Meta", _shape), ("CPU", _by_aten), ("CUDA", _by_kernel)):
    LIBRARY.impl("topk_of_rows", kernel, key)
