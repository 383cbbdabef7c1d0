"""Shape rules: convolution and pooling."""

from __future__ import annotations

from typing import Any

import torch

from dynamo.shapes.facts import Fresh, OpCache, Outcome, Several, contiguous_stride
from dynamo.shapes.iteration import channels_last_stride, is_channels_last
from dynamo.shapes.rules.table import Args, Kwargs, argument, shape_rule
from dynamo.shapes.rules.windows_backward import convolved_stride, transposed_convolution

aten = torch.ops.aten


@shape_rule(aten.convolution.default)
def _convolution(cache: OpCache, func: Any, args: Args, kwargs: Kwargs) -> Outcome | None:
    source, weight = args[0].facts, args[1].facts
    stride, padding, dilation, transposed, _, groups = args[3:9]
    spatial = len(source.size) - 2
    if transposed:
        return transposed_convolution(cache, args)
    if spatial not in (1, 2, 3) or source.device != weight.device:
        return None
    if len(weight.size) != spatial + 2 or source.size[1] != weight.size[1] * groups:
        return None
    if source.dtype is not weight.dtype or weight.size[0] % groups or 0 in source.size:
        return None
    if args[2] is not None and args[2].facts.size != weight.size[:1]:
        return None

    def along(values: Any, axis: int) -> int:
        return int(values[axis] if len(values) > 1 else values[0])

    extents = []
    for axis in range(spatial):
        reach = along(dilation, axis) * (weight.size[axis + 2] - 1) + 1
        room = source.size[axis + 2] + 2 * along(padding, axis) - reach
        if room < 0 or along(stride, axis) <= 0:
            return None
        extents.append(room // along(stride, axis) + 1)
    size = (source.size[0], weight.size[0], *extents)
    made = convolved_stride(source, weight, size, groups)
    return Fresh(cache.facts(size, made, 0, source.dtype, source.device))


def _pair(values: Any, default: Any = None) -> tuple[int, int] | None:
    if not values:
        return default
    return (values[0], values[0]) if len(values) == 1 else tuple(values)  # type: ignore[return-value]


@shape_rule(aten.max_pool2d_with_indices.default, aten.avg_pool2d.default)
def _pool(cache: OpCache, func: Any, args: Args, kwargs: Kwargs) -> Outcome | None:
    source = args[0].facts
    kernel = _pair(args[1])
    stride = _pair(argument(func, "stride", args, kwargs), kernel)
    padding = _pair(argument(func, "padding", args, kwargs), (0, 0))
    dilation = _pair(argument(func, "dilation", args, kwargs), (1, 1))
    ceil_mode = argument(func, "ceil_mode", args, kwargs)
    if ceil_mode or len(source.size) != 4 or 0 in source.size:
        return None
    assert kernel and stride and padding and dilation
    extents = []
    for axis in (0, 1):
        reach = dilation[axis] * (kernel[axis] - 1) + 1
        room = source.size[axis + 2] + 2 * padding[axis] - reach
        if room < 0 or padding[axis] * 2 > kernel[axis] or stride[axis] <= 0:
            return None
        extents.append(room // stride[axis] + 1)
    size = (*source.size[:2], *extents)
    last = is_channels_last(source.size, source.stride)
    made = channels_last_stride(size) if last else contiguous_stride(size)
    values = Fresh(cache.facts(size, made, 0, source.dtype, source.device))
    if func is aten.avg_pool2d.default:
        return values
    return Several(tuple, (values, Fresh(cache.facts(size, made, 0, torch.int64, source.device))))


@shape_rule(aten._adaptive_avg_pool2d.default)
def _adaptive_pool(cache: OpCache, func: Any, args: Args, kwargs: Kwargs) -> Outcome | None:
    source, wanted = args[0].facts, tuple(args[1])
    if len(source.size) != 4 or 0 in source.size or any(extent <= 0 for extent in wanted):
        return None
    size = (*source.size[:2], *wanted)
    last = is_channels_last(source.size, source.stride)
    made = channels_last_stride(size) if last else contiguous_stride(size)
    return Fresh(cache.facts(size, made, 0, source.dtype, source.device))
