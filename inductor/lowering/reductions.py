"""Lowerings of reductions and of what is made from them: softmax, normalisations.

A reduction is a buffer of its own (its result is used where it does not cost to keep it: the
scheduler turns it into a local of the loop if all readers are in the same kernel).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from dynamo.aot.decompositions import takes_vectors
from inductor.ir.body import Ops, Value
from inductor.ir.graph import Layout, contiguous
from inductor.ir.index import constant, floordiv
from inductor.ir.scalar_ops import dtype_kind
from inductor.lowering.activations import Arithmetic
from inductor.lowering.builder import layout_of
from inductor.lowering.moments import chunks_of, group_moments, moments
from inductor.lowering.one_hot import sum_of_one_hot
from inductor.lowering.pointwise import Kind, broadcast, load_as, promoted, unsupported
from inductor.lowering.registry import Call, lowering
from inductor.lowering.tensor import Indices, Tensor, compute_dtype

aten = torch.ops.aten


def axes_of(x: Tensor, dims: Any) -> list[int]:
    """Axes from a dim argument (None or empty: all)."""
    rank = len(x.size)
    if dims is None or (isinstance(dims, (list, tuple)) and not dims):
        return list(range(rank))
    given = [dims] if isinstance(dims, int) else dims
    return [dim % rank for dim in given] if rank else []


def count_of(x: Tensor, axes: Sequence[int]) -> int:
    total = 1
    for axis in axes:
        total *= x.size[axis]
    return total


def as_dtype(call: Call, x: Tensor, dtype: torch.dtype) -> Tensor:
    """`x` computed in `dtype` (a lazy conversion)."""
    held = compute_dtype(dtype)
    if compute_dtype(x.dtype) is held:
        return x
    layout = Layout(x.layout.device, dtype, x.size, x.layout.stride)
    return call.builder.computed(
        layout, [x], 1, lambda ops, i: ops.to_dtype(x.load(ops, i), held)
    )


def _refused(call: Call, x: Tensor) -> str:
    if x.dtype.is_complex or unsupported([x]):
        return f"a reduction of {x.dtype}"
    results = call.result if isinstance(call.result, tuple) else (call.result,)
    return "an empty tensor" if 0 in x.size or any(0 in r.shape for r in results) else ""


Finish = Callable[[Ops, Value], Value] | None
GREATEST = {torch.bool: 1, torch.uint8: 255, torch.int8: 128}  # of what a narrow integer may be
MUCH_MORE = 1.5  # of what is read twice instead of being stored


def _simple(call: Call, x: Tensor, dims: Any, kind: str, finish: Finish = None) -> Any:
    why = _refused(call, x)
    if why:
        return call.refuse(why)
    source, axes = as_dtype(call, x, call.result.dtype), axes_of(x, dims)
    if kind == "sum" and len(axes) == 1 and finish is None:
        found = sum_of_one_hot(call.builder, call.layout, source, axes[0])
        if found is not None:
            return found
    if kind == "sum" and _is_counted(call, x, count_of(x, axes)):
        source = as_dtype(call, x, torch.int32)
    return call.builder.reduce(call.layout, source, axes, kind, finish=finish)


def _is_counted(call: Call, x: Tensor, count: Any) -> bool:
    """Whether 32 bits hold a sum of narrow integers, of which half as many registers are wanted."""
    return call.result.dtype is torch.int64 and type(count) is int and (
        count * GREATEST.get(x.dtype, math.inf) < 1 << 31)


@lowering(aten.sum.default)
def sum_all(call: Call, x: Tensor, dtype: Any = None) -> Any:
    return _simple(call, x, None, "sum")


@lowering(aten.sum.dim_IntList)
def sum_(call: Call, x: Tensor, dims: Any, keepdim: bool = False, dtype: Any = None) -> Any:
    return _simple(call, x, dims, "sum")


@lowering(aten.mean.default)
def mean_all(call: Call, x: Tensor, dtype: Any = None) -> Any:
    return mean(call, x, None)


@lowering(aten.mean.dim)
def mean(call: Call, x: Tensor, dims: Any, keepdim: bool = False, dtype: Any = None) -> Any:
    count = count_of(x, axes_of(x, dims))
    divide = lambda ops, v: ops.truediv(v, ops.constant(count, v.dtype))  # noqa: E731
    return _simple(call, x, dims, "sum", divide)


@lowering(aten.prod.default, aten.prod.dim_int)
def prod(call: Call, x: Tensor, dims: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
    return _simple(call, x, dims, "prod")


@lowering(aten.amax.default, aten.max.default)
def amax(call: Call, x: Tensor, dims: Any = (), keepdim: bool = False) -> Any:
    return _simple(call, x, dims, "max")


@lowering(aten.amin.default, aten.min.default)
def amin(call: Call, x: Tensor, dims: Any = (), keepdim: bool = False) -> Any:
    return _simple(call, x, dims, "min")


def _register_truth(packet: Any, kind: str) -> None:
    @lowering(packet.default, packet.dim, packet.dims)
    def truth(call: Call, x: Tensor, dims: Any = None, keepdim: bool = False) -> Any:
        if call.result.dtype is not torch.bool:
            return call.refuse("any or all of uint8")
        return _simple(call, x, dims, kind)


_register_truth(aten.any, "any")
_register_truth(aten.all, "min")


def _find(call: Call, x: Tensor, axes: list[int], kind: str, layout: Layout) -> Tensor:
    """Positions of the greatest or least elements along the (flattened) axes."""
    if x.root().cost > 1:
        x.realize()  # elements are looked at twice

    def element(ops: Ops, value: Value, indices: Indices) -> tuple[Value, ...]:
        flat: Any = constant(0)
        for axis in axes:
            flat = flat * x.size[axis] + indices[axis]
        return value, ops.index_expr(flat)

    return call.builder.reduce(layout, x, axes, kind, element=element)


@lowering(aten.argmax.default)
def argmax(call: Call, x: Tensor, dim: Any = None, keepdim: bool = False) -> Any:
    why = _refused(call, x)
    return call.refuse(why) if why else _find(call, x, axes_of(x, dim), "argmax", call.layout)


@lowering(aten.argmin.default)
def argmin(call: Call, x: Tensor, dim: Any = None, keepdim: bool = False) -> Any:
    why = _refused(call, x)
    return call.refuse(why) if why else _find(call, x, axes_of(x, dim), "argmin", call.layout)


def _with_position(call: Call, x: Tensor, dim: int, kind: str) -> Any:
    why = _refused(call, x)
    if why or not x.size:
        return call.refuse(why or "no dimension")
    if x.view is None and x.cost > 1:
        x.realize()
    values, positions = call.result
    best = call.builder.reduce(layout_of(values), x, axes_of(x, dim), kind)
    return best, _find(call, x, axes_of(x, dim), f"arg{kind}", layout_of(positions))


@lowering(aten.max.dim)
def max_dim(call: Call, x: Tensor, dim: int, keepdim: bool = False) -> Any:
    return _with_position(call, x, dim, "max")


@lowering(aten.min.dim)
def min_dim(call: Call, x: Tensor, dim: int, keepdim: bool = False) -> Any:
    return _with_position(call, x, dim, "min")


# -- means and variances --------------------------------------------------------------------------


def keepdim_layout(x: Tensor, axes: Sequence[int], dtype: torch.dtype) -> Layout:
    """A dense layout of x's sizes with 1 for each reduced axis."""
    size = [1 if axis in axes else extent for axis, extent in enumerate(x.size)]
    return contiguous(size, dtype, x.layout.device)


