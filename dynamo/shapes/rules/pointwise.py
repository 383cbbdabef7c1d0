"""Shape rules: pointwise operations, copies and overwriting ones."""

from __future__ import annotations

import functools
from typing import Any

import torch

from dynamo.shapes.facts import (
    Facts,
    Fresh,
    OpCache,
    Outcome,
    Same,
    Several,
    contiguous_stride,
    facts_of,
)
from dynamo.shapes.iteration import (
    broadcast_sizes,
    channels_last_stride,
    elementwise_stride,
    is_dense,
    probe,
)
from dynamo.shapes.rules.table import (
    Args,
    Kwargs,
    Rule,
    contiguous,
    is_fake,
    shape_rule,
    shared_device,
    tensors_of,
)

aten = torch.ops.aten


def _pointwise(cache: OpCache, func: Any, args: Args, kwargs: Kwargs) -> Outcome | None:
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
    order = _ORDER.get(func)
    operands = facts if order is None else [facts[at] for at in order]
    if _takes_number(func, args):
        operands = [*operands, cache.facts((), (), 0, torch.float32, device)]
    stride = elementwise_stride(_cast(func, operands, result), size)
    if isinstance(result, torch.Tensor):
        return Fresh(cache.facts(size, stride, 0, result.dtype, device))
    items = tuple(Fresh(cache.facts(size, stride, 0, each.dtype, device)) for each in result)
    return Several(tuple, items)


def _cast(func: Any, operands: list[Facts], result: Any) -> list[Facts]:
    """On a CPU the iterator's operands are copies in the dtype that it computes in, whose gaps and
    repetitions are gone."""
    if operands[0].device.type != "cpu" or not isinstance(result, torch.Tensor):
        return operands
    dtype = result.dtype
    if dtype is torch.bool:
        dtypes = [each.dtype for each in operands if each.size]
        dtype = functools.reduce(torch.promote_types, dtypes, dtype)
    skipped = func is aten.where.self  # a mask is no operand of the computation
    return [
        each if each.dtype == dtype or at < skipped or is_dense(each.size, each.stride)
        else Facts(each.size, elementwise_stride([each], each.size), 0, dtype, each.device, 0)
        for at, each in enumerate(operands)
    ]


# The iterator of these gets the tensors in another order than the operation.
_ORDER: dict[Any, tuple[int, ...]] = {
    aten.leaky_relu_backward.default: (1, 0),
    aten.threshold_backward.default: (1, 0),
    aten._prelu_kernel_backward.default: (1, 2, 0),
}


_NUMBER_OVERLOADS: frozenset[str] = frozenset(
    {"Scalar", "Scalar_Other", "Scalar_Self", "Scalar_Tensor", "ScalarOther", "ScalarSelf"}
)


def _takes_number(func: Any, args: tuple[Any, ...]) -> bool:
    """True where a number becomes a tensor without axes, which then broadcasts."""
    if func._overloadname in _NUMBER_OVERLOADS:
        return True
    declared = func._schema.arguments
    return any(
        isinstance(arg, (int, float, complex)) and isinstance(declared[at].type, torch.TensorType)
        for at, arg in enumerate(args)
    )


# Tagged pointwise, but with memory rules of their own.
_NOT_ELEMENTWISE: frozenset[str] = frozenset(
    {
        "masked_fill", "clone", "copy_", "_to_copy", "fill", "native_dropout_backward",
        "frexp", "rrelu_with_noise", "rrelu_with_noise_functional", "polar", "complex",
        "special_polygamma", "polygamma", "ldexp",
    }
)  # fmt: skip


def pointwise_outcome(func: Any) -> Rule | None:
    """The rule for an operation that is tagged pointwise."""
    if func._schema.name.removeprefix("aten::") in _NOT_ELEMENTWISE:
        return None
    if any(argument.is_out for argument in func._schema.arguments):
        return None
    return _pointwise


# Elementwise by TensorIterator, without the tag (in some versions of torch).
shape_rule(
    aten.leaky_relu.default, aten.leaky_relu_.default,
    aten.hardswish.default, aten.hardswish_.default, aten.hardswish_backward.default,
    aten.floor_divide.default, aten.floor_divide.Scalar, aten.floor_divide_.Tensor,
    aten.floor_divide_.Scalar, aten._prelu_kernel_backward.default, aten.mish_backward.default,
    aten.hardtanh_backward.default, aten.hardsigmoid_backward.default,
    aten.leaky_relu_backward.default, aten.elu_backward.default, aten.softplus_backward.default,
)(_pointwise)  # fmt: skip


@shape_rule(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def _masked_fill(cache: OpCache, func: Any, args: Args, kwargs: Kwargs) -> Outcome | None:
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
def _copy(cache: OpCache, func: Any, args: Args, kwargs: Kwargs) -> Outcome | None:
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
)  # fmt: skip
def _like(cache: OpCache, func: Any, args: Args, kwargs: Kwargs) -> Outcome | None:
    kwargs = {name: value for name, value in kwargs.items() if name != "pin_memory" or value}
    if "pin_memory" in kwargs:
        return None
    return _copy(cache, func, args[:1], kwargs)


@shape_rule(aten.masked_fill_.Scalar, aten.masked_fill_.Tensor)
def _masked_fill_in_place(cache: OpCache, func: Any, args: Args, kwargs: Kwargs) -> Outcome | None:
    if len(args) != 3 or kwargs:
        return None
    target, mask = args[0].facts, args[1].facts
    if target.bits or target.has_internal_overlap() or mask.dtype is not torch.bool:
        return None
    if shared_device(tensors_of(args, kwargs)) is None:
        return None
    if broadcast_sizes([target.size, mask.size]) != target.size:
        return None
    probe(func, args, kwargs, 1, is_fake)
    return Same(0)


@shape_rule(aten.pow.Scalar)
def _power_of_number(cache: OpCache, func: Any, args: Args, kwargs: Kwargs) -> Outcome | None:
    facts = args[1].facts
    if facts.bits or kwargs:
        return None
    dtype = probe(func, args, kwargs, 1, is_fake).dtype
    return contiguous(cache, facts.size, dtype, facts.device)


@shape_rule(aten._prelu_kernel.default)
def _prelu(cache: OpCache, func: Any, args: Args, kwargs: Kwargs) -> Outcome | None:
    source, weight = args[0].facts, args[1].facts
    if broadcast_sizes([source.size, weight.size]) != source.size:
        return None
    if source.dtype is not weight.dtype or source.device != weight.device or weight.bits:
        return None
    return _copy(cache, func, args[:1], {})


@shape_rule(aten.copy_.default, aten.fill_.Scalar, aten.zero_.default)
def _overwrite(cache: OpCache, func: Any, args: Args, kwargs: Kwargs) -> Outcome | None:
    target = args[0].facts
    if target.has_internal_overlap():
        return None
    if len(args) > 1 and isinstance(args[1], torch.Tensor):
        if broadcast_sizes([target.size, facts_of(args[1]).size]) != target.size:
            return None
    return Same(0)
