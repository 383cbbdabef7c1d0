"""Functions and methods of numpy arrays beside arithmetic: reductions, shapes, joining, making.

One row per function: its name in numpy (the method of that name too, where there is one), and how
torch computes it. A row need not get dtypes, sizes or strides right: they are compared.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy
import torch

from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.table import rule
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.numpy.array_calls import CPU, Call, call, is_about_arrays
from dynamo.symbolic.shapes.unbacked_facts import flat
from dynamo.symbolic.tensors.tensor import TensorVar

Compute = Callable[..., Any]
FLOATS = (torch.float32, torch.float64)
INFINITY = float("inf")
MOST_CONSTANTS = 1000  # elements of an array that is part of the graph


def function(*names: str) -> Callable[[Compute], Compute]:
    """Registers how `numpy.<name>` and `ndarray.<name>` are computed."""

    def register(compute: Compute) -> Compute:
        found = [getattr(owner, name, None) for name in names for owner in (numpy, numpy.ndarray)]
        for known in dict.fromkeys(item for item in found if item is not None):
            add_row(known, compute)
        return compute

    return register


def add_row(known: Any, compute: Compute) -> None:
    @rule(known)
    def evaluate(tx: Frame, /, *args: Var, **kwargs: Var) -> Var | None:
        if not is_about_arrays((*args, *kwargs.values())):
            return None
        return call(tx, known, compute, args, kwargs)


def is_float(x: TensorVar) -> bool:
    return x.fake.dtype in FLOATS


def need(condition: bool, why: str) -> None:
    """Errors: ValueError, of which a graph break is made."""
    if not condition:
        raise ValueError(why)


def axes_of(x: TensorVar, axis: Any) -> tuple[int, ...]:
    count = x.fake.dim()
    axes = range(count) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    return tuple(int(number) % count for number in axes)


# -- reductions ------------------------------------------------------------------------------------


def reduced(call: Call, x: TensorVar, function: Any, axis: Any, keepdims: Any, **more: Any) -> Any:
    """A reduction over axes; over none it is the array itself, of which torch makes all."""
    need(x.fake.dim() > 0 and axis != (), "a reduction of nothing")
    return call(function, x, axes_of(x, axis), keepdim=bool(keepdims), **more)


@function("sum")
def sum_(
    call: Call, x: TensorVar, axis: Any = None, dtype: Any = None, *, keepdims: Any = False
) -> Any:
    return reduced(call, call.cast(x, call.dtype), torch.sum, axis, keepdims, dtype=call.dtype)


@function("mean")
def mean(
    call: Call, x: TensorVar, axis: Any = None, dtype: Any = None, *, keepdims: Any = False
) -> Any:
    return reduced(call, call.cast(x, call.dtype), torch.mean, axis, keepdims)


def _register_moment(name: str, of: Any) -> None:
    @function(name)
    def moment(
        call: Call, x: TensorVar, axis: Any = None, *, ddof: Any = 0, keepdims: Any = False
    ) -> Any:
        need(type(ddof) in (int, float), "ddof")
        return reduced(call, call.cast(x, call.dtype), of, axis, keepdims, correction=ddof)


def _register_choice(names: tuple[str, ...], of: Any, of_truth: bool) -> None:
    @function(*names)
    def choice(call: Call, x: TensorVar, axis: Any = None, *, keepdims: Any = False) -> Any:
        return reduced(call, call(torch.ne, x, 0) if of_truth else x, of, axis, keepdims)


_register_moment("var", torch.var)
_register_moment("std", torch.std)
_register_choice(("max", "amax"), torch.amax, False)
_register_choice(("min", "amin"), torch.amin, False)
_register_choice(("all",), torch.all, True)
_register_choice(("any",), torch.any, True)


def one_axis(call: Call, x: TensorVar, torch_function: Any, axis: Any, **more: Any) -> Any:
    if axis is None:
        x, axis = call(torch.Tensor.reshape, x, (-1,)), 0
    need(x.fake.dim() > 0, "an axis of a number")
    return call(torch_function, x, int(axis), **more)


@function("prod")
def prod(
    call: Call, x: TensorVar, axis: Any = None, dtype: Any = None, *, keepdims: Any = False
) -> Any:
    need(axis is None and not keepdims or type(axis) is int, "several axes")
    more = {} if axis is None else {"keepdim": bool(keepdims)}
    return one_axis(call, call.cast(x, call.dtype), torch.prod, axis, dtype=call.dtype, **more)


@function("argmax")
def argmax(call: Call, x: TensorVar, axis: Any = None) -> Any:
    return one_axis(call, x, torch.argmax, axis)


@function("argmin")
def argmin(call: Call, x: TensorVar, axis: Any = None) -> Any:
    return one_axis(call, x, torch.argmin, axis)


@function("ptp")
def ptp(call: Call, x: TensorVar, axis: Any = None, *, keepdims: Any = False) -> Any:
    high, low = (reduced(call, x, of, axis, keepdims) for of in (torch.amax, torch.amin))
    return call(torch.sub, high, low)


@function("nansum")
def nansum(
    call: Call, x: TensorVar, axis: Any = None, dtype: Any = None, *, keepdims: Any = False
) -> Any:
    return sum_(call, call(torch.nan_to_num, x, 0.0, INFINITY, -INFINITY), axis, keepdims=keepdims)


@function("count_nonzero")
def count_nonzero(call: Call, x: TensorVar, axis: Any = None, *, keepdims: Any = False) -> Any:
    return reduced(call, call(torch.ne, x, 0), torch.sum, axis, keepdims)


@function("average")
def average(call: Call, x: TensorVar, axis: Any = None, *, keepdims: Any = False) -> Any:
    return mean(call, x, axis, keepdims=keepdims)


# -- shapes ----------------------------------------------------------------------------------------


@function("reshape")
def reshape(call: Call, x: TensorVar, *shape: Any, order: Any = "C") -> Any:
    need(order == "C", "order")
    sizes = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple | list) else shape
    return call(torch.Tensor.reshape, x, tuple(sizes))


@function("ravel", "flatten")
def ravel(call: Call, x: TensorVar, order: Any = "C") -> Any:
    need(order == "C", "order")
    return call(torch.Tensor.reshape, x, (-1,))


@function("transpose")
def transpose(call: Call, x: TensorVar, *axes: Any) -> Any:
    if len(axes) == 1 and isinstance(axes[0], tuple | list | type(None)):
        axes = tuple(axes[0] or ())
    order = axes_of(x, axes) if axes else tuple(range(x.fake.dim()))[::-1]
    return call(torch.Tensor.permute, x, order)


@function("squeeze")
def squeeze(call: Call, x: TensorVar, axis: Any = None) -> Any:
    return call(torch.Tensor.squeeze, x) if axis is None else call(torch.Tensor.squeeze, x, axis)


@function("expand_dims")
def expand_dims(call: Call, x: TensorVar, axis: Any) -> Any:
    return call(torch.Tensor.unsqueeze, x, int(axis))


@function("copy")
def copy(call: Call, x: TensorVar) -> Any:
    return call(torch.Tensor.clone, x)


@function("astype")
def astype(call: Call, x: TensorVar, dtype: Any, *, copy: Any = True) -> Any:
    need(copy is True, "copy")  # else it may be the same array
    return call.cast(x, call.dtype)


# -- several arrays --------------------------------------------------------------------------------


def casted(call: Call, arrays: Any) -> list[Any]:
    need(all(isinstance(item, TensorVar) for item in arrays), "numbers among the arrays")
    return [call.cast(item, call.dtype) for item in arrays]


@function("concatenate")
def concatenate(call: Call, arrays: Any, axis: Any = 0) -> Any:
    need(axis is not None, "axis")
    return call(torch.cat, casted(call, arrays), int(axis))


@function("stack")
def stack(call: Call, arrays: Any, axis: Any = 0) -> Any:
    return call(torch.stack, casted(call, arrays), int(axis))


@function("where")
def where(call: Call, condition: TensorVar, x: Any, y: Any) -> Any:
    sides = [
        side
        if isinstance(side, TensorVar)
        else call(torch.full, (), side, dtype=call.dtype, device=CPU)
        for side in (x, y)
    ]
    one, other = (call.cast(side, call.dtype) for side in sides)
    return call(torch.where, call(torch.ne, condition, 0), one, other)


@function("clip")
def clip(call: Call, x: TensorVar, low: Any = None, high: Any = None) -> Any:
    need(
        all(type(bound) in (int, float, type(None)) and bound == bound for bound in (low, high)),
        "bounds",
    )
    if not is_float(x):
        limits, bounds = torch.iinfo(x.fake.dtype), [b for b in (low, high) if b is not None]
        fine = all(type(b) is int and limits.min <= b <= limits.max for b in bounds)
        need(fine, "bounds of another dtype")
    need((low, high) != (None, None), "no bounds")
    return call(torch.clamp, call.cast(x, call.dtype), low, high)


@function("dot")
def dot(call: Call, x: TensorVar, y: Any) -> Any:
    need(is_float(x) and isinstance(y, TensorVar) and is_float(y), "ints")
    need(0 < x.fake.dim() <= 2 and 0 < y.fake.dim() <= 2, "dimensions")
    return call(torch.matmul, call.cast(x, call.dtype), call.cast(y, call.dtype))


# -- making ----------------------------------------------------------------------------------------


@function("zeros_like", "empty_like")
def zeros_like(call: Call, x: TensorVar, dtype: Any = None) -> Any:
    return call(torch.zeros_like, x, dtype=call.dtype)


@function("ones_like")
def ones_like(call: Call, x: TensorVar, dtype: Any = None) -> Any:
    return call(torch.ones_like, x, dtype=call.dtype)


def make_row(known: Any, compute: Compute) -> None:
    """The row of a function that makes an array out of numbers."""

    @rule(known)
    def evaluate(tx: Frame, /, *args: Var, **kwargs: Var) -> Var | None:
        if is_about_arrays((*args, *kwargs.values())):
            return None
        return call(tx, known, compute, args, kwargs)


def zeros(call: Call, shape: Any, dtype: Any = None) -> Any:
    return call(torch.zeros, shape, dtype=call.dtype, device=CPU)


def ones(call: Call, shape: Any, dtype: Any = None) -> Any:
    return call(torch.ones, shape, dtype=call.dtype, device=CPU)


def full(call: Call, shape: Any, value: Any, dtype: Any = None) -> Any:
    sizes = shape if isinstance(shape, tuple | list) else (shape,)
    if isinstance(value, Var) and fits(call, value):
        return call(torch.full, sizes, value, dtype=call.dtype, device=CPU)
    need(call.expected.size > 0 and type(value) in (int, float, bool), "the value")
    return call(torch.full, sizes, call.expected.flat[0].item(), dtype=call.dtype, device=CPU)


def fits(call: Call, number: Var) -> bool:
    """True for a symbolic number that the array holds exactly."""
    return number.python_type() is {torch.int64: int, torch.float64: float}.get(call.dtype)


def array(call: Call, /, *args: Any, **kwargs: Any) -> Any:
    """Of numbers some of which are symbolic."""
    items = args[0] if args else None
    if not (isinstance(items, list | tuple) and any(isinstance(item, Var) for item in items)):
        return constant(call, *args, **kwargs)
    fine = [fits(call, item) if isinstance(item, Var) else type(item) in (int, float)
            for item in items]
    need(all(fine), "symbolic numbers")
    return call(torch.stack, [
        call(torch.full, (), item, dtype=call.dtype, device=CPU) for item in items])


def eye(call: Call, *sizes: Any, dtype: Any = None, **more: Any) -> Any:
    if more or len(sizes) > 2:
        return constant(call, *sizes, **more)
    return call(torch.eye, *sizes, dtype=call.dtype, device=CPU)


def linspace(call: Call, start: Any, stop: Any, count: Any = 50, *rest: Any, **more: Any) -> Any:
    """For a symbolic count, in numpy's own steps: the last point is the end itself."""
    if rest or more or not isinstance(count, Var):
        return constant(call, start, stop, count, *rest, *more.values())
    need(all(type(end) in (int, float) for end in (start, stop)) and start != stop, "ends")
    need(call.expected.size > 1 and call.dtype is torch.float64, "symbolic numbers")
    trace, spaces = call.tx.trace, call.var(count)
    need(bool(trace.symbols.decide(f"({spaces.text} > 1)")), "points")  # type: ignore[attr-defined]
    last = trace.call(call.tx, operator.sub, spaces, ConstVar(1))
    step = trace.call(call.tx, operator.truediv, ConstVar(float(stop - start)), last)
    points = call(torch.arange, last, dtype=call.dtype, device=CPU)
    points = call(torch.add, call(torch.mul, points, step), float(start))
    end = call(torch.full, (1,), float(stop), dtype=call.dtype, device=CPU)
    return call(torch.cat, [points, end])


def constant(call: Call, /, *args: Any, **kwargs: Any) -> Any:
    """Numpy has computed it already."""
    parts = flat([*args, *kwargs.values()])
    need(not any(isinstance(part, Var) for part in parts), "symbolic numbers")
    need(0 < call.expected.size <= MOST_CONSTANTS, "size")
    return call(torch.tensor, call.expected.tolist(), dtype=call.dtype, device=CPU)


def arange(call: Call, *args: Any, dtype: Any = None) -> Any:
    if call.expected.dtype.kind != "i" or not all(isinstance(arg, int | Var) for arg in args):
        return constant(call, *args)
    return call(torch.arange, *args, dtype=call.dtype, device=CPU)


for _known, _compute in (
    (numpy.zeros, zeros),
    (numpy.empty, zeros),
    (numpy.ones, ones),
    (numpy.full, full),
    (numpy.arange, arange),
    (numpy.linspace, linspace),
    (numpy.eye, eye),
    (numpy.array, array),
    (numpy.asarray, array),
):
    make_row(_known, _compute)