def mean_of(call: Call, x: Tensor, axes: list[int]) -> Tensor:
    """Mean over the axes, kept as 1, in the dtype that x is computed in."""
    count = count_of(x, axes)
    divide = lambda ops, v: ops.truediv(v, ops.constant(count, v.dtype))  # noqa: E731
    layout = keepdim_layout(x, axes, compute_dtype(x.dtype))
    return call.builder.reduce(layout, x, axes, "sum", finish=divide)


def variance_of(
    call: Call, x: Tensor, mean_: Tensor, axes: list[int], correction: float, layout: Layout,
    finish: Finish = None,
) -> Tensor:
    """Sum of squared distances from the mean over (count - correction); two passes, as precise
    as eager's."""
    divisor = _divisor(x, axes, correction)

    def element(ops: Ops, value: Value, indices: Indices) -> tuple[Value, ...]:
        minus_greatest = ops.sub(value, mean_.load(ops, broadcast(mean_, indices)))
        return (ops.mul(minus_greatest, minus_greatest),)

    def end(ops: Ops, total: Value) -> Value:
        result = ops.truediv(total, ops.constant(divisor, total.dtype))
        return finish(ops, result) if finish is not None else result

    return call.builder.reduce(layout, x, axes, "sum", element, end)


def _divisor(x: Tensor, axes: Sequence[int], correction: float) -> float:
    whole = int(correction) if correction == int(correction) else correction
    return max(count_of(x, axes) - whole, 0)


