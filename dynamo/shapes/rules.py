"""Shape rules: outcomes of frequent operations, computed without their meta kernels.

torch's meta kernels of pointwise operations and reductions are Python programs that take 0.1 to 1 ms
and import SymPy (half a second) or a whole compiler (two seconds) on first use. A rule takes the
arguments (fake tensors carry `.facts`) and gives an `Outcome`, or None for "not mine": then the meta
kernel decides, which also covers every argument that eager would refuse.
"""

from __future__ import annotations

from collections.abc import Callable
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
)
from dynamo.shapes.iteration import (
    broadcast_sizes,
    channels_last_stride,
    elementwise_stride,
    is_channels_last,
    is_dense,
    probe,
)

aten = torch.ops.aten
Rule = Callable[[OpCache, Any, tuple[Any, ...], dict[str, Any]], "Outcome | None"]

SHAPE_RULES: dict[Any, Rule] = {}


def shape_rule(*ops: Any) -> Callable[[Rule], Rule]:
    """Registers a rule for these overloads."""

    def register(rule: Rule) -> Rule:
        for op in ops:
            SHAPE_RULES[op] = rule
        return rule

    return register


def is_fake(value: Any) -> bool:
    return hasattr(value, "facts")


def tensors_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """The tensor arguments in flat order, lists included."""
    found: list[Any] = []
    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found.extend(item for item in value if isinstance(item, torch.Tensor))
    return found


def shared_device(tensors: list[Any]) -> torch.device | None:
    """The one device of all tensors, CPU scalars aside; None where they differ."""
    device: torch.device | None = None
    for tensor in tensors:
        facts = tensor.facts
        if device is None or facts.device == device:
            device = facts.device
        elif not facts.size and facts.device.type == "cpu":
            continue
        elif device.type == "cpu" and all(
            not t.facts.size for t in tensors if t.facts.device == device
        ):
            device = facts.device
        else:
            return None
    return device


