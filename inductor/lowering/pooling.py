"""Lowerings of pooling: windows of a few elements are unrolled into the loop over the outputs."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch

from inductor.ir.body import Ops, Value
from inductor.ir.extent import surely_less
from inductor.ir.index import constant, floordiv, mod
from inductor.ir.scalar_ops import dtype_kind
from inductor.lowering.builder import layout_of
from inductor.lowering.registry import Call, lowering
from inductor.lowering.tensor import Indices, Tensor, compute_dtype

aten = torch.ops.aten
# Of a window, which is unrolled (5 x 5, 3 x 3 x 3); windows over one element, each a load of its
# gradient and a division, or a place (3 x 3). Chosen, not measured.
MOST_ELEMENTS = 27
MOST_WINDOWS = 9


def pair(value: Any) -> tuple[int, int]:
    """Two numbers from one, two or none."""
    values = [value] if isinstance(value, int) else list(value)
    return (values[0], values[-1]) if values else (0, 0)


def lengths(value: Any, rank: int) -> tuple[int, ...]:
    """A number for each axis of a window, from one, all or none."""
    values = [value] if isinstance(value, int) else list(value) or [0]
    return tuple(values) if len(values) == rank else (values[0],) * rank


def _window(
    ops: Ops, x: Tensor, indices: Indices, kernel: Sequence[int], stride: Sequence[int],
    padding: Sequence[int], dilation: Sequence[int], outside: float,
) -> Iterator[tuple[Value, list[Any]]]:
    """Each element of a window, and its place on the axes of the window; `outside` beyond the
    border."""
    rank = len(kernel)
    form = list(zip(stride, dilation, padding, strict=True))
    for offsets in product(*map(range, kernel)):
        place = [
            index * step + (offset * gap - pad)
            for index, offset, (step, gap, pad) in zip(indices[-rank:], offsets, form, strict=True)
        ]
        mask = _inside(ops, place, x.size[-rank:])
        where = (*indices[:-rank], *place)
        if mask is None:
            yield x.load(ops, where), place
        else:
            yield ops.masked(mask, lambda at=where: x.load(ops, at), outside), place  # type: ignore


@lowering(aten.max_pool2d_with_indices.default)
def max_pool(
    call: Call, x: Tensor, kernel: Sequence[int], stride: Any = (), padding: Any = 0,
    dilation: Any = 1, ceil_mode: bool = False,
) -> Any:
    return _max_pool(call, x, 2, kernel, stride, padding, dilation)


@lowering(aten.max_pool3d_with_indices.default)
def max_pool_of_films(
    call: Call, x: Tensor, kernel: Sequence[int], stride: Any = (), padding: Any = 0,
    dilation: Any = 1, ceil_mode: bool = False,
) -> Any:
    if call.builder.device.type == "cpu":
        return call.refuse("its kernels choose among equal elements by their layout")
    return _max_pool(call, x, 3, kernel, stride, padding, dilation)


def _max_pool(
    call: Call, x: Tensor, rank: int, kernel: Any, stride: Any, padding: Any, dilation: Any
) -> Any:
    """The greatest element of each window, and its place in the image or film."""
    size = lengths(kernel, rank)
    steps = lengths(stride, rank) if stride not in ((), []) else size
    values, positions = call.result
    if math.prod(size) > MOST_ELEMENTS or dtype_kind(x.dtype) != "f" or 0 in values.shape:
        return call.refuse("a large window, integers, or nothing")
    pads, gaps = lengths(padding, rank), lengths(dilation, rank)
    if any(pads) and {*gaps} != {1}:
        return call.refuse("padding and dilation")
    x.realize()
    form = (size, steps, pads, gaps, -math.inf)

    def best(ops: Ops, i: Indices) -> Value:
        found = None
        for value, _ in _window(ops, x, i, *form):
            found = value if found is None else ops.maximum(found, value)
        assert found is not None
        return found

    def place(ops: Ops, i: Indices) -> Value:
        # eager starts at the first element inside of the border, with minus infinity
        found = ops.constant(-math.inf, compute_dtype(x.dtype))
        where = None
        for axis in range(rank):
            start = i[axis - rank] * steps[axis] - pads[axis]
            first = ops.maximum(ops.index_expr(start), ops.index_expr(0))
            if where is not None:
                extent = x.size[axis - rank]
                first = ops.add(ops.mul(where, ops.index_expr(constant(extent))), first)
            where = first
        for value, at in _window(ops, x, i, *form):
            here = ops.index_expr(_flat(at, x))
            # as eager: a later one wins if it is greater, or not a number
            wins = ops.bitwise_or(ops.gt(value, found), ops.call("isnan", value))
            found, where = ops.where(wins, value, found), ops.where(wins, here, where)
        assert where is not None
        return where

    cost = 2 * math.prod(size)
    return (
        call.builder.computed(layout_of(values), [x], cost, best),
        call.builder.computed(layout_of(positions), [x], 2 * cost, place),
    )


def _flat(place: Sequence[Any], x: Tensor) -> Any:
    """The number of an element of an image or film, row by row."""
    number = place[0]
    for index, extent in zip(place[1:], x.size[-len(place) + 1 :], strict=True):
        number = number * extent + index
    return number


@lowering(aten.max_pool2d_with_indices_backward.default)
def max_pool_backward(
    call: Call, grad: Tensor, x: Tensor, kernel: Sequence[int], stride: Any, padding: Any,
    dilation: Any, ceil_mode: bool, positions: Tensor,
) -> Any:
    return _max_pool_backward(call, grad, x, 2, kernel, stride, padding, dilation, positions)


@lowering(aten.max_pool3d_with_indices_backward.default)
def max_pool_of_films_backward(
    call: Call, grad: Tensor, x: Tensor, kernel: Sequence[int], stride: Any, padding: Any,
    dilation: Any, ceil_mode: bool, positions: Tensor,
) -> Any:
    return _max_pool_backward(call, grad, x, 3, kernel, stride, padding, dilation, positions)


def _max_pool_backward(
    call: Call, grad: Tensor, x: Tensor, rank: int, kernel: Any, stride: Any, padding: Any,
    dilation: Any, positions: Tensor,
) -> Any:
    """Each element gathers from the few windows that it lies in: those that chose it."""
    size = lengths(kernel, rank)
    steps = lengths(stride, rank) if stride not in ((), []) else size
    pads, reach = lengths(padding, rank), [-(-a // b) for a, b in zip(size, steps, strict=True)]
    if call.builder.device.type == "cpu" or 0 in call.layout.size or 0 in grad.size:
        return call.refuse("ATen adds where memory is near")
    if {*lengths(dilation, rank)} != {1} or math.prod(reach) > MOST_WINDOWS:
        return call.refuse("many windows over one element")
    grad.realize()  # the positions may be computed here, from what was saved of them
    held = compute_dtype(grad.dtype)

    def compute(ops: Ops, indices: Indices) -> Value:
        front, own = indices[:-rank], indices[-rank:]
        here = ops.index_expr(_flat(own, x))
        last = [
            floordiv(index + pad, step) for index, pad, step in zip(own, pads, steps, strict=True)
        ]
        total = None
        for back in product(*map(range, reach)):
            window = [at - by for at, by in zip(last, back, strict=True)]
            mask = _inside(ops, window, grad.size[-rank:])
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


@dataclass(frozen=True, slots=True)
class _Means:
    """Windows of average pooling. size, steps, pads, extents (of what is pooled): for each axis.
    counts_pads: whether padding counts as elements. divisor: what sums are divided by instead."""

    size: tuple[int, ...]
    steps: tuple[int, ...]
    pads: tuple[int, ...]
    extents: tuple[Any, ...]
    counts_pads: bool
    divisor: int | None

    def divisor_of(self, ops: Ops, window: Sequence[Any], held: torch.dtype) -> Value:
        """What a window's sum is divided by: its elements, less those beyond the border; 1 for a
        window that lies beyond it."""
        whole, found = 1, None
        for index, length, step, pad, extent in zip(
            window, self.size, self.steps, self.pads, self.extents, strict=True
        ):
            start = index * step - pad
            border = pad if self.counts_pads else 0
            is_within = surely_less(-border - 1, start.low)
            if is_within and surely_less(start.high, extent + border - length + 1):
                whole *= length
                continue
            first, end = ops.index_expr(start), ops.index_expr(start + length)
            if not is_within:
                first = ops.maximum(first, ops.index_expr(constant(-border)))
            end = ops.minimum(end, ops.index_expr(constant(extent + border)))
            count = ops.maximum(ops.sub(end, first), ops.index_expr(constant(1)))
            found = count if found is None else ops.mul(found, count)
        if found is None:
            return ops.constant(whole, held)
        return ops.to_dtype(ops.mul(found, ops.index_expr(constant(whole))), held)

    def same_divisor(self, windows: Sequence[Any] | None) -> int | None:
        """What all sums are divided by, if that is one number. windows: how many along each axis,
        where the last ones may lie beyond the border."""
        if self.divisor:
            return self.divisor
        inside = self.counts_pads or not any(self.pads)
        if inside and windows is not None:
            inside = all(
                surely_less((count - 1) * step + length, extent + 2 * pad + 1)
                for count, step, length, extent, pad in zip(
                    windows, self.steps, self.size, self.extents, self.pads, strict=True)
            )
        return math.prod(self.size) if inside else None


def _means(
    rank: int, extents: Sequence[Any], kernel: Any, stride: Any, padding: Any, counts_pads: bool,
    divisor: int | None,
) -> _Means:
    size = lengths(kernel, rank)
    steps = lengths(stride, rank) if stride not in ((), []) else size
    pads = lengths(padding, rank)
    return _Means(size, steps, pads, tuple(extents), counts_pads, divisor)


def _average(
    call: Call, rank: int, x: Tensor, kernel: Sequence[int], stride: Any = (), padding: Any = 0,
    ceil_mode: bool = False, count_include_pad: bool = True, divisor: Any = None,
) -> Any:
    form = _means(rank, x.size[-rank:], kernel, stride, padding, count_include_pad, divisor)
    if math.prod(form.size) > MOST_ELEMENTS or dtype_kind(x.dtype) != "f":
        return call.refuse("a large window, or integers")
    if 0 in call.result.shape:
        return call.refuse("nothing")
    x.realize()
    held = compute_dtype(x.dtype)
    same = form.same_divisor(call.result.shape[-rank:] if ceil_mode else None)

    def average(ops: Ops, i: Indices) -> Value:
        total = None
        for value, _ in _window(ops, x, i, form.size, form.steps, form.pads, (1,) * rank, 0.0):
            total = value if total is None else ops.add(total, value)
        assert total is not None
        count = form.divisor_of(ops, i[-rank:], held) if same is None else ops.constant(same, held)
        return ops.truediv(total, count)

    return call.builder.computed(call.layout, [x], 2 * math.prod(form.size), average)


def _average_backward(
    call: Call, rank: int, grad: Tensor, x: Tensor, kernel: Sequence[int], stride: Any,
    padding: Any, ceil_mode: bool, count_include_pad: bool, divisor: Any,
) -> Any:
    """Each element gathers its part of the few windows that it lies in."""
    form = _means(rank, x.size[-rank:], kernel, stride, padding, count_include_pad, divisor)
    reach = [-(-a // b) for a, b in zip(form.size, form.steps, strict=True)]
    if call.builder.device.type == "cpu" or 0 in call.layout.size or 0 in grad.size:
        return call.refuse("ATen adds where memory is near")
    same = form.same_divisor(grad.size[-rank:] if ceil_mode else None)
    most = MOST_WINDOWS if same is None else MOST_ELEMENTS  # of one divisor: a sum, as forward
    if math.prod(reach) > most or dtype_kind(grad.dtype) != "f":
        return call.refuse("many windows over one element, or integers")
    grad.realize()
    held = compute_dtype(grad.dtype)

    def compute(ops: Ops, indices: Indices) -> Value:
        front = indices[:-rank]
        places = [index + pad for index, pad in zip(indices[-rank:], form.pads, strict=True)]
        last = [floordiv(place, step) for place, step in zip(places, form.steps, strict=True)]
        total = None
        for back in product(*map(range, reach)):
            window = [at - by for at, by in zip(last, back, strict=True)]
            offsets = [
                place - at * step
                for place, at, step in zip(places, window, form.steps, strict=True)
            ]
            mask = _inside(ops, (*window, *offsets), (*grad.size[-rank:], *form.size))
            load: Callable[[], Value] = functools.partial(grad.load, ops, (*front, *window))
            value = load() if mask is None else ops.masked(mask, load, 0)
            if same is None:
                value = ops.truediv(value, form.divisor_of(ops, window, held))
            total = value if total is None else ops.add(total, value)
        assert total is not None
        return total if same is None else ops.truediv(total, ops.constant(same, held))

    return call.builder.computed(call.layout, [grad], 12 * math.prod(reach), compute)


@lowering(aten.im2col.default)
def windows_of_image(
    call: Call, x: Tensor, kernel: Sequence[int], dilation: Sequence[int],
    padding: Sequence[int], stride: Sequence[int],
) -> Any:
    """(batch, channels * height * width of a window, windows), or without batch."""
    if 0 in call.result.shape or any(type(n) is not int for n in x.size):
        return call.refuse("nothing, or sizes that are unknown")
    counts = [
        (extent + 2 * pad - gap * (length - 1) - 1) // step + 1
        for extent, pad, length, gap, step in
        zip(x.size[-2:], padding, kernel, dilation, stride, strict=True)
    ]  # fmt: skip

    def compute(ops: Ops, indices: Indices) -> Value:
        *batch, line, number = indices
        within = (mod(floordiv(line, kernel[1]), kernel[0]), mod(line, kernel[1]))
        window = (floordiv(number, counts[1]), mod(number, counts[1]))
        place = [
            at * step + by * gap - pad for at, step, by, gap, pad in
            zip(window, stride, within, dilation, padding, strict=True)
        ]  # fmt: skip
        mask = _inside(ops, place, x.size[-2:])
        where = (*batch, floordiv(line, kernel[0] * kernel[1]), *place)
        load: Callable[[], Value] = functools.partial(x.load, ops, where)
        return load() if mask is None else ops.masked(mask, load, 0)

    return call.builder.computed(call.layout, [x], 12, compute)


@lowering(aten.col2im.default)
def windows_to_image(
    call: Call, columns: Tensor, size: Sequence[Any], kernel: Sequence[int],
    dilation: Sequence[int], padding: Sequence[int], stride: Sequence[int],
) -> Any:
    """Each pixel gathers from the few windows that it lies in.

    columns: (batch, channels * height * width of a window, windows), or without batch.
    """
    reach = [-(-a // b) for a, b in zip(kernel, stride, strict=True)]
    sizes = (*columns.size, *size)
    if call.builder.device.type == "cpu" or 0 in sizes or any(type(n) is not int for n in sizes):
        return call.refuse("ATen adds where memory is near, or sizes are unknown")
    if math.prod(reach) > MOST_WINDOWS or {*dilation} != {1} or dtype_kind(columns.dtype) != "f":
        return call.refuse("many windows over one pixel, or integers")
    columns.realize()
    counts = [
        (extent + 2 * pad - length) // step + 1
        for extent, pad, length, step in zip(size, padding, kernel, stride, strict=True)
    ]

    def compute(ops: Ops, indices: Indices) -> Value:
        *batch, channel, row, column = indices
        places = [index + pad for index, pad in zip((row, column), padding, strict=True)]
        last = [floordiv(place, step) for place, step in zip(places, stride, strict=True)]
        total = None
        for back in product(*map(range, reach)):
            window = [at - by for at, by in zip(last, back, strict=True)]
            within = [
                place - at * step for place, at, step in zip(places, window, stride, strict=True)
            ]
            mask = _inside(ops, (*window, *within), (*counts, *kernel))
            line = (channel * kernel[0] + within[0]) * kernel[1] + within[1]
            where = (*batch, line, window[0] * counts[1] + window[1])
            load: Callable[[], Value] = functools.partial(columns.load, ops, where)
            value = load() if mask is None else ops.masked(mask, load, 0)
            total = value if total is None else ops.add(total, value)
        assert total is not None
        return total

    found = call.builder.computed(call.layout, [columns], 12 * math.prod(reach), compute)
    found.realize()  # in the order in which windows lie, whatever that of its readers is
    return found


def _adaptive_average(call: Call, rank: int, x: Tensor, size: Sequence[int]) -> Any:
    extents = x.size[-rank:]
    if dtype_kind(x.dtype) != "f" or 0 in call.result.shape or 0 in x.size:
        return call.refuse("integers, or nothing")
    if all(count == 1 for count in size):
        return _mean_of_all(call, rank, x)
    if any(extent % count for extent, count in zip(extents, size, strict=True)):
        return call.refuse("windows of several sizes")
    kernel = [extent // count for extent, count in zip(extents, size, strict=True)]
    return _average(call, rank, x, kernel, kernel)


def _adaptive_average_backward(call: Call, rank: int, grad: Tensor, x: Tensor) -> Any:
    """Each element gathers its part of the windows that it lies in: of each axis two at most, where
    there are no more windows than elements. Divided by one length after the other, as ATen does."""
    sizes = (*x.size[-rank:], *grad.size[-rank:])
    if call.builder.device.type == "cpu" or any(type(n) is not int for n in sizes):
        return call.refuse("ATen adds where memory is near, or sizes are unknown")
    axes = [_Windows(n, count) for n, count in zip(sizes[:rank], sizes[rank:], strict=True)]
    if 0 in call.layout.size or 0 in grad.size or dtype_kind(grad.dtype) != "f":
        return call.refuse("integers, or nothing")
    if any(axis.count > axis.extent for axis in axes):
        return call.refuse("many windows over one element")
    grad.realize()
    held = compute_dtype(grad.dtype)

    def compute(ops: Ops, indices: Indices) -> Value:
        front, total = indices[:-rank], None
        places = indices[-rank:]
        firsts = [axis.first(place) for axis, place in zip(axes, places, strict=True)]
        for back in product(*(range(axis.reach) for axis in axes)):
            windows = [first + by for first, by in zip(firsts, back, strict=True)]
            mask = _inside(ops, windows, grad.size[-rank:])
            for axis, place, window, by in zip(axes, places, windows, back, strict=True):
                if by:  # the first one is one that it lies in
                    begun = ops.ge(ops.index_expr(place), ops.index_expr(axis.start(window)))
                    mask = begun if mask is None else ops.bitwise_and(mask, begun)
            load: Callable[[], Value] = functools.partial(grad.load, ops, (*front, *windows))
            value = load() if mask is None else ops.masked(mask, load, 0)
            for axis, window in reversed(list(zip(axes, windows, strict=True))):
                value = ops.truediv(value, axis.length(ops, window, held))
            total = value if total is None else ops.add(total, value)
        assert total is not None
        return total

    cost = 20 * math.prod(axis.reach for axis in axes)
    return call.builder.computed(call.layout, [grad], cost, compute)


@dataclass(frozen=True, slots=True)
class _Windows:
    """`count` windows that cover an axis of `extent` elements; neighbours may share one."""

    extent: int
    count: int

    @property
    def reach(self) -> int:
        return 1 if self.extent % self.count == 0 else 2

    def first(self, place: Any) -> Any:
        """The first window in which an element lies."""
        return floordiv(place * self.count, self.extent)

    def start(self, window: Any) -> Any:
        return floordiv(window * self.extent, self.count)

    def length(self, ops: Ops, window: Any, held: torch.dtype) -> Value:
        if self.reach == 1:
            return ops.constant(self.extent // self.count, held)
        end = floordiv((window + 1) * self.extent + (self.count - 1), self.count)
        return ops.to_dtype(ops.index_expr(end - self.start(window)), held)


def _enter(rank: int) -> None:
    """The rows for windows of two or three axes."""
    for name, function in {
        f"avg_pool{rank}d": _average, f"avg_pool{rank}d_backward": _average_backward,
        f"_adaptive_avg_pool{rank}d": _adaptive_average,
        f"_adaptive_avg_pool{rank}d_backward": _adaptive_average_backward,
    }.items():
        lowering(getattr(aten, name).default)(
            lambda call, *args, _lower=function, **kwargs: _lower(call, rank, *args, **kwargs))


_enter(2)
_enter(3)


def _mean_of_all(call: Call, rank: int, x: Tensor) -> Any:
    axes = list(range(len(x.size) - rank, len(x.size)))
    count = math.prod(x.size[-rank:])
    divide: Callable[[Ops, Value], Value] = lambda ops, v: ops.truediv(  # noqa: E731
        v, ops.constant(count, v.dtype)
    )
    return call.builder.reduce(call.layout, x, axes, "sum", finish=divide)
