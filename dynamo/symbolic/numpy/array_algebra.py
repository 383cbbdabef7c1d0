"""Numpy's functions of matrices, of order and of differences, and `reduce`, `accumulate` and
`outer` of universal functions; rows as in `array_functions`."""

from __future__ import annotations

from typing import Any

import numpy
import torch

from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.table import rule
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.numpy import array_functions as functions
from dynamo.symbolic.numpy.array import ArrayVar
from dynamo.symbolic.numpy.array_calls import CPU, Call, call
from dynamo.symbolic.numpy.array_functions import add_row, function, is_float, need
from dynamo.symbolic.tensors.tensor import TensorVar

# -- matrices --------------------------------------------------------------------------------------


def matrices(name: str) -> Any:
    """Registers how `numpy.linalg.<name>` is computed, for arrays of floats."""

    def register(compute: Any) -> Any:
        add_row(getattr(numpy.linalg, name), compute)
        return compute

    return register


@matrices("norm")
def norm(
    call: Call, x: TensorVar, ord: Any = None, axis: Any = None, keepdims: Any = False
) -> Any:
    need(is_float(x) and (axis is None or type(axis) is int), "axis")
    lines = x.fake.dim() == 1 or axis is not None
    need(ord in ((None, 1, 2, numpy.inf) if lines else (None, "fro")), "the kind of norm")
    need(axis is not None or not keepdims, "keepdims of all axes")
    kind = 2 if ord in (None, "fro") else ord
    return call(torch.linalg.vector_norm, x, kind, dim=axis, keepdim=bool(keepdims))


@matrices("det")
def det(call: Call, x: TensorVar) -> Any:
    return call(torch.linalg.det, x)


@matrices("matmul") if hasattr(numpy.linalg, "matmul") else (lambda compute: compute)
def matmul(call: Call, x: TensorVar, y: TensorVar) -> Any:
    return call(torch.matmul, call.cast(x, call.dtype), call.cast(y, call.dtype))


@function("trace")
def trace(call: Call, x: TensorVar, offset: Any = 0) -> Any:
    need(x.fake.dim() == 2, "dimensions")
    return call(torch.sum, call(torch.diagonal, x, int(offset)), dtype=call.dtype)


@function("kron")
def kron(call: Call, x: TensorVar, y: TensorVar) -> Any:
    return call(torch.kron, call.cast(x, call.dtype), call.cast(y, call.dtype))


@function("cross")
def cross(call: Call, x: TensorVar, y: TensorVar) -> Any:
    need(x.fake.shape == y.fake.shape and x.fake.shape[-1] == 3, "shapes")
    return call(torch.linalg.cross, call.cast(x, call.dtype), call.cast(y, call.dtype))


@function("einsum")
def einsum(call: Call, text: Any, *arrays: TensorVar) -> Any:
    need(type(text) is str and all(map(is_float, arrays)), "arguments")
    inputs, arrow, result = text.replace(" ", "").partition("->")
    plain = all(len(set(part)) == len(part) for part in inputs.split(","))
    need(bool(arrow) and plain, "a diagonal")
    return call(torch.einsum, text, *[call.cast(item, call.dtype) for item in arrays])


# -- order and differences -------------------------------------------------------------------------


@function("diff")
def diff(call: Call, x: TensorVar, n: Any = 1, axis: Any = -1) -> Any:
    need(x.fake.dtype is not torch.bool and type(n) is int and n >= 0, "arguments")
    return call(torch.diff, x, n, int(axis))


@function("take")
def take(call: Call, x: TensorVar, indices: Any, axis: Any = None) -> Any:
    """Of constant indices, which numpy has checked."""
    need(isinstance(indices, list) and all(type(i) is int for i in indices), "indices")
    if axis is None:
        x, axis = call(torch.Tensor.reshape, x, (-1,)), 0
    size = x.fake.shape[int(axis)]
    need(type(size) is int, "an open size")
    index = call(torch.tensor, [i % size for i in indices], dtype=torch.int64, device=CPU)
    return call(torch.index_select, x, int(axis), index)


@function("round", "around")
def round_(call: Call, x: TensorVar, decimals: Any = 0) -> Any:
    need(is_float(x) and type(decimals) is int and decimals >= 0, "arguments")
    return call(torch.round, x, decimals=decimals)


def in_order(call: Call, x: TensorVar, axis: Any) -> tuple[TensorVar, int]:
    """The items sorted along a last axis (NaN is last), and how many there are."""
    need(is_float(x) and (axis is None or type(axis) is int) and x.fake.dim() > 0, "arguments")
    if axis is None:
        x, axis = call(torch.Tensor.reshape, x, (-1,)), 0
    count = x.fake.shape[axis]
    need(type(count) is int and count > 0, "an open size")
    return call(torch.sort, call(torch.movedim, x, axis, -1)).items[0], count


