"""Shape rules: layer norm and batch norm."""

from __future__ import annotations

from typing import Any

import torch

from dynamo.shapes.facts import Fresh, OpCache, Outcome, Several
from dynamo.shapes.rules.table import contiguous, shape_rule, suggested_stride

aten = torch.ops.aten


@shape_rule(aten.native_layer_norm.default)
def _layer_norm(
    cache: OpCache, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Outcome | None:
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
def _batch_norm(
    cache: OpCache, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Outcome | None:
    source = args[0].facts
    if len(source.size) < 2 or 0 in source.size or source.device.type != "cpu":
        return None
    for parameter in args[1:5]:
        if parameter is not None and (
            parameter.facts.size != source.size[1:2] or parameter.facts.dtype is not source.dtype
        ):
            return None
    if source.dtype not in (torch.float32, torch.float64):
        return None
    training = func is aten.native_batch_norm.default and args[5]
    moments = contiguous(cache, source.size[1:2] if training else (0,), source.dtype, source.device)
    stride = suggested_stride(source)
    normal = Fresh(cache.facts(source.size, stride, 0, source.dtype, source.device))
    return Several(tuple, (normal, moments, moments))
