"""Shape rules: transposed convolution, backward of convolution and pooling, on the CPU."""

from __future__ import annotations

from math import prod
from typing import Any

import torch

from dynamo.shapes.facts import Facts, Fresh, OpCache, Outcome, contiguous_stride
from dynamo.shapes.iteration import channels_last_stride, is_channels_last
from dynamo.shapes.rules.table import (
    Args,
    Kwargs,
    common_layout,
    contiguous,
    laid_out,
    shape_rule,
    wanted,
)

aten = torch.ops.aten
_FLOATS = (torch.float32, torch.float64)


def transposed_convolution(cache: OpCache, args: tuple[Any, ...]) -> Outcome | None:
    """`convolution` with its flag `transposed`, over one to three spatial axes."""
    source, weight, bias = args[0].facts, args[1].facts, args[2]
    stride, padding, dilation, _, extra, groups = args[3:9]
    spatial = len(source.size) - 2
    if spatial not in (1, 2, 3) or len(weight.size) != spatial + 2:
        return None
    if any(each.bits or 0 in each.size for each in (source, weight)):
        return None
    if source.device != weight.device or not _knows_layout(source):
        return None
    if source.dtype is not weight.dtype or not source.dtype.is_floating_point:
        return None
    if source.size[1] != weight.size[0] or groups <= 0 or source.size[1] % groups:
        return None
    channels = weight.size[1] * groups
    if bias is not None and bias.facts.size != (channels,):
        return None
    extents = []
    for axis in range(spatial):
        step, pad, reach, more = (
            values[axis] if len(values) > 1 else values[0]
            for values in (stride, padding, dilation, extra)
        )
        extent = (source.size[axis + 2] - 1) * step - 2 * pad + more + 1
        extent += reach * (weight.size[axis + 2] - 1)
        if extent <= 0 or step <= 0 or reach <= 0 or not 0 <= more < max(step, reach):
            return None
        extents.append(extent)
    size = (source.size[0], channels, *extents)
    made = convolved_stride(source, weight, size, groups)
    return Fresh(cache.facts(size, made, 0, source.dtype, source.device))


def _knows_layout(source: Facts) -> bool:
    """Whether a transposed convolution's result is known to lie as `convolved_stride` says: on a
    GPU where cuDNN computes it, which has no channels-last kernels of double precision."""
    if source.device.type == "cpu":
        return True
    is_cudnn = source.device.type == "cuda" and torch.backends.cudnn.enabled
    return is_cudnn and source.dtype is not torch.float64


def convolved_stride(
    source: Facts, weight: Facts, size: tuple[int, ...], groups: int
) -> tuple[int, ...]:
    """Strides of a convolution's result of this size: channels last where either operand is. On the
    CPU only oneDNN's kernels know that layout over three axes."""
    if not any(is_channels_last(each.size, each.stride) for each in (source, weight)):
        return contiguous_stride(size)
    if source.device.type == "cpu" and len(size) == 5 and not _is_onednn(source, weight, groups):
        return contiguous_stride(size)
    return channels_last_stride(size)


def _is_onednn(source: Facts, weight: Facts, groups: int) -> bool:
    """Whether ATen gives this convolution to oneDNN: for half precision it depends on the
    processor, and small ones of float32 are its own (`use_mkldnn` in Convolution.cpp)."""
    if not torch.backends.mkldnn.is_available() or not torch._C._get_mkldnn_enabled():
        return False
    if source.dtype is torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    if source.dtype is torch.float16:
        return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())
    is_large = source.size[0] > 1 or min(weight.size[-2:]) > 3 or prod(source.size[:4]) > 20480
    return source.dtype is torch.float32 and (groups > 1 or is_large)


@shape_rule(aten.convolution_backward.default)
def _convolution_backward(cache: OpCache, func: Any, args: Args, kwargs: Kwargs) -> Outcome | None:
    grad, source, weight = (arg.facts for arg in args[:3])
    layout = common_layout([source, weight])
    if layout is None or source.dtype not in _FLOATS or len(source.size) not in (3, 4):
        return None
    if grad.dtype is not source.dtype or weight.dtype is not source.dtype:
        return None
    channels = weight.size[1] * args[9] if args[7] else weight.size[0]
    if grad.size[:2] != (source.size[0], channels) or grad.bits or grad.device.type != "cpu":
        return None
    gradients = [
        laid_out(cache, facts.size, source.dtype, layout, source.device)
        for facts in (source, weight)
    ]
    bias = contiguous(cache, (channels,), source.dtype, source.device)
    return wanted([*gradients, bias], args[10])


@shape_rule(
    aten.max_pool2d_with_indices_backward.default, aten.avg_pool2d_backward.default,
    aten._adaptive_avg_pool2d_backward.default,
)  # fmt: skip
def _pool_backward(cache: OpCache, func: Any, args: Args, kwargs: Kwargs) -> Outcome | None:
    """The gradient has the size and layout of the pooled tensor."""
    grad, source = args[0].facts, args[1].facts
    layout = common_layout([source])
    if layout is None or source.dtype not in _FLOATS or len(source.size) != 4:
        return None
    if grad.dtype is not source.dtype or grad.size[:2] != source.size[:2]:
        return None
    return laid_out(cache, source.size, source.dtype, layout, source.device)