def contiguous(
    cache: OpCache, size: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> Fresh:
    """A new row-major tensor."""
    return Fresh(cache.facts(size, contiguous_stride(size), 0, dtype, device))


def wrap_axis(axis: int, rank: int) -> int | None:
    """The axis as a non-negative number; None where it does not exist."""
    limit = max(rank, 1)
    if not -limit <= axis < limit:
        return None
    return axis + limit if axis < 0 else axis


# -- pointwise ---------------------------------------------------------------------------------


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


# -- factories ---------------------------------------------------------------------------------


def _factory_device(kwargs: dict[str, Any]) -> torch.device | None:
    device = torch.device(kwargs.get("device") or "cpu")
    return None if device.type == "cuda" and device.index is None else device


def _is_plain_factory(kwargs: dict[str, Any]) -> bool:
    return (
        not kwargs.get("pin_memory")
        and kwargs.get("layout") in (None, torch.strided)
        and kwargs.get("memory_format") in (None, torch.contiguous_format)
        and "names" not in kwargs
    )


@shape_rule(
    aten.zeros.default, aten.ones.default, aten.empty.memory_format, aten.rand.default,
    aten.randn.default, aten.full.default,
)  # fmt: skip
def _filled(
    cache: OpCache, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Outcome | None:
    device = _factory_device(kwargs)
    size = tuple(args[0])
    if device is None or not _is_plain_factory(kwargs) or any(extent < 0 for extent in size):
        return None
    dtype = kwargs.get("dtype")
    if dtype is None:
        dtype = torch.get_default_dtype()
        if func is aten.full.default:
            dtype = torch.full((), args[1]).dtype
    return contiguous(cache, size, dtype, device)


@shape_rule(
    aten.arange.default, aten.arange.start, aten.arange.start_step, aten.scalar_tensor.default,
    aten.linspace.default, aten.eye.default, aten.eye.m,
)  # fmt: skip
def _sequence(
    cache: OpCache, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Outcome | None:
    """Small ones are simply made; their values cost less than a model of their rounding."""
    device = _factory_device(kwargs)
    if device is None or not _is_plain_factory(kwargs):
        return None
    if any(isinstance(arg, (int, float)) and abs(arg) > 1 << 16 for arg in args):
        return None
    made = func(*args, **{**kwargs, "device": torch.device("cpu")})
    return contiguous(cache, tuple(made.shape), made.dtype, device)


@shape_rule(aten.new_zeros.default, aten.new_ones.default, aten.new_empty.default,
            aten.new_full.default)  # fmt: skip
def _new(
    cache: OpCache, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Outcome | None:
    source = args[0].facts
    device = _factory_device({"device": kwargs.get("device") or source.device})
    if device is None or not _is_plain_factory(kwargs) or any(extent < 0 for extent in args[1]):
        return None
    return contiguous(cache, tuple(args[1]), kwargs.get("dtype") or source.dtype, device)


# -- reductions --------------------------------------------------------------------------------


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


def _argument(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """An argument by its name in the schema, wherever it was passed; its default otherwise."""
    for index, argument in enumerate(func._schema.arguments):
        if argument.name == name:
            if index < len(args):
                return args[index]
            return kwargs.get(name, argument.default_value)
    return None


@shape_rule(
    aten.sum.default, aten.sum.dim_IntList, aten.mean.default, aten.mean.dim, aten.amax.default,
    aten.amin.default, aten.any.default, aten.any.dim, aten.all.default, aten.all.dim,
    aten.prod.default, aten.prod.dim_int, aten.argmax.default, aten.argmin.default,
    aten.max.default, aten.min.default, aten.max.dim, aten.min.dim, aten.var.correction,
    aten.std.correction, aten.var_mean.correction, aten.linalg_vector_norm.default,
    aten.logsumexp.default, aten.norm.ScalarOpt_dim, aten.norm.Scalar,
)  # fmt: skip
def _reduction(
    cache: OpCache, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Outcome | None:
    source = args[0].facts
    if 0 in source.size or source.bits or len(source.size) > 10:
        return None
    axes = _argument(func, "dim", args, kwargs)
    if isinstance(axes, (list, tuple)):
        axes = list(axes)
    size = _reduced_size(source.size, axes, bool(_argument(func, "keepdim", args, kwargs)))
    if size is None:
        return None
    result = probe(func, args, kwargs, 2, is_fake)
    if isinstance(result, torch.Tensor):
        return contiguous(cache, size, result.dtype, source.device)
    return Several(
        tuple, tuple(contiguous(cache, size, each.dtype, source.device) for each in result)
    )


@shape_rule(aten._softmax.default, aten._log_softmax.default, aten.cumsum.default)
def _along_axis(
    cache: OpCache, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Outcome | None:
    source = args[0].facts
    if wrap_axis(args[1], len(source.size)) is None or source.bits or source.device.type != "cpu":
        return None
    result = probe(func, args, kwargs, 1, is_fake)
    if func is aten.cumsum.default:
        stride = elementwise_stride([source], source.size)
    else:
        stride = _suggested_stride(source)
    return Fresh(cache.facts(source.size, stride, 0, result.dtype, source.device))


def _suggested_stride(source: Facts) -> tuple[int, ...]:
    """Row-major, or channels-last where the tensor is."""
    if is_channels_last(source.size, source.stride):
        return channels_last_stride(source.size)
    return contiguous_stride(source.size)


@shape_rule(aten._softmax_backward_data.default, aten._log_softmax_backward_data.default)
def _softmax_backward(
    cache: OpCache, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Outcome | None:
    grad = args[0].facts
    if grad.size != args[1].facts.size or grad.bits or grad.device.type != "cpu":
        return None
    return contiguous(cache, grad.size, args[3], grad.device)


# -- products ----------------------------------------------------------------------------------


@shape_rule(aten.mm.default, aten.bmm.default)
def _product(
    cache: OpCache, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Outcome | None:
    if len(args) != 2 or kwargs:
        return None
    one, two = args[0].facts, args[1].facts
    rank = 2 if func is aten.mm.default else 3
    if len(one.size) != rank or len(two.size) != rank or one.size[-1] != two.size[-2]:
        return None
    if one.size[:-2] != two.size[:-2] or one.dtype is not two.dtype or one.device != two.device:
        return None
    if one.bits or two.bits:
        return None
    return contiguous(cache, (*one.size[:-1], two.size[-1]), one.dtype, one.device)


@shape_rule(aten.addmm.default, aten.baddbmm.default)
def _product_plus(
    cache: OpCache, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Outcome | None:
    product = _product(
        cache, aten.mm.default if func is aten.addmm.default else aten.bmm.default, args[1:3], {}
    )
    added = args[0].facts
    if not isinstance(product, Fresh) or len(args) > 3 or added.bits:
        return None
    made = product.facts
    if added.dtype is not made.dtype or added.device != made.device:
        return None
    if broadcast_sizes([added.size, made.size]) != made.size:
        return None
    return product


# -- gathering and joining ---------------------------------------------------------------------


@shape_rule(aten.cat.default)
def _cat(
    cache: OpCache, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Outcome | None:
    pieces = [piece.facts for piece in args[0]]
    first = pieces[0]
    axis = wrap_axis(_argument(func, "dim", args, kwargs), len(first.size))
    if axis is None or not first.size or any(piece.size == (0,) for piece in pieces):
        return None
    total = 0
    for piece in pieces:
        if len(piece.size) != len(first.size) or piece.bits or piece.device != first.device:
            return None
        if piece.size[:axis] != first.size[:axis] or piece.size[axis + 1 :] != first.size[axis + 1 :]:
            return None
        total += piece.size[axis]
    size = (*first.size[:axis], total, *first.size[axis + 1 :])
    dtype = first.dtype
    for piece in pieces[1:]:
        dtype = torch.promote_types(dtype, piece.dtype)
    if all(is_channels_last(piece.size, piece.stride) for piece in pieces):
        return Fresh(cache.facts(size, channels_last_stride(size), 0, dtype, first.device))
    if any(is_channels_last(piece.size, piece.stride) for piece in pieces):
        return None
    return contiguous(cache, size, dtype, first.device)


@shape_rule(aten.embedding.default)
def _embedding(
    cache: OpCache, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Outcome | None:
    table, index = args[0].facts, args[1].facts
    if len(table.size) != 2 or index.dtype not in (torch.int64, torch.int32):
        return None
    if table.device != index.device:
        return None
    return contiguous(cache, (*index.size, table.size[1]), table.dtype, table.device)


@shape_rule(aten.gather.default)
def _gather(
    cache: OpCache, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Outcome | None:
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
def _changed_copy(
    cache: OpCache, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Outcome | None:
    """A copy of the first argument with some elements replaced; row-major sources only."""
    source = args[0].facts
    if source.bits or source.stride != contiguous_stride(source.size) or len(source.size) < 2:
        return None
    if len(args) > 1 and isinstance(args[1], torch.Tensor):
        view = aten.slice.Tensor if func is aten.slice_scatter.default else aten.select.int
        piece = view(args[0].meta_tensor, *args[2:], **kwargs)
        other = args[1].facts
        if tuple(piece.shape) != other.size or other.dtype is not source.dtype:
            return None
    return contiguous(cache, source.size, source.dtype, source.device)


# -- normalisation -----------------------------------------------------------------------------


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
    stride = _suggested_stride(source)
    normal = Fresh(cache.facts(source.size, stride, 0, source.dtype, source.device))
    return Several(tuple, (normal, moments, moments))


# -- convolution and pooling -------------------------------------------------------------------


@shape_rule(aten.convolution.default)
def _convolution(
    cache: OpCache, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Outcome | None:
    source, weight = args[0].facts, args[1].facts
    stride, padding, dilation, transposed, _, groups = args[3:9]
    spatial = len(source.size) - 2
    if transposed or spatial not in (1, 2, 3) or source.device != weight.device:
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
    last = any(is_channels_last(each.size, each.stride) for each in (source, weight))
    made = channels_last_stride(size) if last else contiguous_stride(size)
    return Fresh(cache.facts(size, made, 0, source.dtype, source.device))


def _pair(values: Any, default: Any = None) -> tuple[int, int] | None:
    if not values:
        return default
    return (values[0], values[0]) if len(values) == 1 else tuple(values)  # type: ignore[return-value]


@shape_rule(aten.max_pool2d_with_indices.default, aten.avg_pool2d.default)
def _pool(
    cache: OpCache, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Outcome | None:
    source = args[0].facts
    kernel = _pair(args[1])
    stride = _pair(_argument(func, "stride", args, kwargs), kernel)
    padding = _pair(_argument(func, "padding", args, kwargs), (0, 0))
    dilation = _pair(_argument(func, "dilation", args, kwargs), (1, 1))
    ceil_mode = _argument(func, "ceil_mode", args, kwargs)
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
def _adaptive_pool(
    cache: OpCache, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Outcome | None:
    source, wanted = args[0].facts, tuple(args[1])
    if len(source.size) != 4 or 0 in source.size or any(extent <= 0 for extent in wanted):
        return None
    size = (*source.size[:2], *wanted)
    last = is_channels_last(source.size, source.stride)
    made = channels_last_stride(size) if last else contiguous_stride(size)
    return Fresh(cache.facts(size, made, 0, source.dtype, source.device))


# -- attention ---------------------------------------------------------------------------------


@shape_rule(aten._scaled_dot_product_flash_attention_for_cpu.default)
def _flash_attention_cpu(
    cache: OpCache, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Outcome | None:
    query, key, value = (arg.facts for arg in args[:3])
    if len(query.size) != 4 or len(key.size) != 4 or query.device.type != "cpu":
        return None
    batch, heads, length, depth = query.size
    if value.size[-1] != depth or key.size != value.size or 0 in query.size + key.size:
        return None
    if 1 in query.size:
        return None
    order = sorted(range(4), key=lambda axis: -query.stride[axis])
    stride, sums_stride = _attention_strides(func, query.size, order)
    wide = torch.float64 if query.dtype is torch.float64 else torch.float32
    return Several(
        tuple,
        (
            Fresh(cache.facts(query.size, stride, 0, query.dtype, query.device)),
            Fresh(cache.facts(query.size[:3], sums_stride, 0, wide, query.device)),
        ),
    )


def _attention_strides(
    func: Any, size: tuple[int, ...], order: list[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Strides of both results for a query whose axes lie in `order`. It differs between versions of
    torch how they follow the query, so the real kernel is asked with a small one."""
    small = (2, 3, 4, 8)
    back = [order.index(axis) for axis in range(4)]
    with torch.no_grad(), torch._C._DisableTorchDispatch():
        query = torch.zeros([small[axis] for axis in order]).permute(back)
        results = func(query, query, query)[:2]

    def scaled(result: torch.Tensor) -> tuple[int, ...]:
        axes = sorted(range(result.dim()), key=lambda axis: result.stride(axis))
        stride, step = [0] * len(axes), 1
        for axis in axes:
            stride[axis] = step
            step *= size[axis]
        return tuple(stride)

    return scaled(results[0]), scaled(results[1])
