"""Shape rules: attention on the CPU, and layers of `nn.TransformerEncoder` as one operator."""

from __future__ import annotations

from typing import Any

import torch

from dynamo.shapes.facts import Fresh, OpCache, Outcome, Several, contiguous_stride
from dynamo.shapes.rules.table import Args, Kwargs, shape_rule

aten = torch.ops.aten


@shape_rule(aten._scaled_dot_product_flash_attention_for_cpu.default)
def _flash_attention_cpu(cache: OpCache, func: Any, args: Args, kwargs: Kwargs) -> Outcome | None:
    query, key, value = (arg.facts for arg in args[:3])
    if len(query.size) != 4 or len(key.size) != 4 or query.device.type != "cpu":
        return None
    batch, heads, length, depth = query.size
    if value.size[-1] != depth or key.size != value.size or 0 in query.size + key.size:
        return None
    # for torch's own rule; that of torch 2.11 takes the sums of float64 for float32
    if 1 in query.size and query.dtype is not torch.float64:
        return None
    stride, sums_stride = _attention_strides(func, query.size, query.stride)
    wide = torch.float64 if query.dtype is torch.float64 else torch.float32
    return Several(
        tuple,
        (
            Fresh(cache.facts(query.size, stride, 0, query.dtype, query.device)),
            Fresh(cache.facts(query.size[:3], sums_stride, 0, wide, query.device)),
        ),
    )


@shape_rule(aten._transformer_encoder_layer_fwd.default)
def _encoder_layer(cache: OpCache, func: Any, args: Args, kwargs: Kwargs) -> Outcome | None:
    source = args[0].facts
    if len(source.size) != 3 or 0 in source.size:
        return None
    stride = contiguous_stride(source.size)
    return Fresh(cache.facts(source.size, stride, 0, source.dtype, source.device))


def _attention_strides(
    func: Any, size: tuple[int, ...], strides: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Strides of both results for a query of these strides. It differs between versions of torch
    how they follow the query, so the real kernel is asked with a small one, whose axes lie in the
    same order and are expanded (stride 0) where the query's are."""
    small = (2, 3, 4, 8)
    order = sorted(range(4), key=lambda axis: (-strides[axis], axis))
    back = [order.index(axis) for axis in range(4)]
    with torch.no_grad(), torch._C._DisableTorchDispatch():
        stored = [small[axis] if strides[axis] else 1 for axis in order]
        query = torch.zeros(stored).permute(back).expand(small)
        results = func(query, query, query)[:2]

    def scaled(result: torch.Tensor) -> tuple[int, ...]:
        axes = sorted(range(result.dim()), key=lambda axis: result.stride(axis))
        stride, step = [0] * len(axes), 1
        for axis in axes:
            stride[axis] = step
            step *= size[axis]
        return tuple(stride)

    return scaled(results[0]), scaled(results[1])
