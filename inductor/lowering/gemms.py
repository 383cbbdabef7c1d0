"""Lowerings of GEMMs of few rows: sums over what a weight is made of.

Such a GEMM waits for its weight to come from memory. As a loop, it reads the weight as it is
stored (in int8, say, with scales) and converts it in registers, and takes along what follows it.
Others are a library's.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from inductor.ir.body import Ops, Value
from inductor.ir.graph import Layout, contiguous
from inductor.ir.index import Index, constant
from inductor.lowering import readings
from inductor.lowering.builder import converting
from inductor.lowering.packed import (
    InWords,
    by_halves,
    nibble_weights,
    sum_by_units,
    sum_of_products,
)
from inductor.lowering.readings import BY_LIBRARY
from inductor.lowering.registry import Call, lowering
from inductor.lowering.tensor import HALVES, Indices, Tensor

aten = torch.ops.aten


@lowering(aten.mm.default, of_library=True)
def mm(call: Call, left: Tensor, right: Tensor) -> Any:
    """A GEMM of few rows; others are the library's."""
    return _gemm(call, left, right, lambda ops, total, i: total)


@lowering(aten.addmm.default, of_library=True)
def addmm(
    call: Call, bias: Tensor, left: Tensor, right: Tensor, *, beta: float = 1, alpha: float = 1
) -> Any:
    """The same with a bias."""
    if (beta, alpha) != (1, 1):
        return call.refuse("a library scales it")
    return _gemm(call, left, right, lambda ops, v, i: ops.add(v, _load(ops, bias, i)), bias)


@lowering(aten._weight_int8pack_mm.default, of_library=True)
def weight_int8pack_mm(call: Call, left: Tensor, weight: Tensor, scales: Tensor) -> Any:
    """The same of a weight [columns, terms] in int8 with a scale for each column."""
    if call.builder.device.type == "cpu":
        return call.refuse(BY_LIBRARY)
    wide = converting(weight, left.dtype)
    terms, columns = reversed(weight.size)
    layout = contiguous((terms, columns), left.dtype, call.builder.device)
    right = wide.as_view(layout, lambda i: (i[1], i[0]))
    return _gemm(
        call, left, right, lambda ops, v, i: ops.mul(v, _load(ops, scales, i)), scales)


@lowering(aten._scaled_mm.default, of_library=True)
def scaled_mm(
    call: Call, left: Tensor, right: Tensor, scale_a: Tensor, scale_b: Tensor,
    bias: Tensor | None = None, scale_result: Tensor | None = None, out_dtype: Any = None,
    use_fast_accum: bool = False,
) -> Any:
    """The same of 8-bit floats with a scale for all of an operand, or for each row or column."""
    plain = all(
        scale.dtype is torch.float32 and _broadcasts(scale, size) for scale, size in
        ((scale_a, (left.size[0], 1)), (scale_b, (1, right.size[1])))
    )
    if scale_result is not None or not plain or call.result.dtype not in (*HALVES, torch.float32):
        return call.refuse("a library's way to scale")

    def finish(ops: Ops, value: Value, i: Indices) -> Value:
        value = ops.mul(value, ops.mul(_load(ops, scale_a, i), _load(ops, scale_b, i)))
        return value if bias is None else ops.add(value, _load(ops, bias, i))

    more = [scale_a, scale_b] if bias is None else [scale_a, scale_b, bias]
    return _gemm(call, left, right, finish, *more)


def _broadcasts(scale: Tensor, size: Sequence[int]) -> bool:
    """Whether a scale is one number, or one for each row or column as `size` has them."""
    return math.prod(scale.size) == 1 or tuple(scale.size) == tuple(size)


def _load(ops: Ops, x: Tensor, indices: Indices) -> Value:
    """An element of what is broadcast to the result, as float32."""
    tail = indices[max(0, len(indices) - len(x.size)) :]
    where = tuple(constant(0) if n == 1 else at for n, at in zip(x.size, tail, strict=True))
    return ops.to_dtype(x.load(ops, where), torch.float32)


