"""Shape rules: reductions, and operations along one axis."""

from __future__ import annotations

from typing import Any

import torch

from dynamo.shapes.facts import OpCache, Outcome, Several
from dynamo.shapes.iteration import probe
from dynamo.shapes.rules.table import (
    Args,
    Kwargs,
    argument,
    contiguous,
    is_fake,
    shape_rule,
    wrap_axis,
)

aten = torch.ops.aten


def _reduced_size(size: tuple[int, ...], axes: Any, keepdim: bool) -> tuple[int, ...] | None:
    rank = len(size)
    if axes is None or axes == []:
        chosen = set(range(rank))
    else:
        wrapped = [wrap_axis(axis, rank) for axis in (axes if isinstance(axes, list) else [axes])]
        if None in wrapped or len(set(wrapped)) != len(wrapped):
            return None
        chosen = set(wrapped)  # type: ignore[arg-type]
    if keepdim:
        return tuple(1 if axis in chosen else extent for axis, extent in enumerate(size))
    return tuple(extent for axis, extent in enumerate(size) if axis not in chosen)


@shape_rule(
    aten.sum.default, aten.sum.dim_IntList, aten.mean.default, aten.mean.dim, aten.amax.default,
    aten.amin.default, aten.any.default, aten.any.dim, aten.all.default, aten.all.dim,
    aten.prod.default, aten.prod.dim_int, aten.argmax.default, aten.argmin.default,
    aten.max.default, aten.min.default, aten.max.dim, aten.min.dim, aten.var.correction,
    aten.std.correction, aten.var_mean.correction, aten.linalg_vector_norm.default,
    aten.logsumexp.default, aten.norm.ScalarOpt_dim, aten.norm.Scalar,
)  # fmt: skip
def _reduction(cache: OpCache, func: Any, args: Args, kwargs: Kwargs) -> Outcome | None:
    source = args[0].facts
    if 0 in source.size:  # the meta kernels of min and max do not refuse it
        func(torch.empty(source.size, dtype=source.dtype), *args[1:], **kwargs)
        return None
    if source.bits or len(source.size) > 10:
        return None
    axes = argument(func, "dim", args, kwargs)
    if isinstance(axes, (list, tuple)):
        axes = list(axes)
    size = _reduced_size(source.size, axes, bool(argument(func, "keepdim", args, kwargs)))
    if size is None:
        return None
    result = probe(func, args, kwargs, 2, is_fake)
    if isinstance(result, torch.Tensor):
        return contiguous(cache, size, result.dtype, source.device)
    return Several(
        tuple, tuple(contiguous(cache, size, each.dtype, source.device) for each in result)
    )


@shape_rule(aten._softmax.default, aten._log_softmax.default)
def _along_axis(cache: OpCache, func: Any, args: Args, kwargs: Kwargs) -> Outcome | None:
    source = args[0].facts
    result = probe(func, args, kwargs, 1, is_fake)  # the meta kernel checks no axis
    if source.bits or source.device.type != "cpu":
        return None
    return contiguous(cache, source.size, result.dtype, source.device)


@shape_rule(aten._softmax_backward_data.default, aten._log_softmax_backward_data.default)
def _softmax_backward(cache: OpCache, func: Any, args: Args, kwargs: Kwargs) -> Outcome | None:
    """Row by row on all devices. (torch's meta function gives one of them the gradient's strides.)
    """
    grad = args[0].facts
    if grad.size != args[1].facts.size or grad.bits:
        return None
    return contiguous(cache, grad.size, args[3], grad.device)
