"""Functions of numpy that put arrays together, turn them round, sort them or choose of them.

The rows are of the same kind as in `array_functions`: what torch computes is compared with what
numpy gives for shadows, so that a row need not get dtypes, sizes or strides right.
"""

from __future__ import annotations

import math
from typing import Any

import numpy
import torch

from dynamo.graph_operators import array_orders
from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.table import first_rule
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.numpy.array import ArrayVar
from dynamo.symbolic.numpy.array_calls import CPU, Call
from dynamo.symbolic.numpy.array_functions import (
    add_row,
    axes_of,
    casted,
    function,
    is_float,
    need,
    one_axis,
)
from dynamo.symbolic.tensors.tensor import TensorVar

# -- arrays of arrays ------------------------------------------------------------------------------


def put_together(call: Call, parts: Any) -> Any:
    """One tensor of a nest of lists of tensors and numbers."""
    if isinstance(parts, list | tuple):
        need(bool(parts), "an empty list")
        return call(torch.stack, [put_together(call, part) for part in parts])
    if isinstance(parts, TensorVar):
        return call.cast(parts, call.dtype)
    return call(torch.full, (), parts, dtype=call.dtype, device=CPU)


def array_of(call: Call, parts: Any, dtype: Any = None) -> Any:
    return put_together(call, parts)


add_row(numpy.array, array_of)
add_row(numpy.asarray, array_of)


@first_rule([numpy.asarray, numpy.asanyarray, numpy.ascontiguousarray], ArrayVar)
def as_array(tx: Frame, array: ArrayVar, *rest: Var, **kwargs: Var) -> Var | None:
    """The array itself, where nothing is to be changed."""
    fake = array.tensor.fake
    plain = not rest and not kwargs and not array.scalar and fake.dim()
    return array if plain and fake.is_contiguous() else None


@function("meshgrid")
def meshgrid(
    call: Call, *arrays: Any, copy: Any = True, sparse: Any = False, indexing: Any = "xy"
) -> Any:
    need(copy is True and sparse is False and indexing in ("xy", "ij"), "options")
    need(all(isinstance(x, TensorVar) and x.fake.dim() == 1 for x in arrays), "dimensions")
    order = list(range(len(arrays)))
    if indexing == "xy" and len(arrays) > 1:
        order[0], order[1] = 1, 0
    shape = [0] * len(arrays)
    for place, x in zip(order, arrays, strict=True):
        shape[place] = x.fake.shape[0]
    made = []
    for place, x in zip(order, arrays, strict=True):
        row = tuple(-1 if axis == place else 1 for axis in range(len(arrays)))
        made.append(call(torch.Tensor.expand, call(torch.Tensor.reshape, x, row), tuple(shape)))
    return made


@function("vstack")
def vstack(call: Call, arrays: Any) -> Any:
    return call(torch.vstack, casted(call, arrays))


@function("hstack")
def hstack(call: Call, arrays: Any) -> Any:
    return call(torch.hstack, casted(call, arrays))


@function("column_stack")
def column_stack(call: Call, arrays: Any) -> Any:
    return call(torch.column_stack, casted(call, arrays))


@function("tile")
def tile(call: Call, x: TensorVar, times: Any) -> Any:
    return call(torch.tile, x, (times,) if type(times) is int else tuple(times))


@function("repeat")
def repeat(call: Call, x: TensorVar, times: Any, axis: Any = None) -> Any:
    need(type(times) is int, "counts of each item")
    return call(torch.repeat_interleave, x, times, axis)


@function("full_like")
def full_like(call: Call, x: TensorVar, value: Any, dtype: Any = None) -> Any:
    need(call.expected.size > 0 and type(value) in (int, float, bool), "the value")
    return call(torch.full_like, x, call.expected.flat[0].item(), dtype=call.dtype)


@function("outer")
def outer(call: Call, x: TensorVar, y: TensorVar) -> Any:
    flat = (call(torch.Tensor.reshape, each, (-1,)) for each in casted(call, (x, y)))
    return call(torch.outer, *flat)


# -- orders ----------------------------------------------------------------------------------------


@function("roll")
def roll(call: Call, x: TensorVar, shift: Any, axis: Any = None) -> Any:
    return call(torch.roll, x, shift, axis)