def unless_nan(call: Call, items: TensorVar, result: TensorVar) -> Any:
    last = call(torch.select, items, -1, -1)
    return call(torch.where, call(torch.isnan, last), last, result)


@function("median")
def median(call: Call, x: TensorVar, axis: Any = None) -> Any:
    items, count = in_order(call, x, axis)
    middle = call(torch.narrow, items, -1, (count - 1) // 2, 2 - count % 2)
    return unless_nan(call, items, call(torch.mean, middle, -1))


# Before, numpy interpolates between an item and itself, which is NaN beside infinities.
TAKES_THE_ITEM = numpy.lib.NumpyVersion(numpy.__version__) >= "2.4.0"


@function("quantile")
def quantile(call: Call, x: TensorVar, q: Any, axis: Any = None) -> Any:
    """Between two items, in numpy's way: from the nearer one on."""
    need(type(q) in (int, float) and 0 <= q <= 1, "q")
    need(type(q) is float or TAKES_THE_ITEM, "a whole q of this numpy")
    items, count = in_order(call, x, axis)
    place = (count - 1) * q
    low = min(int(place), count - 1)
    part = place - low
    one = call.cast(call(torch.select, items, -1, low), call.dtype)
    if type(q) is int:  # numpy takes the item as it is
        return unless_nan(call, call.cast(items, call.dtype), one)
    other = call.cast(call(torch.select, items, -1, min(low + 1, count - 1)), call.dtype)
    way = call(torch.sub, other, one)
    if part < 0.5:
        result = call(torch.add, one, call(torch.mul, way, part))
    else:
        result = call(torch.sub, other, call(torch.mul, way, 1 - part))
    return unless_nan(call, call.cast(items, call.dtype), result)


@function("percentile")
def percentile(call: Call, x: TensorVar, q: Any, axis: Any = None) -> Any:
    need(type(q) in (int, float), "q")
    return quantile(call, x, q / 100, axis)


@function("select")
def select(call: Call, conditions: Any, choices: Any, default: Any = 0) -> Any:
    """Of arrays of one dtype; the first condition that holds counts."""
    need(all(isinstance(choice, TensorVar) for choice in choices), "numbers among the choices")
    result: Any = call(torch.full, (), default, dtype=call.dtype, device=CPU)
    for condition, choice in zip(conditions[::-1], choices[::-1], strict=True):
        need(condition.fake.dtype is torch.bool, "conditions")
        result = call(torch.where, condition, call.cast(choice, call.dtype), result)
    return result


# -- universal functions ---------------------------------------------------------------------------

REDUCED: dict[Any, Any] = {
    numpy.add: functions.sum_, numpy.multiply: functions.prod, numpy.maximum: functions.max_,
    numpy.minimum: functions.min_, numpy.logical_and: functions.all_,
    numpy.logical_or: functions.any_,
}
ACCUMULATED: dict[Any, Any] = {numpy.add: functions.cumsum, numpy.multiply: functions.cumprod}
OUTER: dict[Any, Any] = {
    numpy.add: torch.add, numpy.subtract: torch.sub, numpy.multiply: torch.mul,
    numpy.maximum: torch.maximum, numpy.minimum: torch.minimum,
}


def outer_of(operation: Any) -> Any:
    def compute(call: Call, x: TensorVar, y: TensorVar) -> Any:
        ones = (1,) * y.fake.dim()
        left = call(torch.Tensor.reshape, call.cast(x, call.dtype), (*x.fake.shape, *ones))
        return call(operation, left, call.cast(y, call.dtype))

    return compute


def along_first(compute: Any) -> Any:
    """`reduce` and `accumulate` go along the first axis, where none is given."""

    def along(call: Call, x: TensorVar, axis: Any = 0, **more: Any) -> Any:
        return compute(call, x, axis, **more)

    return along


METHODS: dict[Any, Any] = {
    numpy.ufunc.reduce: {known: along_first(row) for known, row in REDUCED.items()},
    numpy.ufunc.accumulate: {known: along_first(row) for known, row in ACCUMULATED.items()},
    numpy.ufunc.outer: {known: outer_of(operation) for known, operation in OUTER.items()},
}


def add_method(method: Any, rows: dict[Any, Any]) -> None:
    @rule(method)
    def evaluate(tx: Frame, ufunc: Var, /, *args: Var, **kwargs: Var) -> Var | None:
        known = getattr(ufunc, "value", None)
        if not isinstance(known, numpy.ufunc) or known not in rows:
            return None
        if not args or not all(isinstance(arg, ArrayVar | ConstVar) for arg in args):
            return None
        bound = getattr(known, method.__name__)
        return call(tx, bound, rows[known], args, kwargs)


for _method, _rows in METHODS.items():
    add_method(_method, _rows)
