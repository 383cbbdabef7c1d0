"""Operations that are recorded otherwise than they are called.

A rule takes (recorder, op, args, kwargs) and gives the result, or NotImplemented for "as usual".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from dynamo.aot.fakes import SymbolicFacts, facts_of, is_fake, is_static, storage_key
from dynamo.aot.functional_tensors import value_of
from dynamo.aot.overlap import overlaps_itself
from dynamo.aot.records import Unsupported
from dynamo.shapes.facts import Facts, contiguous_stride

aten = torch.ops.aten
Rule = Callable[[Any, Any, tuple[Any, ...], dict[str, Any]], Any]


def _lift(recorder: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`torch.tensor(3)` of the program is a constant of the graph."""
    source = args[0]
    if is_fake(source):
        return source
    result = recorder.world.dispatch(func, args, kwargs)
    recorder.alias(result, recorder.literal(source))
    return result


def _same_value(recorder: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`detach` and `alias` are the value itself."""
    if not is_fake(args[0]):
        return NotImplemented
    result = recorder.world.dispatch(func, args, kwargs)
    recorder.alias(result, recorder.node_of(args[0]))
    return result


def _from_own_begin(recorder: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """An offset that is the tensor's own, as `fill_diagonal_` gives it, is not written down: at
    another call the tensor may begin elsewhere."""
    at = 3 if func is aten.as_strided.default else 4
    if func is aten.as_strided_scatter.default:
        _check_single(*args[1:4])
    if len(args) <= at or not is_fake(args[0]) or args[at] != facts_of(args[0]).offset:
        return NotImplemented
    return recorder.call(func, args[:at], kwargs)


def _check_single(source: Any, size: Any, stride: Any) -> None:
    """Errors: Unsupported where elements of the part are one in memory: old values among them would
    overwrite new ones."""
    form = SymbolicFacts(tuple(size), tuple(stride), 0, source.dtype, source.device)
    if overlaps_itself(form):
        raise Unsupported("a write through a view that names elements twice")


def _replaced(recorder: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Of a tensor that names elements twice, ATen replaces a part in a copy that does, too."""
    facts = facts_of(args[0])
    if is_static(facts) and 0 not in facts.stride and overlaps_itself(facts):
        raise Unsupported("a new value for a part of a tensor that names elements twice")
    return NotImplemented


def _zeros(recorder: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A zero that has no memory, as derivatives use it; generated code reads memory. In backward it
    is made of the gradients that lead to it, so that there is none where there are none of them."""
    zero = None
    for grad in map(value_of, recorder.arrived):
        one = recorder.call(aten.new_zeros.default, (grad, *args), kwargs)
        zero = one if zero is None else recorder.call(aten.add.Tensor, (zero, one), {})
    if zero is None:
        zero = recorder.call(aten.zeros.default, args, kwargs)
    return _marked(recorder, zero)


def _is_zero(recorder: Any, value: Any) -> bool:
    return is_fake(value) and storage_key(value) in recorder.zeros


def _times_zero(recorder: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A product with a zero that has no memory is one, whatever the other factor is; so is such a
    zero divided. In the place of what is not read stands a number that makes no NaN."""
    if not recorder.zeros or not any(_is_zero(recorder, given) for given in args):
        return NotImplemented
    quotient = func is aten.div.Tensor
    if quotient and not _is_zero(recorder, args[0]):
        return NotImplemented
    plain = aten.ones_like.default if quotient else aten.zeros_like.default
    given = []
    for value in args:
        if is_fake(value) and not _is_zero(recorder, value):
            value = recorder.call(plain, (value,), {})
        elif isinstance(value, float):
            value = 1.0 if quotient else 0.0
        given.append(value)
    return _marked(recorder, recorder.call(func, tuple(given), kwargs))


def _sum_of_zeros(recorder: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if not recorder.zeros or not all(_is_zero(recorder, given) for given in args[:2]):
        return NotImplemented
    return _marked(recorder, recorder.call(func, args, kwargs))


def _marked(recorder: Any, zero: Any) -> Any:
    recorder.zeros.add(storage_key(zero))
    return zero


def _batch_norm(recorder: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """In training it writes the running statistics, which its schema does not tell."""
    running_mean, running_var, training = args[3], args[4], args[5]
    if training and running_mean is None:
        if func is aten.cudnn_batch_norm.default:  # of which there is no lowering
            results = recorder.call(aten.native_batch_norm.default, args[:8], {})
            return (*results, _scratch(recorder, results[1]))
        return _batch_norm_of_batch(recorder, func, args)
    if not training:
        return NotImplemented
    functional = aten._native_batch_norm_legit_functional.default
    *results, mean, var = recorder.call(functional, args[:8], {})
    recorder.replace(running_mean, _converted(recorder, mean, running_mean.dtype))
    recorder.replace(running_var, _converted(recorder, var, running_var.dtype))
    if func is aten.native_batch_norm.default:
        return tuple(results)
    return (*results, _scratch(recorder, mean))


def _scratch(recorder: Any, beside: Any) -> Any:
    """cuDNN's fourth output, memory of its own; `_cudnn_backward` does not read it."""
    options = {"dtype": torch.uint8, "device": beside.device}
    return recorder.call(aten.empty.memory_format, ([0],), options)


def _converted(recorder: Any, value: Any, dtype: torch.dtype) -> Any:
    """A kernel of a GPU adds up statistics of half precision in float32."""
    if value.dtype is dtype:
        return value
    return recorder.call(aten._to_copy.default, (value,), {"dtype": dtype})


def _batch_norm_of_batch(recorder: Any, func: Any, args: tuple[Any, ...]) -> Any:
    """Half precision on a CPU, in float32: the kernel's statistics have not the fakes' dtype."""
    source, *vectors = args[:3]
    if source.device.type != "cpu" or source.dtype not in (torch.float16, torch.bfloat16):
        return NotImplemented
    if any(vector is not None and vector.dtype != source.dtype for vector in vectors):
        return NotImplemented
    convert, wide = aten._to_copy.default, {"dtype": torch.float32}
    widened = [
        None if each is None else recorder.call(convert, (each,), wide)
        for each in (source, *vectors)
    ]
    result, *statistics = recorder.call(func, (*widened, *args[3:]), {})
    return (recorder.call(convert, (result,), {"dtype": source.dtype}), *statistics)


def _backward_of_batch(
    recorder: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """The gradients of the above, whose statistics are float32; the kernel takes those only beside
    a weight of float32."""
    grad, source, weight, running_mean, _, mean, deviation, *rest = args
    if source.device.type != "cpu" or source.dtype not in (torch.float16, torch.bfloat16):
        return NotImplemented
    if weight is None or weight.dtype is not source.dtype:
        return NotImplemented
    if running_mean is not None or mean.dtype is source.dtype:
        return NotImplemented
    convert = aten._to_copy.default
    widened = [
        recorder.call(convert, (each,), {"dtype": torch.float32}) for each in (grad, source, weight)
    ]
    found = recorder.call(func, (*widened, None, None, mean, deviation, *rest), {})
    return tuple(
        None if each is None else recorder.call(convert, (each,), {"dtype": source.dtype})
        for each in found
    )


def _cudnn_backward(
    recorder: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    data, grad, weight, mean, var, saved_mean, saved_var, eps = args[:8]
    wanted = [True, True, True]
    arguments = (grad, data, weight, mean, var, saved_mean, saved_var, True, eps, wanted)
    return recorder.call(aten.native_batch_norm_backward.default, arguments, {})


def _bernoulli(recorder: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """In place it draws in the order of memory; functional, in the order of a contiguous tensor."""
    in_place = next(recorder.bernoulli, False)
    facts = facts_of(args[0])
    size, stride = facts.size, facts.stride
    if stride == contiguous_stride(size):
        return NotImplemented
    order = _order(facts)
    ordered = recorder.call(aten.permute.default, (args[0], order), {})
    if not in_place or not _is_dense(facts):
        raise Unsupported(f"{func} over strides {stride}")
    drawn = recorder.call(func, (ordered, *args[1:]), kwargs)
    back = [order.index(axis) for axis in range(len(size))]
    return recorder.call(aten.permute.default, (drawn, back), {})


def _order(facts: Facts) -> list[int]:
    """The dimensions from the longest stride to the shortest."""
    return sorted(range(len(facts.size)), key=lambda axis: -facts.stride[axis])


def _is_dense(facts: Facts) -> bool:
    order = _order(facts)
    dense = contiguous_stride(tuple([facts.size[axis] for axis in order]))
    return tuple([facts.stride[axis] for axis in order]) == dense


def _normal(recorder: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """In place it draws other numbers for a tensor with gaps than for the copy without."""
    facts = facts_of(args[0])
    if facts.device.type == "cpu" and not _is_dense(facts):
        raise Unsupported(f"{func} over strides {facts.stride}")
    return NotImplemented


def _end_range(recorder: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Ranges of a profile are none of the graph: they belong to the recording."""
    return func(*args, **kwargs)


_DTYPES = (
    (bool, torch.bool),
    ((int, torch.SymInt), torch.int64),
    ((float, torch.SymFloat), torch.float64),
    (complex, torch.complex128),
)


def _copied_number(
    recorder: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """`x.copy_(3)` copies a tensor, as in eager: it converts like one."""
    target, source, *rest = args
    dtype = next((dtype for kinds, dtype in _DTYPES if isinstance(source, kinds)), None)
    if dtype is None:
        return NotImplemented
    options = {"dtype": dtype, "device": target.device}
    number = recorder.call(aten.scalar_tensor.default, (source,), options)
    return recorder.call(func, (target, number, *rest), kwargs)


def _single_mask(indices: Any) -> int | None:
    """Where the only index is, if that is a mask."""
    at = [place for place, index in enumerate(indices) if index is not None]
    mask = indices[at[0]] if len(at) == 1 else None
    if mask is None or not is_fake(mask):
        return None
    return at[0] if mask.dtype is torch.bool and mask.dim() > 0 else None


def _put(recorder: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A write at a mask tells how many elements the mask has: as many as there are values, else the
    write fails. (A single value may be for many.)"""
    target, indices, values = args[:3]
    at = _single_mask(indices)
    if at is not None and is_fake(values) and is_static(facts_of(values)):
        place = at + values.dim() - (target.dim() - indices[at].dim() + 1)
        if place >= 0 and values.shape[place] != 1:
            recorder.true_counts[recorder.node_of(indices[at])] = values.shape[place]
    return NotImplemented


def _at_mask(recorder: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The gradient of values that were written at a mask reads at the mask: as many as there were.
    (What the program itself reads there has a size of its own.)"""
    if recorder.in_program:
        return NotImplemented
    source, indices = args
    at = _single_mask(indices)
    count = None if at is None else recorder.true_counts.get(recorder.node_of(indices[at]))
    if at is None or count is None:
        return NotImplemented
    mask = indices[at]
    found = recorder.call(aten.nonzero_static.default, (mask,), {"size": count})
    columns = [recorder.call(aten.select.int, (found, 1, dim), {}) for dim in range(mask.dim())]
    return recorder.call(func, (source, [*indices[:at], *columns]), kwargs)


def _share(recorder: Any, args: tuple[Any, ...]) -> Any:
    """The gradient of the largest element of all, as eager gives it on a CPU: each place that holds
    it gets its share, the others get 0, where a product would make nan of an infinite share."""
    mask, share = args
    if recorder.in_program or not is_fake(mask) or mask.dtype is not torch.bool:
        return NotImplemented
    node = torch._C._current_autograd_node()
    if node is None or node.name() not in SHARING or mask.device.type != "cpu":
        return NotImplemented
    others = recorder.call(aten.logical_not.default, (mask,), {})
    return recorder.call(aten.masked_fill.Scalar, (share, others, 0), {})


def _product(recorder: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    found = _times_zero(recorder, func, args, kwargs)
    return _share(recorder, args) if found is NotImplemented else found


SHARING = ("MaxBackward1", "MinBackward1", "MedianBackward0", "NanmedianBackward0")
def _drop_nothing(recorder: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """With a probability of zero fakes say that it gives its argument; kernels draw, and copy."""
    facts = facts_of(args[0])
    if kwargs or args[1] != 0 or args[2] is False or not _is_dense(facts):
        return NotImplemented
    _, mask = recorder.world.dispatch(func, args, kwargs)
    made = recorder.world.make(facts), mask
    recorder.bind(made, recorder.record(func, args, kwargs))
    return made


RECORD_RULES: dict[Any, Rule] = {
    aten.mul.Tensor: _product,
    aten.native_dropout.default: _drop_nothing,
    aten.index.Tensor: _at_mask,
    aten.index_put.default: _put,
    torch.ops.profiler._record_function_exit._RecordFunction: _end_range,
    aten.lift_fresh.default: _lift,
    aten.lift.default: _lift,
    aten.detach.default: _same_value,
    aten.alias.default: _same_value,
    aten.as_strided.default: _from_own_begin,
    aten.as_strided_scatter.default: _from_own_begin,
    aten.select_scatter.default: _replaced,
    aten.slice_scatter.default: _replaced,
    aten.diagonal_scatter.default: _replaced,
    aten._efficientzerotensor.default: _zeros,
    **dict.fromkeys((aten.mul.Scalar, aten.div.Tensor), _times_zero),
    **dict.fromkeys((aten.add.Tensor, aten.sub.Tensor), _sum_of_zeros),
    aten.bernoulli.p: _bernoulli,
    aten.copy.default: _copied_number,
    aten.normal_functional.default: _normal,
    aten.native_batch_norm.default: _batch_norm,
    aten.cudnn_batch_norm.default: _batch_norm,
    aten.native_batch_norm_backward.default: _backward_of_batch,
    aten.cudnn_batch_norm_backward.default: _cudnn_backward,
}

