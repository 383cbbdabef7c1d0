"""GEMMs of one left operand whose weights lie one behind another in memory, as one GEMM.

`dynamo_jit::joined_gemms(x, weights, biases)` is `cat([x @ w.T + b ..], 1)` for x of (rows, k),
weights of (n, k) each, and biases of (n,) each, or none at all. On a GPU it is one call of the
library without a copy of the weights: weights of equal dtype that a program made one after the
other (query, key and value of attention) mostly lie so, as PyTorch's allocator hands memory out.
Whether they do is looked at in each call; where they lie apart, there is a GEMM for each.
`fx_passes/join_gemms.py` puts it into graphs; a call is C++ (`runtime/csrc/joined_gemms.cpp`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from inductor.runtime import _launch as _launch  # has the operator

LIBRARY = torch.library.Library("dynamo_jit", "FRAGMENT")


def lie_in_order(addresses: Sequence[int], sizes: Sequence[int]) -> bool:
    """Whether pieces of memory of so many bytes lie one behind another, without a gap."""
    ends = (address + size for address, size in zip(addresses, sizes, strict=True))
    return all(end == start for end, start in zip(ends, addresses[1:], strict=False))


def _shape(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor]) -> Tensor:
    return x.new_empty(x.shape[0], sum(weight.shape[0] for weight in weights))


LIBRARY.impl("joined_gemms", _shape, "Meta")
OPERATOR = torch.ops.dynamo_jit.joined_gemms.default