def shifted(call: Call, x: TensorVar, axes: Any, sign: int) -> Any:
    places = axes_of(x, tuple(axes) if isinstance(axes, list) else axes)
    steps = tuple(sign * (x.fake.shape[axis] // 2) for axis in places)
    return call(torch.roll, x, steps, places)


def fftshift(call: Call, x: TensorVar, axes: Any = None) -> Any:
    return shifted(call, x, axes, 1)


def ifftshift(call: Call, x: TensorVar, axes: Any = None) -> Any:
    return shifted(call, x, axes, -1)


@function("sort")
def sort(call: Call, x: TensorVar, axis: Any = -1) -> Any:
    need(call.expected is not None, "in place")
    return call(torch.sort, one_axis_of(call, x, axis), axis if axis is not None else 0).items[0]


@function("argsort")
def argsort(call: Call, x: TensorVar, axis: Any = -1, kind: Any = None) -> Any:
    """By numpy's own sort: which of two equal elements it puts first is that sort's matter."""
    need(x.fake.dim() > 0 and type(kind) in (str, type(None)), "a number")
    x = one_axis_of(call, x, axis)
    if kind in ("stable", "mergesort"):
        return call(torch.argsort, x, dim=0 if axis is None else int(axis), stable=True)
    return call(array_orders.argsort, x, 0 if axis is None else int(axis), kind)


@function("argpartition")
def argpartition(call: Call, x: TensorVar, place: Any, axis: Any = -1) -> Any:
    need(x.fake.dim() > 0 and type(place) is int, "several places")
    x = one_axis_of(call, x, axis)
    return call(array_orders.argpartition, x, place, 0 if axis is None else int(axis))


def one_axis_of(call: Call, x: TensorVar, axis: Any) -> Any:
    return call(torch.Tensor.reshape, x, (-1,)) if axis is None else x


@function("cumsum")
def cumsum(call: Call, x: TensorVar, axis: Any = None, dtype: Any = None) -> Any:
    return one_axis(call, call.cast(x, call.dtype), torch.cumsum, axis)


@function("cumprod")
def cumprod(call: Call, x: TensorVar, axis: Any = None, dtype: Any = None) -> Any:
    return one_axis(call, call.cast(x, call.dtype), torch.cumprod, axis)


@function("diff")
def diff(call: Call, x: TensorVar, n: Any = 1, axis: Any = -1) -> Any:
    return call(torch.diff, x, n, axis)


@function("moveaxis")
def moveaxis(call: Call, x: TensorVar, source: Any, destination: Any) -> Any:
    return call(torch.movedim, x, source, destination)


@function("swapaxes")
def swapaxes(call: Call, x: TensorVar, one: Any, other: Any) -> Any:
    return call(torch.transpose, x, one, other)


@function("tril")
def tril(call: Call, x: TensorVar, k: Any = 0) -> Any:
    return call(torch.tril, x, k)


@function("triu")
def triu(call: Call, x: TensorVar, k: Any = 0) -> Any:
    return call(torch.triu, x, k)


@function("trace")
def trace(call: Call, x: TensorVar) -> Any:
    need(x.fake.dim() == 2, "dimensions")
    return call(torch.trace, call.cast(x, call.dtype))


# -- choices ---------------------------------------------------------------------------------------


@function("take_along_axis")
def take_along_axis(call: Call, x: TensorVar, indices: TensorVar, axis: Any = -1) -> Any:
    """By indices of each axis: `torch.take_along_dim` takes another item where one is too large."""
    if axis is None:
        x, axis = call(torch.Tensor.reshape, x, (-1,)), 0
    places: list[Any] = []
    for at, size in enumerate(x.fake.shape):
        sizes = tuple(-1 if other == at else 1 for other in range(x.fake.dim()))
        row = call(torch.arange, size, device=CPU)
        places.append(call(torch.Tensor.reshape, row, sizes))
    places[axis] = call.cast(indices, torch.int64)
    return call(torch.Tensor.__getitem__, x, tuple(places))


@function("unique")
def unique(call: Call, x: TensorVar) -> Any:
    need(not is_float(x), "floats, of which NaN equals itself here")
    return call(torch.unique, call(torch.Tensor.reshape, x, (-1,)))


@function("nonzero")
def nonzero(call: Call, x: TensorVar) -> Any:
    need(x.fake.dim() > 0, "a number")
    return call(torch.nonzero, x, as_tuple=True)


@function("flatnonzero")
def flatnonzero(call: Call, x: TensorVar) -> Any:
    flat = call(torch.Tensor.reshape, x, (-1,))
    return call(torch.nonzero, flat, as_tuple=True).items[0]


# -- norms -----------------------------------------------------------------------------------------


def norm(
    call: Call, x: TensorVar, ord: Any = None, axis: Any = None, keepdims: Any = False
) -> Any:
    axes = axes_of(x, axis)
    need(ord is None or len(axes) == 1 and ord in (1, 2, math.inf), "the order")
    need(bool(axes), "a number")
    x, keep = call.cast(x, call.dtype), bool(keepdims)
    if ord is math.inf or ord == math.inf:
        return call(torch.amax, call(torch.abs, x), axes, keepdim=keep)
    if ord == 1:
        return call(torch.sum, call(torch.abs, x), axes, keepdim=keep)
    return call(torch.linalg.vector_norm, x, dim=axes, keepdim=keep)


for _known, _compute in (
    (numpy.linalg.norm, norm), (numpy.fft.fftshift, fftshift), (numpy.fft.ifftshift, ifftshift),
):
    add_row(_known, _compute)
