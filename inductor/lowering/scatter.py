"""Lowerings of operators that add values at computed places: a copy of the tensor, then a loop nest
that accumulates into it.

Values that meet at one place are added one after the other, in the order of the loops on the CPU
and in any order on a GPU (see `inductor.cuda` for programs that want one order). Half precision,
where each addition would be rounded, and overwriting stores are left to ATen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from inductor.ir.body import IndexFault, Ops, Value
from inductor.ir.index import Index, flatten
from inductor.lowering.indexing import NOTHING, _index_plan, _places, replaced
from inductor.lowering.pointwise import broadcast, broadcast_sizes
from inductor.lowering.registry import Call, lowering
from inductor.lowering.tensor import Indices, Tensor

aten = torch.ops.aten
DTYPES = (torch.float32, torch.float64, torch.int32, torch.int64)
Place = Callable[[Ops, Indices], Indices]


def _refusal(x: Tensor, values: Tensor) -> str:
    if x.dtype not in DTYPES or values.dtype is not x.dtype:
        return f"additions of {values.dtype} to {x.dtype}"
    return "an empty tensor" if 0 in x.size or 0 in values.size else ""


def _accumulated(
    call: Call, x: Tensor, values: Tensor, ranges: Sequence[int], place: Place
) -> Tensor:
    """A copy of `x` plus, for each index of `ranges`, the value of that index at its place."""
    builder, layout = call.builder, call.layout
    copy = Tensor(layout, builder, compute=x.load, reads=x.reads, origins=builder.origins)
    goal = builder.store(copy)

    def body(ops: Ops, where: Indices) -> None:
        at = flatten(place(ops, where), goal.stride, goal.offset)
        ops.store(goal.buffer, at, values.load(ops, broadcast(values, where)), "add")

    builder.scatter(goal, tuple(ranges), body)
    return builder.stored(layout, goal.buffer)


def _element(ops: Ops, value: Value, size: int) -> Index:
    return ops.indirect(value, size, wrap=False, error=IndexFault.ELEMENT)


@lowering(aten.index_put.default)
def index_put(
    call: Call, x: Tensor, indices: Sequence[Tensor | None], values: Tensor,
    accumulate: bool = False,
) -> Any:
    if not accumulate:
        return call.refuse("values that overwrite")
    plan = _index_plan(x, indices)
    why = _refusal(x, values)
    if plan is None or why:
        return call.refuse(why or "a mask as an index")
    axes, first = plan
    if any(x.size[axis] == 0 for axis in axes):
        return call.refuse(NOTHING)
    picked = [index for index in indices if index is not None]
    chosen = broadcast_sizes([index.size for index in picked])
    others = [size for axis, size in enumerate(x.size) if axis not in axes]
    ranges = (*others[:first], *chosen, *others[first:])

    def place(ops: Ops, where: Indices) -> Indices:
        return _places(ops, x, axes, first, len(chosen), picked, where)

    return _accumulated(call, x, values, ranges, place)


@lowering(aten.index_add.default)
def index_add(
    call: Call, x: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: Any = 1
) -> Any:
    why = _refusal(x, source)
    fits = x.size and len(x.size) == len(source.size) and len(index.size) == 1
    if why or alpha != 1 or not fits:
        return call.refuse(why or "a factor, or a number")
    axis = dim % len(x.size)
    if x.size[axis] == 0:
        return call.refuse(NOTHING)

    def place(ops: Ops, where: Indices) -> Indices:
        value = ops.to_dtype(index.load(ops, (where[axis],)), torch.int64)
        return replaced(where, axis, _element(ops, value, x.size[axis]))

    return _accumulated(call, x, source, source.size, place)


@lowering(aten.scatter_add.default)
def scatter_add(call: Call, x: Tensor, dim: int, index: Tensor, source: Tensor) -> Any:
    why = _refusal(x, source)
    if why or not x.size or 0 in index.size:
        return call.refuse(why or "a number")
    axis = dim % len(x.size)
    if x.size[axis] == 0:
        return call.refuse(NOTHING)

    def place(ops: Ops, where: Indices) -> Indices:
        return replaced(where, axis, _element(ops, index.load(ops, where), x.size[axis]))

    return _accumulated(call, x, source, index.size, place)
