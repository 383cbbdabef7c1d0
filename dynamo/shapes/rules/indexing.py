"""Shape rules: gathering, joining, copies in another order or with parts replaced."""

from __future__ import annotations

from typing import Any

import torch

from dynamo.shapes.facts import Fresh, OpCache, Outcome, contiguous_stride, facts_of
from dynamo.shapes.iteration import channels_last_stride, is_channels_last
from dynamo.shapes.rules.table import (
    Args,
    Kwargs,
    argument,
    contiguous,
    shape_rule,
    suggested_stride,
    wrap_axis,
)

aten = torch.ops.aten


@shape_rule(aten.cat.default)
def _cat(cache: OpCache, func: Any, args: Args, kwargs: Kwargs) -> Outcome | None:
    parts = [part.facts for part in args[0]]
    first = parts[0]
    axis = wrap_axis(argument(func, "dim", args, kwargs), len(first.size))
    if axis is None or not first.size or any(part.size == (0,) for part in parts):
        return None
    beside = (*first.size[:axis], *first.size[axis + 1 :])
    total = 0
    for part in parts:
        if len(part.size) != len(first.size) or part.bits or part.device != first.device:
            return None
        if (*part.size[:axis], *part.size[axis + 1 :]) != beside:
            return None
        total += part.size[axis]
    size = (*first.size[:axis], total, *first.size[axis + 1 :])
    dtype = first.dtype
    for part in parts[1:]:
        dtype = torch.promote_types(dtype, part.dtype)
    if all(is_channels_last(part.size, part.stride) for part in parts):
        return Fresh(cache.facts(size, channels_last_stride(size), 0, dtype, first.device))
    if any(is_channels_last(part.size, part.stride) for part in parts):
        return None
    return contiguous(cache, size, dtype, first.device)


@shape_rule(aten.embedding.default)
def _embedding(cache: OpCache, func: Any, args: Args, kwargs: Kwargs) -> Outcome | None:
    table, index = args[0].facts, args[1].facts
    if len(table.size) != 2 or index.dtype not in (torch.int64, torch.int32):
        return None
    if table.device != index.device:
        return None
    return contiguous(cache, (*index.size, table.size[1]), table.dtype, table.device)


@shape_rule(aten.gather.default)
def _gather(cache: OpCache, func: Any, args: Args, kwargs: Kwargs) -> Outcome | None:
    source, index = args[0].facts, args[2].facts
    if len(source.size) != len(index.size) or index.dtype is not torch.int64 or source.bits:
        return None
    axis = wrap_axis(args[1], len(source.size))
    if axis is None or source.device != index.device:
        return None
    for at, (have, want) in enumerate(zip(source.size, index.size, strict=True)):
        if at != axis and want > have:
            return None
    return contiguous(cache, index.size, source.dtype, source.device)


@shape_rule(
    aten.slice_scatter.default, aten.select_scatter.default, aten.tril.default, aten.triu.default
)
def _changed_copy(cache: OpCache, func: Any, args: Args, kwargs: Kwargs) -> Outcome | None:
    """A copy of the first argument with some elements replaced; row-major sources only."""
    source = args[0].facts
    if source.bits or source.stride != contiguous_stride(source.size) or len(source.size) < 2:
        return None
    if len(args) > 1 and isinstance(args[1], torch.Tensor):
        view = aten.slice.Tensor if func is aten.slice_scatter.default else aten.select.int
        part = view(args[0].meta_tensor, *args[2:], **kwargs)
        other = facts_of(args[1])
        if tuple(part.shape) != other.size or other.dtype is not source.dtype:
            return None
    return contiguous(cache, source.size, source.dtype, source.device)


@shape_rule(aten.channel_shuffle.default)
def _channel_shuffle(cache: OpCache, func: Any, args: Args, kwargs: Kwargs) -> Outcome | None:
    """The CPU's kernel copies where torch's decomposition may give a view (one group)."""
    source, groups = args[0].facts, args[1]
    if source.bits or source.device.type != "cpu" or len(source.size) < 3 or groups <= 0:
        return None
    if source.size[1] % groups:
        return None
    stride = suggested_stride(source)
    return Fresh(cache.facts(source.size, stride, 0, source.dtype, source.device))
