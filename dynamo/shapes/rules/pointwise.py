"""Shape rules: pointwise operations, copies and overwriting ones."""

from __future__ import annotations

from typing import Any

import torch

from dynamo.shapes.facts import Facts, Fresh, OpCache, Outcome, Same, Several, contiguous_stride
from dynamo.shapes.iteration import (
    broadcast_sizes,
    channels_last_stride,
    elementwise_stride,
    is_dense,
    probe,
)
from dynamo.shapes.rules.table import (
    Rule,
    contiguous,
    is_fake,
    shape_rule,
    shared_device,
    tensors_of,
)

aten = torch.ops.aten


def _pointwise(
    cache: OpCache, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Outcome | None:
    tensors = tensors_of(args, kwargs)
    if not tensors or "out" in kwargs:
        return None
    facts = [tensor.facts for tensor in tensors]
    device = shared_device(tensors)
    size = broadcast_sizes([each.size for each in facts])
    if size is None or device is None:
        return None
    if any(each.bits for each in facts):
        return None
    result = probe(func, args, kwargs, 1, is_fake)
    if func._schema.is_mutable:
        target = facts[0]
        if size != target.size or target.has_internal_overlap() or result.dtype != target.dtype:
            return None
        return Same(0) if args and args[0] is tensors[0] else None
    stride = elementwise_stride(facts, size)
    if isinstance(result, torch.Tensor):
        return Fresh(cache.facts(size, stride, 0, result.dtype, device))
    items = tuple(Fresh(cache.facts(size, stride, 0, each.dtype, device)) for each in result)
    return Several(tuple, items)


# Tagged pointwise, but with memory rules of their own.
_NOT_ELEMENTWISE: frozenset[str] = frozenset(
    {
        "masked_fill", "clone", "copy_", "_to_copy", "fill", "native_dropout_backward",
        "frexp", "rrelu_with_noise", "rrelu_with_noise_functional", "polar", "complex",
        "special_polygamma", "polygamma",
    }
)  # fmt: skip


def pointwise_outcome(func: Any) -> Rule | None:
    """The rule for an operation that is tagged pointwise."""
    if func._schema.name.removeprefix("aten::") in _NOT_ELEMENTWISE:
        return None
    if any(argument.is_out for argument in func._schema.arguments):
        return None
    return _pointwise


@shape_rule(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def _masked_fill(
    cache: OpCache, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Outcome | None:
    if len(args) != 3:
        return None
    tensors = tensors_of(args, kwargs)
    device, source, mask = shared_device(tensors), args[0].facts, args[1].facts
    size = broadcast_sizes([source.size, mask.size])
    if size is None or device is None or mask.dtype is not torch.bool or source.bits:
        return None
    probe(func, args, kwargs, 1, is_fake)
    return contiguous(cache, size, source.dtype, device)


@shape_rule(aten.clone.default, aten._to_copy.default)
def _copy(
    cache: OpCache, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Outcome | None:
    source = args[0].facts
    if len(args) > 1 or source.bits or kwargs.get("layout") not in (None, torch.strided):
        return None
    stride = _stride_in_format(source, kwargs.get("memory_format"))
    if stride is None:
        return None
    device = kwargs.get("device") or source.device
    if device.type == "cuda" and device.index is None:
        return None
    dtype = kwargs.get("dtype") or source.dtype
    return Fresh(cache.facts(source.size, stride, 0, dtype, device))


def _stride_in_format(source: Facts, memory_format: Any) -> tuple[int, ...] | None:
    if memory_format is torch.contiguous_format:
        return contiguous_stride(source.size)
    if memory_format is torch.channels_last and len(source.size) == 4:
        return channels_last_stride(source.size)
    if memory_format is None or memory_format is torch.preserve_format:
        if is_dense(source.size, source.stride):
            return source.stride
        return elementwise_stride([source], source.size)
    return None


@shape_rule(
    aten.empty_like.default, aten.zeros_like.default, aten.ones_like.default,
    aten.full_like.default, aten.rand_like.default, aten.randn_like.default,
    aten.bernoulli.default, aten.bernoulli.p,
)  # fmt: skip
def _like(
    cache: OpCache, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Outcome | None:
    kwargs = {name: value for name, value in kwargs.items() if name != "pin_memory" or value}
    if "pin_memory" in kwargs:
        return None
    return _copy(cache, func, args[:1], kwargs)


@shape_rule(aten.copy_.default, aten.fill_.Scalar, aten.zero_.default)
def _overwrite(
    cache: OpCache, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Outcome | None:
    target = args[0].facts
    if target.has_internal_overlap():
        return None
    if len(args) > 1 and isinstance(args[1], torch.Tensor):
        if broadcast_sizes([target.size, args[1].facts.size]) != target.size:
            return None
    return Same(0)