def _same(indices: Indices) -> Indices:
    return indices


def _correction(args: tuple[Any, ...], kwargs: dict[str, Any], default: float = 1.0) -> float:
    """From `unbiased` (bool) or `correction` (number or None)."""
    value = kwargs.get("correction", kwargs.get("unbiased", args[0] if args else None))
    return default if value is None else float(value)


def _sqrt(ops: Ops, value: Value) -> Value:
    return ops.call("sqrt", value)


def _spread(call: Call, x: Tensor, dims: Any, correction: float, finish: Finish) -> Any:
    why = _refused(call, x)
    if why or dtype_kind(x.dtype) != "f":
        return call.refuse(why or "integers")
    if x.view is None and x.cost > 2:
        x.realize()
    axes = axes_of(x, dims)
    return variance_of(call, x, mean_of(call, x, axes), axes, correction, call.layout, finish)


@lowering(aten.var.correction)
def var(call: Call, x: Tensor, dims: Any = None, **kwargs: Any) -> Any:
    return _spread(call, x, dims, _correction((), kwargs), None)


@lowering(aten.std.correction)
def std(call: Call, x: Tensor, dims: Any = None, **kwargs: Any) -> Any:
    return _spread(call, x, dims, _correction((), kwargs), _sqrt)


@lowering(aten.var_mean.correction)
def var_mean(call: Call, x: Tensor, dims: Any = None, **kwargs: Any) -> Any:
    why = _refused(call, x)
    if why or dtype_kind(x.dtype) != "f":
        return call.refuse(why or "integers")
    if x.view is None and x.cost > 2:
        x.realize()
    axes = axes_of(x, dims)
    chunks = chunks_of(call, x, axes)
    if chunks is not None:
        found = moments(call, x, chunks, _divisor(x, axes, _correction((), kwargs)))
        layouts = map(layout_of, reversed(call.result))
        both = [each.as_view(form, _same) for each, form in zip(found, layouts, strict=True)]
        return both[1], both[0]
    average = mean_of(call, x, axes)
    variance = variance_of(
        call, x, average, axes, _correction((), kwargs), layout_of(call.result[0])
    )
    return variance, average.as_view(layout_of(call.result[1]), lambda i: i) if (
        compute_dtype(x.dtype) is x.dtype
    ) else mean(Call(call.builder, call.target, call.result[1], 1), x, dims)


@lowering(aten.linalg_vector_norm.default)
def vector_norm(
    call: Call, x: Tensor, order: float = 2, dims: Any = None, keepdim: bool = False,
    dtype: Any = None,
) -> Any:
    why = _refused(call, x)
    if why or order not in (1, 2, float("inf")):
        return call.refuse(why or f"norm of order {order}")
    if dtype is not None:
        x = as_dtype(call, x, dtype)
    axes = axes_of(x, dims)
    if order == 2 and any(x.size[axis] != 1 for axis in axes):  # that of one element is exact
        square = lambda ops, v, i: (ops.mul(v, v),)  # noqa: E731
        return call.builder.reduce(call.layout, x, axes, "sum", square, _sqrt)
    size = lambda ops, v, i: (ops.call("abs", v),)  # noqa: E731
    return call.builder.reduce(call.layout, x, axes, "sum" if order == 1 else "max", size)


