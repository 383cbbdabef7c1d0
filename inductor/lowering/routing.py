"""Lowerings of operators that route and sample on a GPU: order in short rows, counts, searches.

Order goes by a key for each element of a row: its value as an integer of the same order, and its
place, so that no two are equal. NaN counts as the greatest, as in ATen; of equal values the first
comes first. The shortest rows are sorted by counting the keys above each: a reduction, in the
kernel that makes the row; others by a network, where a program holds a row. Longer ones are a
library's.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from inductor.ir.body import LONGEST_SCAN, Ops, Value
from inductor.ir.graph import Layout, contiguous
from inductor.ir.index import Index, constant
from inductor.ir.scalar_ops import dtype_kind
from inductor.lowering.builder import layout_of
from inductor.lowering.indexing import replaced
from inductor.lowering.pointwise import unsupported
from inductor.lowering.registry import Call, lowering
from inductor.lowering.scans import on_gpu
from inductor.lowering.tensor import HALVES, Indices, Tensor

aten = torch.ops.aten
INT32, INT64 = torch.int32, torch.int64
ORDERED = (*HALVES, torch.float32, torch.bool, torch.int8, torch.uint8, torch.int16, INT32)
WIDE = (torch.float64, INT64)  # whose keys are no half of an integer
LONGEST_SORTED = 32  # elements of a row; of 64 the library's takes as long, on an H200
UNSTABLE = 32  # of rows of so many at most ATen's kernels leave the order of equal elements open
MOST_COMPARED = 1 << 30  # pairs
PLACES = 1  # the second result of a sort
MOST_BINS, MOST_TESTS = 1024, 1 << 28  # each bin looks at all values; chosen, not measured
FASTER = "a library's is faster"


def _refusal(call: Call, x: Tensor, dim: int, longest: int) -> str:
    if not on_gpu(call):
        return FASTER
    if x.dtype not in (*ORDERED, *WIDE) or unsupported([x]):
        return f"the order of {x.dtype}"
    if not x.size or 0 in x.size or any(type(each) is not int for each in x.size):
        return "a number, an empty tensor, or sizes that are known at a call"
    size = x.size[dim % len(x.size)]
    return FASTER if size > longest else ""


def _is_compared(x: Tensor, axis: int) -> bool:
    """Whether all elements of a row are compared with each other."""
    size = x.size[axis]
    few = math.prod(x.size) * size <= MOST_COMPARED
    return size == 1 or x.dtype in ORDERED and size <= LONGEST_SORTED and few


def _ordered(ops: Ops, value: Value) -> Value:
    """An integer for each value, the greater for greater ones."""
    if dtype_kind(value.dtype) != "f":
        return ops.to_dtype(value, INT64 if value.dtype is INT64 else INT32)
    kind = INT64 if value.dtype is torch.float64 else INT32
    zero, nothing = ops.constant(0.0, value.dtype), ops.constant(torch.iinfo(kind).max, kind)
    plain = ops.where(ops.eq(value, zero), zero, value)  # -0 is no less
    bits = ops.bitcast(plain, kind)
    turned = ops.call("bitwise_xor", bits, nothing)
    ordered = ops.where(ops.lt(bits, ops.constant(0, kind)), turned, bits)
    return ops.where(ops.call("isnan", value), nothing, ordered)


def _key(ops: Ops, value: Value, place: Index, size: int, largest: bool) -> Value:
    """The key of an element: the greater, the earlier it comes."""
    ordered = _ordered(ops, value)
    if not largest:
        ordered = ops.call("bitwise_not", ordered)
    high = ops.mul(ops.to_dtype(ordered, INT64), ops.constant(1 << 32, INT64))
    return ops.add(high, ops.index_expr(constant(size - 1) - place))


@lowering(aten.sort.default)
def sort(call: Call, x: Tensor, dim: int = -1, descending: bool = False) -> Any:
    if PLACES in call.taken and (not x.size or x.size[dim % len(x.size)] <= UNSTABLE):
        return call.refuse("of equal elements ATen's kernel has an order of its own")
    return _sorted(call, x, dim, descending)


@lowering(aten.sort.stable)
def stable_sort(
    call: Call, x: Tensor, *, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> Any:
    if not stable:
        return sort(call, x, dim, descending)
    return _sorted(call, x, dim, descending)


def _sorted(call: Call, x: Tensor, dim: int, descending: bool) -> Any:
    why = _refusal(call, x, dim, max(LONGEST_SORTED, LONGEST_SCAN))
    if why:
        return call.refuse(why)
    axis = dim % len(x.size)
    if not _is_compared(x, axis) and x.size[axis] > LONGEST_SCAN:
        return call.refuse(FASTER)
    x.realize()
    if _is_compared(x, axis):
        place = _by_comparing(call, x, axis, descending)
    else:
        place = _by_network(call, x, axis, descending)
    values, places = (layout_of(result) for result in call.result)

    def value(ops: Ops, i: Indices) -> Value:
        found = ops.to_dtype(place.load(ops, i), INT64)
        at = ops.indirect(found, x.size[axis], wrap=False, check=False)
        return x.load(ops, replaced(i, axis, at))

    return (
        call.builder.computed(values, [x, place], 4, value),
        call.builder.computed(
            places, [place], 1, lambda ops, i: ops.to_dtype(place.load(ops, i), INT64)),
    )


def _by_network(call: Call, x: Tensor, axis: int, descending: bool) -> Tensor:
    """The place of the element that comes at each place."""

    def place(ops: Ops, value: Value) -> Value:
        key = _ordered(ops, value)
        return ops.sort(ops.call("bitwise_not", key) if descending else key)

    return call.builder.by_rows(contiguous(x.size, INT32, x.layout.device), x, axis, place)


def _by_comparing(call: Call, x: Tensor, axis: int, descending: bool) -> Tensor:
    """The same, where each element is compared with all others of its row."""
    size, last, device = x.size[axis], len(x.size), x.layout.device

    def is_before(ops: Ops, i: Indices) -> Value:
        own, other = (
            _key(ops, x.load(ops, replaced(i[:-1], axis, at)), at, size, descending)
            for at in (i[axis], i[-1]))
        return ops.to_dtype(ops.gt(other, own), INT32)

    stride = (*x.layout.stride, 0)
    pairs = Layout(device, INT32, (*x.size, size), stride)
    rank = call.builder.reduce(
        contiguous(x.size, INT32, device),
        Tensor(pairs, x.owner, compute=is_before, cost=4, reads=x.reads), [last], "sum")

    def is_there(ops: Ops, i: Indices) -> Value:
        """The place of the element of this rank, for which i goes over all."""
        found = rank.load(ops, replaced(i[:-1], axis, i[-1]))
        own = ops.index_expr(i[axis], INT32)
        return ops.where(
            ops.eq(found, own), ops.index_expr(i[-1], INT32), ops.constant(0, INT32))

    source = Tensor(pairs, x.owner, compute=is_there, cost=4, reads=rank.reads)
    return call.builder.reduce(contiguous(x.size, INT32, device), source, [last], "sum")


@lowering(aten.histc.default)
def histc(call: Call, x: Tensor, bins: int = 100, min: Any = 0, max: Any = 0) -> Any:
    """As many sums as there are bins, each over all elements."""
    if not on_gpu(call) or torch.are_deterministic_algorithms_enabled():
        return call.refuse(FASTER)  # or raises
    known = all(type(each) in (int, float) for each in (bins, min, max))
    if not known or min >= max or not all(map(math.isfinite, (min, max))):
        return call.refuse("limits that are looked for, or wrong")
    if x.dtype not in (torch.float32, INT32, INT64) or unsupported([x]) or 0 in x.size:
        return call.refuse(f"counts of {x.dtype}")
    if any(type(each) is not int for each in x.size):
        return call.refuse("sizes that are known at a call")
    if bins > MOST_BINS or bins * math.prod(x.size) > MOST_TESTS:
        return call.refuse(FASTER)
    held = torch.float32 if x.dtype is torch.float32 else INT64
    low, high = (int(each) if held is INT64 else each for each in (min, max))
    if low == high:
        return call.refuse("limits that are looked for, or wrong")
    x.realize()

    def compute(ops: Ops, i: Indices) -> Value:
        value = ops.to_dtype(x.load(ops, i[1:]), held)
        least, most = ops.constant(low, held), ops.constant(high, held)
        inside = ops.bitwise_and(ops.ge(value, least), ops.le(value, most))
        scaled = ops.mul(ops.sub(value, least), ops.constant(bins, held))
        kind = "truncdiv" if held is INT64 else "truediv"
        width = ops.sub(most, least) if held is torch.float32 else ops.constant(high - low, held)
        found = ops.to_dtype(ops.call(kind, scaled, width), INT64)
        found = ops.call("minimum", found, ops.constant(bins - 1, INT64))
        is_there = ops.bitwise_and(inside, ops.eq(found, ops.index_expr(i[0])))
        return ops.to_dtype(is_there, INT32)

    layout = Layout(x.layout.device, INT32, (bins, *x.size), (0, *x.layout.stride))
    source = Tensor(layout, x.owner, compute=compute, cost=6, reads=x.reads)
    return call.builder.reduce(call.layout, source, [*range(1, len(x.size) + 1)], "sum")


@lowering(aten.searchsorted.Tensor)
def searchsorted(
    call: Call, row: Tensor, x: Tensor, *, out_int32: bool = False, right: bool = False,
    side: str | None = None, sorter: Any = None,
) -> Any:
    if sorter is not None or side not in (None, "left", "right"):
        return call.refuse("a row that is not sorted")
    if side == "left" and right:
        return call.refuse("arguments for which ATen raises")
    many = len(row.size) > 1
    if many and (len(row.size) != len(x.size) or row.size[:-1] != x.size[:-1]):
        return call.refuse("sizes for which ATen raises")
    return _searched(call, row, x, right or side == "right")


@lowering(aten.bucketize.Tensor)
def bucketize(
    call: Call, x: Tensor, boundaries: Tensor, *, out_int32: bool = False, right: bool = False
) -> Any:
    if len(boundaries.size) != 1:
        return call.refuse("sizes for which ATen raises")
    return _searched(call, boundaries, x, right)


def _searched(call: Call, row: Tensor, x: Tensor, right: bool) -> Any:
    """The search in halves that ATen's kernel does, step by step."""
    if not on_gpu(call):
        return call.refuse(FASTER)
    size = row.size[-1]
    if row.dtype is not x.dtype or unsupported([row, x]) or x.dtype is torch.bool:
        return call.refuse(f"a search of {x.dtype} in {row.dtype}")
    if type(size) is not int or not size or 0 in x.size:
        return call.refuse("an empty tensor, or sizes that are known at a call")
    row.realize()
    if x.cost > 1:
        x.realize()

    def compute(ops: Ops, i: Indices) -> Value:
        value = x.load(ops, i)
        start, end = ops.constant(0, INT64), ops.constant(size, INT64)
        one = ops.constant(1, INT64)
        for _ in range(size.bit_length()):
            goes_on = ops.lt(start, end)
            middle = ops.add(start, ops.call("shift_right", ops.sub(end, start), one))
            looked_at = ops.call("minimum", middle, ops.constant(size - 1, INT64))
            at = ops.indirect(looked_at, size, wrap=False, check=False)
            found = row.load(ops, (*(i[:-1] if len(row.size) > 1 else ()), at))
            stays = ops.gt(found, value) if right else ops.ge(found, value)
            up = ops.bitwise_and(goes_on, ops.logical_not(stays))
            down = ops.bitwise_and(goes_on, stays)
            start = ops.where(up, ops.add(middle, one), start)
            end = ops.where(down, middle, end)
        return ops.to_dtype(start, call.result.dtype)

    return call.builder.computed(call.layout, [row, x], 8 * size.bit_length(), compute)