def _gemm(
    call: Call, left: Tensor, right: Tensor, finish: Callable[[Ops, Value, Indices], Value],
    *more: Tensor,
) -> Any:
    """finish: makes the result of a sum, and of `more`."""
    reading = readings.reading_of(call, left, right)
    if reading is None:
        return NotImplemented
    (rows, terms), columns, steps = left.size, right.size[1], reading.steps
    in_halves = reading.by_units and not reading.by_columns
    planes = steps // 2 if in_halves else steps
    turned = turned_left(call, left, planes)
    words = readings.as_words(call, reading.words, reading.dtype) if reading.words else None
    layout = contiguous((rows, columns, terms // steps), torch.float32, call.builder.device)
    quick = readings.reads_words(call) and call.result.dtype in HALVES

    def given(ops: Ops, row: Index, step: Index) -> list[Value]:
        if in_halves:
            return by_halves(turned, ops, row, step)
        return [turned.load(ops, (row, constant(at), step)) for at in range(steps)]

    def element(ops: Ops, i: Indices) -> Value:
        row, column, step = i
        bytewise: Any = ops if words is None else InWords(ops, reading.words, words)
        weights = [right.load(bytewise, (step * steps + at, column)) for at in range(steps)]
        if reading.by_units:
            of_nibbles = nibble_weights(ops, weights)
            assert of_nibbles is not None
            return sum_by_units(ops, of_nibbles, given(ops, row, step))
        return sum_of_products(ops, given(ops, row, step), weights, quick)

    def exact(ops: Ops, i: Indices) -> Value:
        row, column, step = i
        bytewise: Any = ops if words is None else InWords(ops, reading.words, words)
        weights = [right.load(bytewise, (step * steps + at, column)) for at in range(steps)]
        rounded = [
            ops.to_dtype(ops.to_dtype(weight, right.dtype), torch.float32) for weight in weights]
        return functools.reduce(ops.add, map(ops.mul, given(ops, row, step), rounded))

    quick_terms = call.builder.computed(layout, [turned, right], 2, element)
    total = summed(call, quick_terms, exact if steps > 1 or reading.by_units else None)
    return call.builder.computed(
        call.layout, [total, *more], 1, lambda ops, i: finish(ops, total.load(ops, i), i))


def summed(
    call: Call, terms: Tensor, exact: Callable[[Ops, Indices], Value] | None = None
) -> Tensor:
    """Sums over the last dimension of three. exact: the terms where the sum is not finite. Where
    one of the row is infinite or very large, what is taken out of a sum makes NaN or infinity of
    it where eager has another one, or a number."""
    sums = contiguous(terms.size[:2], torch.float32, call.builder.device)
    reduce = call.builder.reduce
    if exact is None:
        return reduce(sums, terms, [2], "sum")
    quick: list[Value] = []  # the sum, and whether it is finite; of the only body that is traced

    def exact_sum(ops: Ops, value: Value, i: Indices) -> tuple[Value, ...]:
        total = ops.reduction("sum", value)
        infinity = ops.constant(math.inf, total.dtype)
        is_finite = ops.call("lt", ops.call("abs", total), infinity)
        quick[:] = is_finite, total
        return (ops.call("where", is_finite, ops.constant(0.0, total.dtype), exact(ops, i)),)

    return reduce(sums, terms, [2], "sum", exact_sum, lambda ops, v: ops.call("where", *quick, v))


def turned_left(
    call: Call, left: Tensor, steps: int, tile: int = 0,
    place: Callable[[Index, Index], Index] | None = None,
) -> Tensor:
    """The left operand as [rows, steps, terms // steps]: neighbours in memory are what is
    multiplied with neighbouring elements of a packed weight. place: the term of a step and an
    element, by default the elements' values lie one after the other; tile: another for each."""
    rows, terms = left.size
    left.realize()  # else each program would compute it
    size = (rows, steps, terms // steps)
    layout = contiguous(size, left.dtype, call.builder.device)
    if steps == 1:
        down, along = left.layout.stride
        same = Layout(layout.device, left.dtype, size, (down, 0, along), left.layout.offset)
        return left.as_view(same, lambda i: (i[0], i[2]))
    key = (left.realize(), steps, tile)
    known, since = call.builder.turned.get(key, (None, 0))
    if known is not None and not call.builder.is_written(key[0].buffer, since):
        return known
    if place is None:
        place = lambda at, step: step * steps + at  # noqa: E731
    found = call.builder.computed(
        layout, [left], 0, lambda ops, i: left.load(ops, (i[0], place(i[1], i[2]))))
    found.realize()
    call.builder.turned[key] = found, len(call.builder.nodes)
    return found
