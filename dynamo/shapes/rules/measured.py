"""Shape rules by running the real kernel on zeros: operations on the CPU that take linear time.

For operations whose strides follow no simple rule, and for those whose meta kernels import SymPy
(half a second for the first of them). What has a meta kernel in C++ that gives the right strides is
left to it. Only such are in the table whose outcome and errors depend on sizes alone (never on
values, given that 0 is a valid index) and that draw no random numbers. Large arguments are not for
these rules.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from dynamo.shapes.facts import Facts, Fresh, OpCache, Outcome, Plain, Several
from dynamo.shapes.rules.table import Args, Kwargs, shape_rule, tensors_of

aten = torch.ops.aten
_LIMIT = 1 << 26  # bytes


def measure(cache: OpCache, func: Any, args: Args, kwargs: Kwargs) -> Outcome | None:
    """What the kernel gives for zeros; None on other devices and for large arguments."""
    facts = [tensor.facts for tensor in tensors_of(args, kwargs)]
    if not facts or any(each.bits or each.device.type != "cpu" for each in facts):
        return None
    if func in _INDEXED and any(each.dtype in (torch.bool, torch.uint8) for each in facts[1:]):
        return None
    bound = _GROWTH.get(func)
    if bound is not None and bound(*args) * facts[0].dtype.itemsize > _LIMIT:
        return None
    if sum(each.nbytes for each in facts) > _LIMIT:
        return None
    with torch.no_grad(), torch._C._DisableTorchDispatch():
        zeros = [_zeros(arg) for arg in args]
        result = func(*zeros, **{name: _zeros(value) for name, value in kwargs.items()})
    if isinstance(result, torch.Tensor):
        return _fresh(cache, result)
    return Several(tuple, tuple(_fresh(cache, item) for item in result))


def _fresh(cache: OpCache, result: torch.Tensor | None) -> Outcome:
    return Plain(None) if result is None else Fresh(cache.facts_of(result, result.device))


def _zeros(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        facts: Facts = value.facts  # type: ignore[attr-defined]
        zeros = torch.zeros(facts.nbytes // facts.dtype.itemsize, dtype=facts.dtype)
        return zeros.as_strided(facts.size, facts.stride, facts.offset)
    if isinstance(value, (list, tuple)):
        return [_zeros(item) for item in value]
    return value


def _numel(tensor: Any) -> int:
    return int(tensor.facts.numel())


def _indexed(source: Any, indices: Any) -> int:
    """At most the elements of `source[indices]`."""
    chosen = 1
    rest = list(source.facts.size) or [1]
    for axis, index in enumerate(indices):
        if index is not None:
            chosen *= max(_numel(index), 1)
            rest[axis] = 1
    return chosen * math.prod(rest)


def _padded(source: Any, pads: Any, *_: Any) -> int:
    size = list(source.facts.size)
    for axis in range(len(pads) // 2):
        size[-1 - axis] += max(pads[2 * axis], 0) + max(pads[2 * axis + 1], 0)
    return math.prod(size)


def _resized(source: Any, extents: Any, *_: Any) -> int:
    return math.prod(source.facts.size[:2]) * math.prod(extents)


def _resized_by(source: Any, extents: Any, *rest: Any) -> int:
    if extents is not None:
        return _resized(source, extents)
    factors = next(each for each in reversed(rest) if each is not None)
    return math.ceil(_numel(source) * math.prod(max(factor, 1.0) for factor in factors))


# At most how many elements an operation makes, where that can exceed its arguments.
_GROWTH: dict[Any, Callable[..., int]] = {
    aten.index.Tensor: _indexed,
    aten.repeat.default: lambda x, counts: _numel(x) * math.prod(counts),
    aten.im2col.default: lambda x, kernel, *_: _numel(x) * math.prod(kernel) * 4,
    aten.reflection_pad1d.default: _padded,
    aten.reflection_pad2d.default: _padded,
    aten.replication_pad1d.default: _padded,
    aten.replication_pad2d.default: _padded,
    aten.upsample_nearest1d.default: _resized,
    aten.upsample_nearest2d.default: _resized,
    aten.upsample_bilinear2d.default: _resized,
    aten.upsample_nearest1d.vec: _resized_by,
    aten.upsample_nearest2d.vec: _resized_by,
    aten.upsample_bilinear2d.vec: _resized_by,
    aten.diag_embed.default: lambda x, *_: (_numel(x) + 1) ** 2,
    aten.select_backward.default: lambda g, size, *_: math.prod(size),
    aten.slice_backward.default: lambda g, size, *_: math.prod(size),
}
_INDEXED = frozenset({aten.index.Tensor, aten.index_put.default})

shape_rule(*_GROWTH)(measure)
shape_rule(
    aten.flip.default, aten.roll.default, aten.stack.default, aten.cumprod.default,
    aten.cumsum.default, aten.sort.default, aten.sort.stable, aten.topk.default,
    aten.index_put.default, aten.index_add.default, aten.index_copy.default,
    aten.index_fill.int_Scalar, aten.index_fill.int_Tensor, aten.scatter.src, aten.scatter.value,
    aten.scatter_add.default, aten.fill.Scalar, aten.fill.Tensor, aten.zero.default,
    aten.polar.default, aten.complex.default, aten.linalg_cross.default, aten.dot.default,
    aten.mv.default, aten.pixel_shuffle.default, aten.pixel_unshuffle.default, aten.glu.default,
    aten.glu_backward.default, aten.native_dropout_backward.default, aten.cummax.default,
    aten.cummin.default, aten.bucketize.Tensor, aten.searchsorted.Tensor, aten.median.default,
    aten.median.dim, aten.aminmax.default, aten.logcumsumexp.default, aten.trace.default,
    aten.unfold_backward.default, aten.isin.Tensor_Tensor, aten.isin.Tensor_Scalar,
)(measure)  # fmt: skip


@shape_rule(aten._embedding_bag.default, aten._embedding_bag_forward_only.default)
def _bags(cache: OpCache, func: Any, args: Args, kwargs: Kwargs) -> Outcome | None:
    """What is kept for backward depends on which kernel runs; the weights it reads are few here."""
    weight, *rest = args
    others = tensors_of(tuple(rest), kwargs)
    facts = [tensor.facts for tensor in (weight, *others)]
    if any(each.bits or each.device.type != "cpu" for each in facts) or 0 in weight.facts.size:
        return None
    if 0 in weight.facts.stride:
        return None
    padding = rest[7] if len(rest) > 7 else kwargs.get("padding_idx", -1)
    rows = min(weight.facts.size[0], max(padding, 0) + 1)
    bytes_made = rest[1].facts.numel() * weight.facts.size[1] * weight.facts.dtype.itemsize
    if sum(each.nbytes for each in facts[1:]) + bytes_made > _LIMIT:
        return None
    with torch.no_grad(), torch._C._DisableTorchDispatch():
        size = (rows, weight.facts.size[1])
        few = torch.empty_strided(size, weight.facts.stride, dtype=weight.facts.dtype)
        named = {name: _zeros(value) for name, value in kwargs.items()}
        result = func(few.zero_(), *map(_zeros, rest), **named)
    return Several(tuple, tuple(_fresh(cache, item) for item in result))
