"""Lowerings of operators that look at a tensor in another way.

A view of a stored tensor is the same buffer with eager's strides. A view of a computed tensor is a
function of indices, where the operator is one of this file; otherwise the tensor is stored first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from dynamo.aot.records import Unsupported
from inductor.ir.extent import divides, hint_of
from inductor.ir.graph import Layout, contiguous
from inductor.ir.index import constant, flatten, floordiv, mod
from inductor.lowering.builder import layout_of
from inductor.lowering.pointwise import is_odd
from inductor.lowering.registry import Call, lowering
from inductor.lowering.tensor import Indices, Tensor

aten = torch.ops.aten
# Operations that are rather repeated for each copy of a number than stored. Zero points are taken
# out of their word where a GEMM reads them, which knows then how large they are.
MOST_REPEATED, MOST_UNPACKED = 4, 8
UNPACKED = (torch.int8, torch.uint8, torch.int16, torch.int32)
Reindex = Callable[[Indices], Indices]


def unflatten(flat: Any, size: Sequence[int]) -> Indices:
    """Indices of the element at row-major position `flat`."""
    result, step = [], 1
    for extent in reversed(size):
        result.append(mod(floordiv(flat, step), extent) if extent != 1 else constant(0))
        step *= max(extent, 1)
    return tuple(reversed(result))


def reshape_index(old: tuple[int, ...], new: tuple[int, ...]) -> Reindex:
    """From an index into `new` to the index into `old` of the same row-major position."""
    if 0 in old:
        return lambda indices: tuple(constant(0) for _ in old)
    strides = contiguous(new, torch.float32, torch.device("cpu")).stride
    return lambda indices: unflatten(flatten(indices, strides), old)


@lowering(aten.reshape.default)
def reshape(call: Call, x: Tensor, size: Sequence[int]) -> Any:
    """A view only where that is possible: what `x` shows may be put into memory later."""
    if x.view is not None or _is_view(x.layout, call.layout):
        return view(call, x, size)
    if is_odd(x.dtype, x.layout.device):
        return call.refuse("a dtype without kernels, in a reshape that copies")
    return _copied(call, x, reshape_index(x.size, call.layout.size))


@lowering(aten.view.default, aten._unsafe_view.default, aten._reshape_alias.default)
def view(call: Call, x: Tensor, size: Sequence[int], *strides: Any) -> Any:
    layout = call.layout
    if x.view is None or _is_view(x.layout, layout):
        return x.as_view(layout, reshape_index(x.size, layout.size))
    if is_odd(x.dtype, x.layout.device):
        return call.refuse("a dtype without kernels, in a view that symbolic sizes do not tell")
    return _copied(call, x, reshape_index(x.size, layout.size))


def _is_view(old: Layout, new: Layout) -> bool:
    """Whether a row-major reshape of a tensor with layout `old` can have the layout `new`."""
    if 0 in old.size:
        return True
    axes = [axis for axis, extent in enumerate(old.size) if extent != 1]
    runs: list[list[int]] = []  # elements and last stride of dimensions that are walked as one
    for axis in axes:
        extent, step = old.size[axis], old.stride[axis]
        if runs and runs[-1][1] == extent * step:
            runs[-1] = [runs[-1][0] * extent, step]
        else:
            runs.append([extent, step])
    count, step = 1, 1
    for extent, stride in zip(reversed(new.size), reversed(new.stride), strict=True):
        if extent == 1:
            continue
        if count == 1:
            if not runs:
                return False
            count, step = runs.pop()
        if stride != step or not divides(extent, count):
            return False
        count, step = count // extent, step * extent
    return count == 1 and not runs


@lowering(aten.view_copy.default)
def view_copy(call: Call, x: Tensor, size: Sequence[int]) -> Any:
    """It keeps what the tensor is now; a view would show what is written into it later."""
    return _copied(call, x, reshape_index(x.size, call.layout.size))


def _copied(call: Call, x: Tensor, reindex: Reindex) -> Tensor:
    return call.builder.computed(
        call.layout, [x], 0, lambda ops, indices: x.load(ops, reindex(indices))
    )


@lowering(
    aten.alias.default, aten.detach.default, aten.lift_fresh.default, aten.view.dtype,
)
def alias(call: Call, x: Tensor, *rest: Any) -> Any:
    dtype = call.result.dtype
    if dtype is not x.dtype:
        if x.view is not None or {x.dtype, dtype} != {torch.int8, torch.uint8}:
            return call.refuse("the same bytes as another dtype")
        return call.builder.computed(
            call.layout, [x], 1, lambda ops, at: ops.to_dtype(x.load(ops, at), dtype))
    return x.as_view(call.layout, lambda indices: indices)


@lowering(aten.permute.default)
def permute(call: Call, x: Tensor, dims: Sequence[int]) -> Any:
    rank = len(x.size)
    places = [dims.index(axis) if axis in dims else dims.index(axis - rank) for axis in range(rank)]
    return x.as_view(call.layout, lambda indices: tuple(indices[place] for place in places))


@lowering(aten.transpose.int)
def transpose(call: Call, x: Tensor, a: int, b: int) -> Any:
    dims = list(range(len(x.size)))
    if dims:
        dims[a], dims[b] = dims[b], dims[a]
    return permute(call, x, dims)


@lowering(aten.t.default)
def t(call: Call, x: Tensor) -> Any:
    return permute(call, x, list(reversed(range(len(x.size)))))


@lowering(aten.expand.default)
def expand(call: Call, x: Tensor, size: Sequence[int], implicit: bool = False) -> Any:
    new = call.result.shape
    grown = 1
    skip = len(new) - len(x.size)
    for axis, extent in enumerate(new):
        old = 1 if axis < skip else x.size[axis - skip]
        grown *= extent if old != extent else 1
    dear = MOST_UNPACKED if x.dtype in UNPACKED else MOST_REPEATED
    if x.view is None and hint_of(grown) >= 4 and x.root().cost >= dear and x.root().reads:
        x.realize()  # otherwise recomputed for each copy

    def reindex(indices: Indices) -> Indices:
        tail = indices[skip:]
        return tuple(
            constant(0) if extent == 1 else index
            for extent, index in zip(x.size, tail, strict=True)
        )

    return x.as_view(call.layout, reindex)


@lowering(aten.unsqueeze.default)
def unsqueeze(call: Call, x: Tensor, dim: int) -> Any:
    axis = dim if dim >= 0 else dim + len(x.size) + 1
    return x.as_view(call.layout, lambda indices: (*indices[:axis], *indices[axis + 1 :]))


@lowering(aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims)
def squeeze(call: Call, x: Tensor, dims: Any = None) -> Any:
    rank = len(x.size)
    asked = range(rank) if dims is None else [dims] if isinstance(dims, int) else dims
    gone = {dim % rank for dim in asked if rank and x.size[dim % rank] == 1}

    def reindex(indices: Indices) -> Indices:
        rest = iter(indices)
        return tuple(constant(0) if axis in gone else next(rest) for axis in range(rank))

    return x.as_view(call.layout, reindex)


@lowering(aten.slice.Tensor)
def slice_(
    call: Call, x: Tensor, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Any:
    axis = dim % len(x.size)
    first = _clipped(start or 0, x.size[axis])

    def reindex(indices: Indices) -> Indices:
        moved = indices[axis] * step + first
        return (*indices[:axis], moved, *indices[axis + 1 :])

    return x.as_view(call.layout, reindex)


def _clipped(position: int, extent: int) -> int:
    position = position + extent if position < 0 else position
    return min(max(position, 0), extent)


@lowering(aten.select.int)
def select(call: Call, x: Tensor, dim: int, index: int) -> Any:
    axis = dim % len(x.size)
    length = hint_of(x.size[axis])
    if not -length <= hint_of(index) < length:  # torch 2.11 lets an unknown index pass
        raise Unsupported("an index out of range")
    where = constant(index % x.size[axis])
    return x.as_view(call.layout, lambda indices: (*indices[:axis], where, *indices[axis:]))


def _parts(call: Call, x: Tensor, axis: int, starts: Sequence[int]) -> tuple[Tensor, ...]:
    def part(start: int, fake: torch.Tensor) -> Tensor:
        return x.as_view(
            layout_of(fake),
            lambda indices: (*indices[:axis], indices[axis] + start, *indices[axis + 1 :]),
        )

    return tuple(part(start, fake) for start, fake in zip(starts, call.result, strict=True))


@lowering(aten.split.Tensor, aten.split_with_sizes.default, aten.chunk.default)
def split(call: Call, x: Tensor, sizes: Any, dim: int = 0) -> Any:
    axis = dim % len(x.size)
    call.builder.end_sum(x.root())
    starts, start = [], 0
    for fake in call.result:
        starts.append(start)
        start += fake.shape[axis]
    return _parts(call, x, axis, starts)


@lowering(aten.unbind.int)
def unbind(call: Call, x: Tensor, dim: int = 0) -> Any:
    axis = dim % len(x.size)

    def part(number: int, fake: torch.Tensor) -> Tensor:
        where = constant(number)
        return x.as_view(
            layout_of(fake), lambda indices: (*indices[:axis], where, *indices[axis:])
        )

    return tuple(part(number, fake) for number, fake in enumerate(call.result))


@lowering(aten.as_strided.default)
def as_strided(call: Call, x: Tensor, size: Any, stride: Any, offset: Any = None) -> Any:
    x.realize()
    return x.as_view(call.layout, lambda indices: indices)


@lowering(aten.diagonal.default, aten.unfold.default)
def strided_view(call: Call, x: Tensor, *args: Any) -> Any:
    """Any view for which eager's strides say everything, once the tensor is stored."""
    x.realize()
    return x.as_view(call.layout, lambda indices: indices)


@lowering(aten.flip.default)
def flip(call: Call, x: Tensor, dims: Sequence[int]) -> Any:
    turned = {dim % len(x.size) for dim in dims if x.size}

    def reindex(indices: Indices) -> Indices:
        return tuple(
            x.size[axis] - 1 - index if axis in turned else index
            for axis, index in enumerate(indices)
        )

    return _copied(call, x, reindex)


@lowering(aten.repeat.default)
def repeat(call: Call, x: Tensor, repeats: Sequence[int]) -> Any:
    skip = len(repeats) - len(x.size)

    def reindex(indices: Indices) -> Indices:
        return tuple(
            mod(index, extent) for index, extent in zip(indices[skip:], x.size, strict=True)
        )

    return call.refuse("an empty tensor") if 0 in x.size else _copied(call, x, reindex)