# -- softmax --------------------------------------------------------------------------------------


def _exponentials(call: Call, x: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    """x - max and exp of it."""
    if x.view is None and (x.cost > 1 or len(x.reads) > 1):
        x.realize()
    held = compute_dtype(x.dtype)
    top = call.builder.reduce(keepdim_layout(x, [axis], held), x, [axis], "max")

    def minus_greatest(ops: Ops, i: Indices) -> Value:
        return ops.sub(x.load(ops, i), top.load(ops, broadcast(top, i)))

    layout = Layout(x.layout.device, held, call.layout.size, call.layout.stride)
    shifted = call.builder.computed(layout, [x, top], 1, minus_greatest)
    exp = call.builder.computed(
        layout, [shifted], 8, lambda ops, i: ops.call("exp", shifted.load(ops, i))
    )
    return shifted, exp


def is_column_on_gpu(layout: Layout, axis: int) -> bool:
    """Whether neighbours in memory lie along another axis. What is used twice is computed twice
    there: a kernel would write it for two others, where one that has rows keeps it."""
    return layout.device.type == "cuda" and layout.stride[axis] != 1 and any(
        stride == 1 and size != 1 for size, stride in zip(layout.size, layout.stride, strict=True))


@lowering(aten._softmax.default)
def softmax(call: Call, x: Tensor, dim: int, half_to_float: bool) -> Any:
    why = _refused(call, x)
    if why or not x.size:
        return call.refuse(why or "no dimension")
    axis = dim % len(x.size)
    _, exp = _exponentials(call, x, axis)
    if not is_column_on_gpu(call.layout, axis):
        exp.realize()
    total = call.builder.reduce(keepdim_layout(x, [axis], exp.dtype), exp, [axis], "sum")

    def divide(ops: Ops, i: Indices) -> Value:
        return ops.truediv(exp.load(ops, i), total.load(ops, broadcast(total, i)))

    return call.builder.computed(call.layout, [exp, total], 4, divide)


@lowering(aten._log_softmax.default)
def log_softmax(call: Call, x: Tensor, dim: int, half_to_float: bool) -> Any:
    why = _refused(call, x)
    if why or not x.size:
        return call.refuse(why or "no dimension")
    axis = dim % len(x.size)
    shifted, exp = _exponentials(call, x, axis)
    log = lambda ops, v: ops.call("log", v)  # noqa: E731
    layout = keepdim_layout(x, [axis], exp.dtype)
    total = call.builder.reduce(layout, exp, [axis], "sum", finish=log)

    def subtract(ops: Ops, i: Indices) -> Value:
        return ops.sub(shifted.load(ops, i), total.load(ops, broadcast(total, i)))

    return call.builder.computed(call.layout, [shifted, total], 1, subtract)


# -- normalisations -------------------------------------------------------------------------------


def _rstd(eps: float) -> Callable[[Ops, Value], Value]:
    def finish(ops: Ops, variance: Value) -> Value:
        return (1.0 / (Arithmetic(ops, variance) + eps).call("sqrt")).value

    return finish


@lowering(aten.native_layer_norm.default)
def layer_norm(
    call: Call, x: Tensor, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None,
    eps: float,
) -> Any:
    out, mean_fake, rstd_fake = call.result
    call = Call(call.builder, call.target, out, call.users)
    why = _refused(call, x)
    if why:
        return call.refuse(why)
    if x.view is None and (x.cost > 0 or len(x.reads) > 1):
        x.realize()
    axes = list(range(len(x.size) - len(shape), len(x.size)))
    average = mean_of(call, x, axes)
    held = compute_dtype(x.dtype)
    layout = keepdim_layout(x, axes, held)
    rstd = variance_of(call, x, average, axes, 0, layout, _rstd(eps))
    operands = [t for t in (x, average, rstd, weight, bias) if t is not None]

    def normalise(ops: Ops, i: Indices) -> Value:
        minus_greatest = ops.sub(x.load(ops, i), average.load(ops, broadcast(average, i)))
        value = ops.mul(minus_greatest, rstd.load(ops, broadcast(rstd, i)))
        if weight is not None:
            value = ops.mul(value, load_as(ops, weight, i, held))
        if bias is not None:
            value = ops.add(value, load_as(ops, bias, i, held))
        return value

    result = call.builder.computed(call.layout, operands, 4, normalise)
    return result, _statistic(call, average, mean_fake), _statistic(call, rstd, rstd_fake)


def _statistic(call: Call, tensor: Tensor, fake: torch.Tensor) -> Tensor:
    """A mean or rstd with the sizes and dtype in which eager returns it: perhaps without the
    reduced axes, which are the last ones."""
    layout = layout_of(fake)
    if layout.size == tensor.size and layout.dtype is tensor.dtype:
        return tensor.as_view(layout, lambda i: i)
    reduced = [constant(0)] * (len(tensor.size) - len(layout.size))
    held = compute_dtype(layout.dtype)

    def compute(ops: Ops, i: Indices) -> Value:
        return ops.to_dtype(tensor.load(ops, (*i, *reduced)), held)

    return call.builder.computed(layout, [tensor], 1, compute)


@lowering(aten._native_batch_norm_legit_no_training.default)
def batch_norm_inference(
    call: Call, x: Tensor, weight: Tensor | None, bias: Tensor | None, mean_: Tensor, var_: Tensor,
    momentum: float, eps: float,
) -> Any:
    fakes = call.result
    call = Call(call.builder, call.target, fakes[0], call.users)
    vectors = [t.dtype for t in (weight, bias, mean_, var_) if t is not None]
    why = _refused(call, x)
    if not takes_vectors(mean_.layout.device.type, x.dtype, vectors):
        why = "eager raises for these dtypes"
    if why:
        return call.refuse(why)
    held = promoted([x, mean_], Kind.DEFAULT)
    layout = Layout(mean_.layout.device, held, mean_.size, mean_.layout.stride)
    scale_inputs = [t for t in (var_, weight) if t is not None]

    def scale_of(ops: Ops, i: Indices) -> Value:
        variance = Arithmetic(ops, load_as(ops, var_, i, held))
        factor = (1.0 / (variance + eps).call("sqrt")).value
        return ops.mul(factor, load_as(ops, weight, i, held)) if weight is not None else factor

    scale = call.builder.computed(layout, scale_inputs, 8, scale_of)
    on_cpu = mean_.layout.device.type == "cpu"  # elsewhere a launch costs more than computing it
    if on_cpu:
        scale.realize()

    def shift_of(ops: Ops, i: Indices) -> Value:
        moved = ops.mul(load_as(ops, mean_, i, held), scale.load(ops, i))
        start = load_as(ops, bias, i, held) if bias is not None else ops.constant(0.0, held)
        return ops.sub(start, moved)

    inputs = [t for t in (mean_, scale, bias) if t is not None]
    shift = call.builder.computed(layout, inputs, 2, shift_of)
    if on_cpu:
        shift.realize()
    goal = compute_dtype(call.result.dtype)

    def normalise(ops: Ops, i: Indices) -> Value:
        value = ops.mul(load_as(ops, x, i, held), scale.load(ops, (i[1],)))
        return ops.to_dtype(ops.add(value, shift.load(ops, (i[1],))), goal)

    result = call.builder.computed(call.layout, [x, scale, shift], 2, normalise)
    return result, *(_zeros(call, fake) for fake in fakes[1:])


def _zeros(call: Call, fake: Any) -> Tensor:
    held = compute_dtype(fake.dtype)
    return call.builder.computed(layout_of(fake), [], 0, lambda ops, i: ops.constant(0, held))


@lowering(aten.native_batch_norm.default, aten.cudnn_batch_norm.default)
def batch_norm(
    call: Call, x: Tensor, weight: Any, bias: Any, mean_: Any, var_: Any, training: bool,
    momentum: float, eps: float,
) -> Any:
    if training or mean_ is None:
        return call.refuse("statistics of the batch")
    return batch_norm_inference(call, x, weight, bias, mean_, var_, momentum, eps)


@lowering(aten.native_group_norm.default)
def group_norm(
    call: Call, x: Tensor, weight: Tensor | None, bias: Tensor | None, n: int, c: int, hxw: int,
    groups: int, eps: float,
) -> Any:
    out, mean_fake, rstd_fake = call.result
    whole = Call(call.builder, call.target, out, call.users)
    last = _has_channels_last(call, x)
    if _refused(whole, x) or not (last or _dense(x)):
        return call.refuse("an empty tensor or strides that are not dense")
    held = compute_dtype(x.dtype)
    per = c // groups
    if last:
        bytes_of_x = x.layout.numel() * x.dtype.itemsize
        if x.view is None and call.builder.bytes_read(x) > MUCH_MORE * bytes_of_x:
            x.realize()  # else both passes read what it is computed from
        seen = contiguous((n, groups, 1), held, x.layout.device)
        average, rstd = (
            one.as_view(seen, lambda i: i[:2])
            for one in group_moments(whole, x, groups, _rstd(eps)))
    else:
        average, rstd = _of_rows(whole, x, groups, per * hxw, eps)

    def normalise(ops: Ops, i: Indices) -> Value:
        from_group = (i[0], floordiv(i[1], per), constant(0))
        minus_greatest = ops.sub(x.load(ops, i), average.load(ops, from_group))
        value = ops.mul(minus_greatest, rstd.load(ops, from_group))
        if weight is not None:
            value = ops.mul(value, load_as(ops, weight, (i[1],), held))
        if bias is not None:
            value = ops.add(value, load_as(ops, bias, (i[1],), held))
        return value

    operands = [t for t in (x, average, rstd, weight, bias) if t is not None]
    result = call.builder.computed(whole.layout, operands, 4, normalise)
    return result, _statistic(whole, average, mean_fake), _statistic(whole, rstd, rstd_fake)


def _of_rows(
    call: Call, x: Tensor, groups: int, length: int, eps: float
) -> tuple[Tensor, Tensor]:
    """Mean and reciprocal deviation of groups of which each is one stretch of memory."""
    view = x.realize()
    rows = contiguous((x.size[0], groups, length), x.dtype, x.layout.device)
    grouped = Tensor(
        rows, call.builder,
        view=type(view)(view.buffer, rows.size, rows.stride, view.offset, view.dtype),
    )
    average = mean_of(call, grouped, [2])
    layout = keepdim_layout(grouped, [2], compute_dtype(x.dtype))
    return average, variance_of(call, grouped, average, [2], 0, layout, _rstd(eps))


def _has_channels_last(call: Call, x: Tensor) -> bool:
    """Of images, rows (as attention has them) or films of known sizes on a GPU; the CPU's library
    has a kernel for images."""
    known = all(type(extent) is int for extent in x.size)
    if call.builder.device.type == "cpu" or len(x.size) < 3 or not known:
        return False
    n, c, *space = x.size
    last = contiguous((n, *space, c), x.dtype, x.layout.device).stride
    return _lies_with(x, (last[0], 1, *last[1:-1]))


def _dense(x: Tensor) -> bool:
    return _lies_with(x, contiguous(x.size, x.dtype, x.layout.device).stride)


def _lies_with(x: Tensor, strides: Sequence[Any]) -> bool:
    """Whether x has these strides where they say anything: along more than one element."""
    steps = zip(x.size, x.layout.stride, strides, strict=True)
    return all(extent == 1 or step == wanted for extent, step, wanted in steps)
