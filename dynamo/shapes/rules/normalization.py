"""Shape rules: layer, batch and group norm."""

from __future__ import annotations

from typing import Any

import torch

from dynamo.shapes.facts import Facts, Fresh, OpCache, Outcome, Several, contiguous_stride
from dynamo.shapes.rules.measured import measure
from dynamo.shapes.rules.table import (
    Args,
    Kwargs,
    common_layout,
    contiguous,
    laid_out,
    shape_rule,
    suggested_stride,
    wanted,
)

aten = torch.ops.aten
_FLOATS = (torch.float32, torch.float64)


@shape_rule(aten.native_layer_norm.default)
def _layer_norm(cache: OpCache, func: Any, args: Args, kwargs: Kwargs) -> Outcome | None:
    source, normalized = args[0].facts, tuple(args[1])
    rank = len(normalized)
    if not rank or source.size[-rank:] != normalized or source.device.type != "cpu":
        return None
    for parameter in args[2:4]:
        if parameter is None:
            continue
        facts = parameter.facts
        if facts.size != normalized or facts.dtype is not source.dtype:
            return None
    if source.dtype not in (torch.float32, torch.float64):
        return None
    statistics = (*source.size[:-rank], *(1,) * rank)
    small = contiguous(cache, statistics, source.dtype, source.device)
    return Several(
        tuple, (contiguous(cache, source.size, source.dtype, source.device), small, small)
    )


@shape_rule(aten._native_batch_norm_legit_no_training.default, aten.native_batch_norm.default)
def _batch_norm(cache: OpCache, func: Any, args: Args, kwargs: Kwargs) -> Outcome | None:
    source = args[0].facts
    if len(source.size) < 2 or 0 in source.size:
        return None
    if source.device.type == "cuda" and func is aten.native_batch_norm.default:
        return _batch_norm_on_gpu(cache, args)
    if source.device.type != "cpu":
        return None
    odd = 1 in source.size and source.stride != contiguous_stride(source.size)
    if odd or source.dtype not in _FLOATS or not _vectors_fit(args[1:5], source):
        return measure(cache, func, args, kwargs)
    training = func is aten.native_batch_norm.default and args[5]
    moments = contiguous(cache, source.size[1:2] if training else (0,), source.dtype, source.device)
    stride = suggested_stride(source)
    normal = Fresh(cache.facts(source.size, stride, 0, source.dtype, source.device))
    return Several(tuple, (normal, moments, moments))


def _batch_norm_on_gpu(cache: OpCache, args: tuple[Any, ...]) -> Outcome | None:
    """In training: statistics of half precision are float32."""
    source, stride = args[0].facts, suggested_stride(args[0].facts)
    given = [vector.facts for vector in args[1:5] if vector is not None]
    if not args[5] or 1 in source.size or source.stride != stride or source.bits:
        return None
    if any(each.size != source.size[1:2] for each in given):
        return None
    kind = source.dtype if source.dtype in _FLOATS else torch.float32
    moments = contiguous(cache, source.size[1:2], kind, source.device)
    normal = Fresh(cache.facts(source.size, stride, 0, source.dtype, source.device))
    return Several(tuple, (normal, moments, moments))


def _vectors_fit(vectors: Any, source: Facts) -> bool:
    """True where these parameters and statistics (or None) are one number for each channel."""
    return all(
        vector is None
        or (vector.facts.size == source.size[1:2] and vector.facts.dtype is source.dtype)
        for vector in vectors
    )


@shape_rule(aten._native_batch_norm_legit_functional.default)
def _batch_norm_functional(cache: OpCache, func: Any, args: Args, kwargs: Kwargs) -> Outcome | None:
    if not args[5] or args[3] is None or args[4] is None:
        return None
    on_cpu, statistics_dtype = args[0].facts.device.type == "cpu", args[3].facts.dtype
    if on_cpu and args[0].facts.dtype not in _FLOATS:
        return measure(cache, func, args, kwargs)
    outcome = _batch_norm(cache, aten.native_batch_norm.default, args, kwargs)
    if not isinstance(outcome, Several) or args[4].facts.dtype is not statistics_dtype:
        return None
    if not on_cpu:
        statistics_dtype = torch.promote_types(statistics_dtype, outcome.items[1].facts.dtype)  # type: ignore[union-attr]
    vector = contiguous(cache, args[3].facts.size, statistics_dtype, args[3].facts.device)
    return Several(tuple, (*outcome.items, vector, vector))


