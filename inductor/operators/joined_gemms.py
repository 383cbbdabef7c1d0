"""GEMMs of one left operand whose weights lie one behind another in memory, as one GEMM.

`dynamo_jit::joined_gemms(x, weights, biases)` is `cat([x @ w.T + b ..], 1)` for x of (rows, k),
weights of (n, k) each, and biases of (n,) each, or none at all. On a GPU it is one call of the
library without a copy of the weights: weights of equal dtype that a program made one after the
other (query, key and value of attention) mostly lie so, as PyTorch's allocator hands memory out.
Whether they do is looked at in each call; where they lie apart, there is a GEMM for each.
`fx_passes/join_gemms.py` puts it into graphs.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

LIBRARY = torch.library.Library("dynamo_jit", "FRAGMENT")
LIBRARY.define("joined_gemms(Tensor x, Tensor[] weights, Tensor[] biases) -> Tensor")
MOST_CACHED = 4096  # answers about places in memory; chosen, not measured
Key = tuple[int, int, tuple[int, ...], torch.dtype, torch.device]


def lie_in_order(addresses: Sequence[int], sizes: Sequence[int]) -> bool:
    """Whether pieces of memory of so many bytes lie one behind another, without a gap."""
    ends = (address + size for address, size in zip(addresses, sizes, strict=True))
    return all(end == start for end, start in zip(ends, addresses[1:], strict=False))


def _shape(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor]) -> Tensor:
    return x.new_empty(x.shape[0], sum(weight.shape[0] for weight in weights))


def _each(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor]) -> Tensor:
    """A GEMM for each weight."""
    given = itertools.zip_longest(weights, biases)
    return torch.cat([torch.nn.functional.linear(x, *pair) for pair in given], 1)


def _at_once(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor]) -> Tensor:
    """One GEMM where the weights lie in order."""
    weight = _joined(weights)
    if weight is None:
        return _each(x, weights, biases)
    if not biases:
        return torch.mm(x, weight.t())
    bias = _joined(biases)
    return torch.addmm(torch.cat(list(biases)) if bias is None else bias, x, weight.t())


_cache: dict[Key, Tensor] = {}


def _joined(parts: Sequence[Tensor]) -> Tensor | None:
    """A tensor over the memory of dense parts, one behind another; None where they lie apart.

    It owns nothing: it is right as long as the parts are there, which the caller holds.
    """
    addresses = [part.data_ptr() for part in parts]
    if not lie_in_order(addresses, [part.nbytes for part in parts]):
        return None
    first = parts[0]
    rows = sum(part.shape[0] for part in parts)
    key = (addresses[0], rows, tuple(first.shape[1:]), first.dtype, first.device)
    found = _cache.get(key)
    if found is None:
        if len(_cache) >= MOST_CACHED:
            _cache.clear()
        found = _cache[key] = _over(first, (rows, *first.shape[1:]))
    return found


def _over(first: Tensor, size: tuple[int, ...]) -> Tensor:
    made = first.new_empty(0)
    elements = torch.Size(size).numel()
    memory = torch._C._construct_storage_from_data_pointer(  # type: ignore[attr-defined]
        first.data_ptr(), first.device, elements * first.itemsize
    )
    stride = (1,) if len(size) == 1 else (size[1], 1)
    return made.set_(memory, 0, size, stride)


LIBRARY.impl("joined_gemms", _shape, "Meta")
LIBRARY.impl("joined_gemms", _each, "CPU")
LIBRARY.impl("joined_gemms", _at_once, "CUDA")

OPERATOR = torch.ops.dynamo_jit.joined_gemms.default
