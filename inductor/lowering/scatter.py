"""Lowerings of operators that add or store values at computed places: a loop nest that does so, in
a copy of the tensor, or in place.

Values that meet at one place are added or stored one after the other, in the order of the loops on
the CPU and in any order on a GPU (see `inductor.driver.cuda` for programs that want one order). On
a GPU additions in half precision are made in float32 and rounded once. Left to ATen are those on
the CPU, where each would be rounded, and overwriting stores into a copy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from inductor.fx_passes.places import MOST_UNTOUCHED
from inductor.ir.body import IndexFault, Ops, Value
from inductor.ir.extent import hint_of
from inductor.ir.graph import Layout, contiguous
from inductor.ir.index import Index, constant, flatten
from inductor.lowering.builder import converting
from inductor.lowering.indexing import NOTHING, _index_plan, _places, replaced
from inductor.lowering.lookups import Lookup
from inductor.lowering.pointwise import broadcast, broadcast_sizes, unsupported
from inductor.lowering.registry import Call, lowering
from inductor.lowering.tensor import Indices, Tensor, compute_dtype, fits

aten = torch.ops.aten
DTYPES = (torch.float32, torch.float64, torch.int32, torch.int64)
HALF = (torch.float16, torch.bfloat16)
Place = Callable[[Ops, Indices], Indices]


def _refusal(call: Call, x: Tensor, values: Tensor, adds: bool) -> str:
    if not adds and not in_place(call):
        return "values that overwrite"
    fits = x.dtype in DTYPES or not adds or _adds_wide(x, values)
    if not fits or values.dtype is not x.dtype:
        return f"{'additions' if adds else 'stores'} of {values.dtype} to {x.dtype}"
    if unsupported([x]):
        return unsupported([x])
    return "an empty tensor" if 0 in x.size or 0 in values.size else ""


def _adds_wide(x: Tensor, values: Tensor) -> bool:
    """Half precision where it is added up in float32."""
    if x.dtype not in HALF or x.layout.device.type == "cpu":
        return False
    return hint_of(math.prod(x.size)) <= MOST_UNTOUCHED * hint_of(math.prod(values.size))


def in_place(call: Call) -> bool:
    """True for an operator that writes into its first argument."""
    return call.target._schema.is_mutable


def _written(
    call: Call, x: Tensor, values: Tensor, ranges: Sequence[int], place: Place, adds: bool
) -> Tensor:
    """For each index of `ranges`, the value of that index at its place: in a copy of `x`, or in
    `x` itself."""
    builder, layout = call.builder, call.layout
    wide = adds and x.dtype in HALF
    if wide:
        layout = Layout(layout.device, torch.float32, layout.size, layout.stride)
    if in_place(call) and not wide:
        goal = x.realize()
    else:
        goal = builder.store(
            Tensor(layout, builder, compute=x.load, reads=x.reads, origins=builder.origins)
        )
    mode = "add" if adds else "set"

    def body(ops: Ops, where: Indices) -> None:
        at = flatten(place(ops, where), goal.stride, goal.offset)
        value = values.load(ops, broadcast(values, where))
        ops.store(goal.buffer, at, ops.to_dtype(value, goal.dtype), mode)

    builder.scatter(goal, tuple(ranges), body)
    result = builder.stored(layout, goal.buffer)
    if wide:
        result = converting(result, x.dtype)
    if not in_place(call):
        return result
    if wide:
        builder.store_into(x.realize(), result)
    return x


def _element(ops: Ops, value: Value, size: int, fault: IndexFault = IndexFault.ELEMENT) -> Index:
    return ops.indirect(value, size, wrap=False, error=fault)


@lowering(
    aten.index_put.default, aten.index_put_.default, aten._unsafe_index_put.default
)
def index_put(
    call: Call, x: Tensor, indices: Sequence[Tensor | None], values: Tensor,
    accumulate: bool = False,
) -> Any:
    if any(index is not None and index.dtype is torch.bool for index in indices):
        return _masked(call, x, indices, values, accumulate)
    plan = _index_plan(indices)
    why = _refusal(call, x, values, accumulate)
    if plan is None or why:
        return call.refuse(why or "a mask as an index")
    axes, first = plan
    if any(x.size[axis] == 0 for axis in axes):
        return call.refuse(NOTHING)
    picked = [index for index in indices if index is not None]
    chosen = broadcast_sizes([index.size for index in picked])
    others = [size for axis, size in enumerate(x.size) if axis not in axes]
    ranges = (*others[:first], *chosen, *others[first:])
    if 0 in ranges:
        return call.refuse("an empty tensor")
    if not _spreads(values.size, ranges):
        return call.refuse("sizes for which ATen raises")

    lookup = Lookup(
        call.builder, picked, [x.size[axis] for axis in axes], wrap=True,
        checks=call.target is not aten._unsafe_index_put.default)

    def place(ops: Ops, where: Indices) -> Indices:
        return _places(ops, x, axes, first, len(chosen), lookup, where)

    return _written(call, x, values, ranges, place, accumulate)


def _spreads(size: Sequence[int], wanted: Sequence[int]) -> bool:
    """Whether a tensor of this size can be broadcast."""
    pairs = zip(reversed(size), reversed(wanted), strict=False)
    return len(size) <= len(wanted) and all(mine in (1, other) for mine, other in pairs)


def _masked(
    call: Call, x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool
) -> Any:
    """One value for all places that a mask picks, or one for each index behind it."""
    picked = [(axis, index) for axis, index in enumerate(indices) if index is not None]
    axis, mask = picked[0]
    rank, behind = len(x.size), len(x.size) - axis - len(mask.size)
    chosen = values.size[-behind - 1] if len(values.size) > behind else 1
    if accumulate or len(picked) > 1 or len(values.size) > axis + 1 + behind or chosen != 1:
        return call.refuse("a mask as an index")
    if values.dtype is not x.dtype or unsupported([x, values]) or 0 in x.size or not mask.size:
        return call.refuse("a mask as an index")
    wanted = (*x.size[:axis], 1, *x.size[rank - behind :])
    if mask.size != x.size[axis : rank - behind] or not _spreads(values.size, wanted):
        return call.refuse("sizes for which ATen raises")

    def compute(ops: Ops, where: Indices) -> Value:
        found = mask.load(ops, where[axis : rank - behind])
        at = (*where[:axis], constant(0), *where[rank - behind :])
        return ops.where(found, values.load(ops, broadcast(values, at)), x.load(ops, where))

    inputs = [x, mask, values]
    if not in_place(call):
        return call.builder.computed(call.layout, inputs, 2, compute)
    call.builder.store_into(x.realize(), call.builder.computed(x.layout, inputs, 2, compute))
    return x


@lowering(aten.index_add.default, aten.index_add_.default)
def index_add(
    call: Call, x: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: Any = 1
) -> Any:
    why = _refusal(call, x, source, True)
    if why or alpha != 1:
        return call.refuse(why or "a factor")
    return _along(call, x, dim, index, source, True, IndexFault.ELEMENT)


@lowering(aten.index_copy_.default)
def index_copy(call: Call, x: Tensor, dim: int, index: Tensor, source: Tensor) -> Any:
    why = _refusal(call, x, source, False)
    if why or index.dtype is not torch.int64:
        return call.refuse(why or f"an index of {index.dtype}, for which ATen raises")
    return _along(call, x, dim, index, source, False, IndexFault.POSITION)


def _along(
    call: Call, x: Tensor, dim: int, index: Tensor, source: Tensor, adds: bool, fault: IndexFault
) -> Any:
    """Slices of `source` go to those of `x` that the index names."""
    if not x.size or len(x.size) != len(source.size) or len(index.size) != 1:
        return call.refuse("a number")
    axis = dim % len(x.size)
    if source.size != (*x.size[:axis], index.size[0], *x.size[axis + 1 :]):
        return call.refuse("sizes for which ATen raises")
    if x.size[axis] == 0:
        return call.refuse(NOTHING)

    def place(ops: Ops, where: Indices) -> Indices:
        value = ops.to_dtype(index.load(ops, (where[axis],)), torch.int64)
        return replaced(where, axis, _element(ops, value, x.size[axis], fault))

    return _written(call, x, source, source.size, place, adds)


@lowering(aten.scatter_add.default, aten.scatter_add_.default)
def scatter_add(call: Call, x: Tensor, dim: int, index: Tensor, source: Tensor) -> Any:
    return _scattered(call, x, dim, index, source, True)


@lowering(aten.scatter_.src)
def scatter(call: Call, x: Tensor, dim: int, index: Tensor, source: Tensor) -> Any:
    return _scattered(call, x, dim, index, source, False)


@lowering(aten.scatter_.value)
def scatter_number(call: Call, x: Tensor, dim: int, index: Tensor, value: Any) -> Any:
    if isinstance(value, complex) or unsupported([x]) or not fits(value, x.dtype):
        return call.refuse("a number that ATen converts, or raises for")
    if torch.are_deterministic_algorithms_enabled():
        return call.refuse("the library's keeps an order")
    layout = contiguous(index.size, x.dtype, x.layout.device)

    def compute(ops: Ops, where: Indices) -> Value:
        return ops.to_dtype(ops.constant(value, compute_dtype(x.dtype)), x.dtype)

    source = call.builder.computed(layout, [], 0, compute)
    return _scattered(call, x, dim, index, source, False)


def _scattered(
    call: Call, x: Tensor, dim: int, index: Tensor, source: Tensor, adds: bool
) -> Any:
    why = _refusal(call, x, source, adds)
    if why or not len(x.size) == len(source.size) == len(index.size) != 0 or 0 in index.size:
        return call.refuse(why or "a number")
    axis = dim % len(x.size)
    most = [other if at == axis else min(size, other)
            for at, (size, other) in enumerate(zip(x.size, source.size, strict=True))]
    if any(size > other for size, other in zip(index.size, most, strict=True)):
        return call.refuse("sizes for which ATen raises")
    if x.size[axis] == 0:
        return call.refuse(NOTHING)

    def place(ops: Ops, where: Indices) -> Indices:
        value = ops.to_dtype(index.load(ops, where), torch.int64)
        return replaced(where, axis, _element(ops, value, x.size[axis]))

    return _written(call, x, source, index.size, place, adds)
