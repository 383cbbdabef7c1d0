"""Lowerings of pooling: windows of a few elements are unrolled into the loop over the outputs."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any

import torch

from inductor.ir.body import Ops, Value
from inductor.ir.extent import surely_less
from inductor.ir.index import floordiv
from inductor.ir.scalar_ops import dtype_kind
from inductor.lowering.builder import layout_of
from inductor.lowering.registry import Call, lowering
from inductor.lowering.tensor import Indices, Tensor, compute_dtype

aten = torch.ops.aten
# Of a window, which is unrolled (5 x 5); windows over one element, each a load of its gradient (3 x
# 3). Chosen, not measured.
MOST_ELEMENTS = 25
MOST_WINDOWS = 9


def pair(value: Any) -> tuple[int, int]:
    """Two numbers from one, two or none."""
    values = [value] if isinstance(value, int) else list(value)
    return (values[0], values[-1]) if values else (0, 0)


def _window(
    ops: Ops, x: Tensor, indices: Indices, kernel: tuple[int, int], stride: tuple[int, int],
    padding: tuple[int, int], dilation: tuple[int, int], outside: float,
) -> Iterator[tuple[Value, Any, Any]]:
    """Each element of a window, and its row and column; `outside` beyond the border."""
    *front, row, column = indices
    height, width = x.size[-2:]
    for a, b in product(range(kernel[0]), range(kernel[1])):
        h = row * stride[0] + (a * dilation[0] - padding[0])
        w = column * stride[1] + (b * dilation[1] - padding[1])
        mask = _inside(ops, (h, w), (height, width))
        where = (*front, h, w)
        if mask is None:
            yield x.load(ops, where), h, w
        else:
            yield ops.masked(mask, lambda at=where: x.load(ops, at), outside), h, w  # type: ignore


@lowering(aten.max_pool2d_with_indices.default)
def max_pool(
    call: Call, x: Tensor, kernel: Sequence[int], stride: Any = (), padding: Any = 0,
    dilation: Any = 1, ceil_mode: bool = False,
) -> Any:
    size = pair(kernel)
    steps = pair(stride) if stride not in ((), []) else size
    values, positions = call.result
    if size[0] * size[1] > MOST_ELEMENTS or dtype_kind(x.dtype) != "f" or 0 in values.shape:
        return call.refuse("a large window, integers, or nothing")
    pads, gaps = pair(padding), pair(dilation)
    if pads != (0, 0) and gaps != (1, 1):
        return call.refuse("padding and dilation")
    x.realize()
    form = (size, steps, pads, gaps, -math.inf)

    def best(ops: Ops, i: Indices) -> Value:
        found = None
        for value, _, _ in _window(ops, x, i, *form):
            found = value if found is None else ops.maximum(found, value)
        assert found is not None
        return found

    def place(ops: Ops, i: Indices) -> Value:
        # eager starts at the first element inside of the border, with minus infinity
        found = ops.constant(-math.inf, compute_dtype(x.dtype))
        start = (i[-2] * steps[0] - pads[0], i[-1] * steps[1] - pads[1])
        h0, w0 = (ops.maximum(ops.index_expr(n), ops.index_expr(0)) for n in start)
        where = ops.add(ops.mul(h0, ops.constant(x.size[-1], torch.int64)), w0)
        for value, h, w in _window(ops, x, i, *form):
            here = ops.index_expr(h * x.size[-1] + w)
            # as eager: a later one wins if it is greater, or not a number
            wins = ops.bitwise_or(ops.gt(value, found), ops.call("isnan", value))
            found, where = ops.where(wins, value, found), ops.where(wins, here, where)
        return where

    cost = 2 * size[0] * size[1]
    return (
        call.builder.computed(layout_of(values), [x], cost, best),
        call.builder.computed(layout_of(positions), [x], 2 * cost, place),
    )


@lowering(aten.max_pool2d_with_indices_backward.default)
def max_pool_backward(
    call: Call, grad: Tensor, x: Tensor, kernel: Sequence[int], stride: Any, padding: Any,
    dilation: Any, ceil_mode: bool, positions: Tensor,
) -> Any:
    """Each element gathers from the few windows that it lies in: those that chose it."""
    size = pair(kernel)
    steps = pair(stride) if stride not in ((), []) else size
    pads, reach = pair(padding), [-(-a // b) for a, b in zip(size, steps, strict=True)]
    if call.builder.device.type == "cpu" or 0 in call.layout.size or 0 in grad.size:
        return call.refuse("ATen adds where memory is near")
    if pair(dilation) != (1, 1) or reach[0] * reach[1] > MOST_WINDOWS:
        return call.refuse("many windows over one element")
    grad.realize()  # the positions may be computed here, from what was saved of them
    held = compute_dtype(grad.dtype)

    def compute(ops: Ops, indices: Indices) -> Value:
        *front, row, column = indices
        here = ops.index_expr(row * x.size[-1] + column)
        last = [
            floordiv(index + pad, step)
            for index, pad, step in zip(indices[-2:], pads, steps, strict=True)
        ]
        total = None
        for back in product(*map(range, reach)):
            window = [at - by for at, by in zip(last, back, strict=True)]
            mask = _inside(ops, window, grad.size[-2:])
            at = (*front, *window)
            chosen = functools.partial(_if_chosen, ops, grad, positions, at, here, held)
            value = chosen() if mask is None else ops.masked(mask, chosen, 0)
            total = value if total is None else ops.add(total, value)
        assert total is not None
        return total

    return call.builder.computed(call.layout, [grad, positions], 20 * math.prod(reach), compute)


def _if_chosen(
    ops: Ops, grad: Tensor, positions: Tensor, at: Indices, here: Value, held: torch.dtype
) -> Value:
    """The gradient of a window whose greatest element lies here, else nothing."""
    found = ops.eq(positions.load(ops, at), here)
    return ops.where(found, grad.load(ops, at), ops.constant(0, held))


def _inside(ops: Ops, place: Sequence[Any], extents: Sequence[Any]) -> Value | None:
    """Whether a place lies inside of the borders; None where it always does."""
    mask = None
    for index, extent in zip(place, extents, strict=True):
        tests = []
        if not surely_less(-1, index.low):
            tests.append(ops.ge(ops.index_expr(index), ops.index_expr(0)))
        if not surely_less(index.high, extent):
            tests.append(ops.lt(ops.index_expr(index), ops.index_expr(extent)))
        for test in tests:
            mask = test if mask is None else ops.bitwise_and(mask, test)
    return mask


@lowering(aten.avg_pool2d.default)
def avg_pool(
    call: Call, x: Tensor, kernel: Sequence[int], stride: Any = (), padding: Any = 0,
    ceil_mode: bool = False, count_include_pad: bool = True, divisor: Any = None,
) -> Any:
    size = pair(kernel)
    steps = pair(stride) if stride not in ((), []) else size
    pads = pair(padding)
    over = ceil_mode and any(
        (extent + 2 * pad - length) % step
        for extent, pad, length, step in zip(x.size[-2:], pads, size, steps, strict=True)
    )
    exact = pads == (0, 0) or count_include_pad or divisor
    if size[0] * size[1] > MOST_ELEMENTS or dtype_kind(x.dtype) != "f" or not exact:
        return call.refuse("a large window, or a divisor that changes at the border")
    if over or 0 in call.result.shape:
        return call.refuse("windows over the border")
    x.realize()
    held = compute_dtype(x.dtype)
    count = divisor or size[0] * size[1]

    def average(ops: Ops, i: Indices) -> Value:
        total = None
        for value, _, _ in _window(ops, x, i, size, steps, pads, (1, 1), 0.0):
            total = value if total is None else ops.add(total, value)
        assert total is not None
        return ops.truediv(total, ops.constant(count, held))

    return call.builder.computed(call.layout, [x], 2 * size[0] * size[1], average)


@lowering(aten.avg_pool2d_backward.default)
def avg_pool_backward(
    call: Call, grad: Tensor, x: Tensor, kernel: Sequence[int], stride: Any, padding: Any,
    ceil_mode: bool, count_include_pad: bool, divisor: Any,
) -> Any:
    """Each element gathers its part of the few windows that it lies in."""
    size = pair(kernel)
    steps = pair(stride) if stride not in ((), []) else size
    pads, reach = pair(padding), [-(-a // b) for a, b in zip(size, steps, strict=True)]
    if call.builder.device.type == "cpu" or 0 in call.layout.size or 0 in grad.size:
        return call.refuse("ATen adds where memory is near")
    over = any(
        (count - 1) * step + length > extent + 2 * pad
        for count, step, length, extent, pad in zip(
            grad.size[-2:], steps, size, x.size[-2:], pads, strict=True)
    )
    exact = pads == (0, 0) or count_include_pad or divisor
    if over or not exact or reach[0] * reach[1] > MOST_WINDOWS or dtype_kind(grad.dtype) != "f":
        return call.refuse("many windows over one element, or a divisor that changes at the border")
    grad.realize()
    held = compute_dtype(grad.dtype)
    count = divisor or size[0] * size[1]

    def compute(ops: Ops, indices: Indices) -> Value:
        *front, _, _ = indices
        places = [index + pad for index, pad in zip(indices[-2:], pads, strict=True)]
        last = [floordiv(place, step) for place, step in zip(places, steps, strict=True)]
        total = None
        for back in product(*map(range, reach)):
            window = [at - by for at, by in zip(last, back, strict=True)]
            offsets = [
                place - at * step for place, at, step in zip(places, window, steps, strict=True)
            ]
            mask = _inside(ops, (*window, *offsets), (*grad.size[-2:], *size))
            at = (*front, *window)
            load: Callable[[], Value] = functools.partial(grad.load, ops, at)
            value = load() if mask is None else ops.masked(mask, load, 0)
            total = value if total is None else ops.add(total, value)
        assert total is not None
        return ops.truediv(total, ops.constant(count, held))

    return call.builder.computed(call.layout, [grad], 12 * math.prod(reach), compute)


@lowering(aten._adaptive_avg_pool2d.default)
def adaptive_avg_pool(call: Call, x: Tensor, size: Sequence[int]) -> Any:
    height, width = x.size[-2:]
    if dtype_kind(x.dtype) != "f" or 0 in call.result.shape or 0 in x.size:
        return call.refuse("integers, or nothing")
    if tuple(size) == (1, 1):
        return _mean_of_all(call, x)
    if height % size[0] or width % size[1]:
        return call.refuse("windows of several sizes")
    kernel = (height // size[0], width // size[1])
    return avg_pool(call, x, kernel, kernel)


def _mean_of_all(call: Call, x: Tensor) -> Any:
    rank, count = len(x.size), x.size[-1] * x.size[-2]
    divide: Callable[[Ops, Value], Value] = lambda ops, v: ops.truediv(  # noqa: E731
        v, ops.constant(count, v.dtype)
    )
    return call.builder.reduce(call.layout, x, [rank - 2, rank - 1], "sum", finish=divide)