@shape_rule(aten.native_batch_norm_backward.default)
def _batch_norm_backward(cache: OpCache, func: Any, args: Args, kwargs: Kwargs) -> Outcome | None:
    grad, source = args[0].facts, args[1].facts
    layout = common_layout([grad, source])
    if len(source.size) < 2 or 0 in source.size or grad.size != source.size:
        return None
    fits = _vectors_fit(args[2:7], source) and args[2] is not None
    if layout is None or source.dtype not in _FLOATS or not fits:
        return measure(cache, func, args, kwargs)
    vector = contiguous(cache, source.size[1:2], source.dtype, source.device)
    made = laid_out(cache, source.size, source.dtype, layout, source.device)
    return wanted([made, vector, vector], args[9])


@shape_rule(aten.native_layer_norm_backward.default)
def _layer_norm_backward(cache: OpCache, func: Any, args: Args, kwargs: Kwargs) -> Outcome | None:
    grad, source = args[0].facts, args[1].facts
    normalized = tuple(args[2])
    if grad.size != source.size or source.size[len(source.size) - len(normalized) :] != normalized:
        return None
    if grad.bits or source.bits or not _is_written_in_rows(source) or 0 in source.size:
        return None
    if source.dtype not in _FLOATS or grad.dtype is not source.dtype:
        return None
    for parameter, needed in zip(args[5:7], args[7][1:], strict=True):
        if parameter is None:
            if needed:
                return None
        elif parameter.facts.size != normalized or parameter.facts.dtype is not source.dtype:
            return None
    made = contiguous(cache, source.size, source.dtype, source.device)
    vector = contiguous(cache, normalized, source.dtype, source.device)
    return wanted([made, vector, vector], args[7])


def _is_written_in_rows(source: Facts) -> bool:
    """Whether the kernel writes a row-major gradient, whatever the strides of what it reads. Torch
    computes strides from a decomposition, which keeps those of the gradient that is given."""
    return source.device.type in ("cpu", "cuda")


@shape_rule(aten._fused_rms_norm_backward.default)
def _rms_norm_backward(cache: OpCache, func: Any, args: Args, kwargs: Kwargs) -> Outcome | None:
    """On a GPU alone: elsewhere it is taken apart before its gradient is asked for."""
    (grad, source), normalized, weight = (each.facts for each in args[:2]), tuple(args[2]), args[4]
    if grad.size != source.size or source.size[len(source.size) - len(normalized) :] != normalized:
        return None
    if grad.bits or source.bits or source.device.type != "cuda" or 0 in source.size:
        return None
    if source.dtype not in _FLOATS or grad.dtype is not source.dtype or weight is None:
        return None
    if weight.facts.size != normalized or weight.facts.dtype is not source.dtype:
        return None
    made = contiguous(cache, source.size, source.dtype, source.device)
    vector = contiguous(cache, normalized, source.dtype, source.device)
    return wanted([made, vector], args[5])


@shape_rule(aten.native_group_norm.default)
def _group_norm(cache: OpCache, func: Any, args: Args, kwargs: Kwargs) -> Outcome | None:
    source, (batch, channels, inner, groups) = args[0].facts, args[3:7]
    layout, statistics_dtype = common_layout([source]), _dtype_of_statistics(source, args[1:3])
    if layout is None or statistics_dtype is None:
        # From torch 2.14 on, fakes are row-major, whatever the kernel of the CPU gives.
        return None if 0 in source.size else measure(cache, func, args, kwargs)
    if groups <= 0 or channels % groups or source.size[:2] != (batch, channels):
        return None
    if source.numel() != batch * channels * inner:
        return None
    made = laid_out(cache, source.size, source.dtype, layout, source.device)
    statistics = contiguous(cache, (batch, groups), statistics_dtype, source.device)
    return Several(tuple, (made, statistics, statistics))


def _dtype_of_statistics(source: Facts, vectors: Any) -> torch.dtype | None:
    """Of a group norm; parameters of half precision images may be float32. None for the rest."""
    given = [vector.facts for vector in vectors if vector is not None]
    if any(each.size != source.size[1:2] for each in given):
        return None
    kinds = {each.dtype for each in given} or {source.dtype}
    if kinds == {source.dtype} and source.dtype in (*_FLOATS, torch.bfloat16, torch.float16):
        return source.dtype
    mixed = kinds == {torch.float32} and source.dtype in (torch.bfloat16, torch.float16)
    return torch.float32 if mixed else None


@shape_rule(aten.native_group_norm_backward.default)
def _group_norm_backward(cache: OpCache, func: Any, args: Args, kwargs: Kwargs) -> Outcome | None:
    grad, source, weight = args[0].facts, args[1].facts, args[4]
    layout = common_layout([grad, source])
    if layout is None or source.dtype not in _FLOATS or grad.size != source.size:
        return None
    if not _vectors_fit([weight], source) or (weight is None and any(args[9][1:])):
        return None
    made = laid_out(cache, source.size, source.dtype, layout, source.device)
    vector = contiguous(cache, source.size[1:2], source.dtype, source.device)
    return wanted([made, vector, vector], args[9])
