"""Lowerings of operators that join tensors or read and write at computed places."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from dynamo.aot.records import Unsupported
from inductor.ir.body import IndexFault, Ops, Value, loop_variables
from inductor.ir.extent import hint_of, surely_less
from inductor.ir.graph import Layout, ViewRef
from inductor.ir.index import Index, floordiv, mod
from inductor.ir.scalar_ops import dtype_kind
from inductor.lowering.builder import converting
from inductor.lowering.lookups import Lookup
from inductor.lowering.pointwise import broadcast, load_as, unsupported
from inductor.lowering.registry import Call, lowering
from inductor.lowering.tensor import Indices, Tensor, compute_dtype

aten = torch.ops.aten
MOST_INLINE_CAT = 4  # parts, each a condition for each element; chosen, not measured
MOST_INLINE_COST = 32  # of a part, computed where it is not wanted, too; chosen, not measured
MOST_ALTERNATING, MOST_ALTERNATING_COST = 4, 96  # parts of which elements alternate; of them all
MOST_OF_SAME = 8  # parts that read the same elements: numbers of one bit; chosen, not measured
WHOLE_LOADS = 16  # elements of a thread's widest load, of bytes, which parts of rows are made of
# Of stacks on a GPU. Stored parts: each thread skips the loads of all but one. Bytes of a computed
# part that is written where it belongs, by a kernel of its own: a launch is worth that the part is
# not written elsewhere first. Both chosen, not measured.
MOST_STACKED, LARGE_PART = 16, 8 << 20


def replaced(indices: Indices, axis: int, index: Any) -> Indices:
    """`indices` with another index for one axis."""
    return (*indices[:axis], index, *indices[axis + 1 :])


@lowering(aten.cat.default)
def cat(call: Call, tensors: Sequence[Tensor], dim: int = 0) -> Any:
    rank = len(call.result.shape)
    parts = [t for t in tensors if t.size != (0,) or rank == 1]
    why = unsupported([*tensors])
    if why or rank == 0:
        return call.refuse(why or "no dimension")
    axis = dim % rank
    held = compute_dtype(call.result.dtype)
    if _read_the_same(call, parts, axis):
        return _chosen_of_same(call, parts, axis)
    if len(parts) > MOST_INLINE_CAT or any(p.cost > MOST_INLINE_COST for p in parts):
        if not _alternate(call, parts, axis):
            return _joined_in_memory(call, parts, axis)

    def compute(ops: Ops, indices: Indices) -> Value:
        value = None
        end = call.result.shape[axis]
        for part in reversed(parts):
            start = end - part.size[axis]
            inside = functools.partial(_within, ops, part, indices, axis, start, held)
            value = _part(ops, indices[axis], (start, end), inside, value)
            end = start
        assert value is not None
        return value

    return call.builder.computed(call.layout, parts, 2 * len(parts), compute)


def _read_the_same(call: Call, parts: Sequence[Tensor], axis: int) -> bool:
    """Whether elements at the same place of parts of one size are made of the same elements in
    memory, as numbers of few bits of a word are. On a GPU."""
    if not on_gpu(call) or not 1 < len(parts) <= MOST_OF_SAME:
        return False
    sizes, reads = {part.size for part in parts}, {part.reads for part in parts}
    if len(sizes) > 1 or len(reads) > 1 or not parts[0].reads:
        return False
    if sum(part.cost for part in parts) > MOST_ALTERNATING_COST:
        return False
    if not all(type(extent) is int and extent for extent in parts[0].size):
        return False
    if call.layout.stride[axis] == 1 and parts[0].size[axis] % WHOLE_LOADS:
        return False
    return len({_elements_read(part) for part in parts}) == 1


def _elements_read(part: Tensor) -> frozenset[tuple[str, Index | None, tuple[int, ...]]]:
    """Which elements of which buffers an element is made of, and in which words they are read."""
    ops = Ops()
    part.load(ops, loop_variables(part.size))
    return frozenset(
        (op.buffer, op.index, op.args) for op in ops.recorded if op.name in ("load", "indirect"))


def _chosen_of_same(call: Call, parts: Sequence[Tensor], axis: int) -> Any:
    """All parts are computed of what is read once, and one is chosen: where each has a condition of
    its own, a part is read where it stands, and threads of a warp wait for all of them."""
    held, extent = compute_dtype(call.result.dtype), parts[0].size[axis]

    def compute(ops: Ops, indices: Indices) -> Value:
        inside = replaced(indices, axis, mod(indices[axis], extent))
        value = None
        for number, part in reversed([*enumerate(parts, 1)]):
            one = ops.to_dtype(part.load(ops, inside), held)
            if value is None or one == value:  # as of a tensor that is repeated
                value = one
                continue
            is_here = ops.lt(ops.index_expr(indices[axis]), ops.index_expr(number * extent))
            value = ops.where(is_here, one, value)
        assert value is not None
        return value

    return call.builder.computed(call.layout, parts, 2 * len(parts), compute)


def _alternate(call: Call, parts: Sequence[Tensor], axis: int) -> bool:
    """Whether neighbours in memory are elements of all parts, so that a kernel for each part would
    write every second element. On a GPU, where threads know which are theirs: what is computed for
    others is dropped."""
    count = call.layout.size[axis]
    return (
        call.builder.device.type != "cpu" and len(parts) == count <= MOST_ALTERNATING
        and call.layout.stride[axis] == 1
        and sum(part.cost for part in parts) <= MOST_ALTERNATING_COST
    )


def _within(
    ops: Ops, part: Tensor, indices: Indices, axis: int, start: Any, held: torch.dtype
) -> Value:
    """The element of a part that begins at `start`."""
    def load(at: Index) -> Value:
        return ops.to_dtype(part.load(ops, replaced(indices, axis, at)), held)

    return ops.within(indices[axis] - start, part.size[axis], load)


def _part(
    ops: Ops, index: Any, span: tuple[Any, Any], inside: Callable[[], Value], rest: Value | None
) -> Value:
    """The element of a part where the index is in its span; `rest` behind it."""
    start, end = span
    if start == 0 and rest is None:
        return inside()
    if isinstance(index, Index) and index.is_constant and type(index.offset) is int:
        is_inside = start <= index.offset < end
        return inside() if is_inside or rest is None else rest
    position = ops.index_expr(index)
    mask = ops.ge(position, ops.index_expr(start)) if start else None
    if rest is not None:
        below = ops.lt(position, ops.index_expr(end))
        mask = below if mask is None else ops.bitwise_and(mask, below)
    assert mask is not None
    value = ops.masked(mask, inside, 0)
    return value if rest is None else ops.where(mask, value, rest)


def _joined_in_memory(call: Call, parts: Sequence[Tensor], axis: int) -> Any:
    layout = call.layout
    if 0 in layout.size:
        return call.refuse("an empty tensor")
    return call.builder.joined(layout, parts, axis)


@lowering(aten.stack.default)
def stack(call: Call, tensors: Sequence[Tensor], dim: int = 0) -> Any:
    why = unsupported([*tensors])
    if why or 0 in call.layout.size:
        return call.refuse(why or "an empty tensor")
    axis = dim % len(call.layout.size)
    parts = list({id(tensor): tensor for tensor in tensors}.values())
    if len(tensors) > MOST_INLINE_CAT or not _is_inline(call, parts, axis):
        if call.builder.device.type == "cpu":
            return call.refuse("many parts, which ATen copies")
        few = len(parts) <= MOST_INLINE_CAT
        if not few and call.layout.stride[axis] != 1 and all(map(_is_large_and_computed, parts)):
            return _joined_in_memory(call, _unsqueezed(call, tensors, axis), axis)
        if not few and len(tensors) > MOST_STACKED:
            return call.refuse("many parts, which ATen copies")
        for part in parts:
            part.realize()
    places = [[at for at, each in enumerate(tensors) if each is part] for part in parts]
    held = compute_dtype(call.result.dtype)

    def compute(ops: Ops, indices: Indices) -> Value:
        value = None
        place = (*indices[:axis], *indices[axis + 1 :])
        for part, here in reversed(list(zip(parts, places, strict=True))):
            inside = functools.partial(_element, ops, part, place, held)
            value = _one_of(ops, indices[axis], here, inside, value)
        assert value is not None
        return value

    stacked = call.builder.computed(call.layout, parts, len(parts) + len(tensors), compute)
    stacked.chosen_along = axis
    return stacked


def _is_inline(call: Call, parts: Sequence[Tensor], axis: int) -> bool:
    """Whether few parts are computed where the stack is, each for the elements of others, too."""
    return all(t.cost <= MOST_INLINE_COST for t in parts) or _alternate(call, parts, axis)


def _is_large_and_computed(part: Tensor) -> bool:
    return part.view is None and (
        hint_of(part.layout.numel()) * part.dtype.itemsize >= LARGE_PART)


def _unsqueezed(call: Call, tensors: Sequence[Tensor], axis: int) -> list[Tensor]:
    layout = call.layout
    found = []
    for part in tensors:
        size = (*part.size[:axis], 1, *part.size[axis:])
        stride = (*part.layout.stride[:axis], 1, *part.layout.stride[axis:])
        own = Layout(layout.device, part.dtype, size, stride, part.layout.offset)
        found.append(part.as_view(own, lambda i: (*i[:axis], *i[axis + 1 :])))
    return found


def _one_of(
    ops: Ops, index: Any, places: Sequence[int], inside: Callable[[], Value], rest: Value | None
) -> Value:
    """The element where the index is one of these; `rest` elsewhere."""
    if rest is None:
        return inside()
    if isinstance(index, Index) and index.is_constant and type(index.offset) is int:
        return inside() if index.offset in places else rest
    position, mask = ops.index_expr(index), None
    for place in places:
        here = ops.eq(position, ops.index_expr(place))
        mask = here if mask is None else ops.bitwise_or(mask, here)
    assert mask is not None
    return ops.where(mask, ops.masked(mask, inside, 0), rest)


def _element(ops: Ops, tensor: Tensor, indices: Indices, held: torch.dtype) -> Value:
    return ops.to_dtype(tensor.load(ops, indices), held)


@lowering(aten.constant_pad_nd.default)
def constant_pad_nd(call: Call, x: Tensor, pad: Sequence[int], value: Any = 0) -> Any:
    why = unsupported([x, value])
    if why or 0 in x.size:
        return call.refuse(why or "an empty tensor")
    rank, held = len(x.size), compute_dtype(x.dtype)
    before = {rank - 1 - n // 2: pad[n] for n in range(0, len(pad), 2)}
    after = {rank - 1 - n // 2: pad[n + 1] for n in range(0, len(pad), 2)}
    if any(surely_less(edge, 0) for edge in pad):
        call.builder.keep_checks(x)

    def compute(ops: Ops, indices: Indices) -> Value:
        mask = None
        moved = tuple(index - before.get(a, 0) for a, index in enumerate(indices))
        for axis, index in enumerate(moved):
            tests = []
            if not surely_less(before.get(axis, 0), 1):
                tests.append(ops.ge(ops.index_expr(index), ops.index_expr(0)))
            if not surely_less(after.get(axis, 0), 1):
                tests.append(ops.lt(ops.index_expr(index), ops.index_expr(x.size[axis])))
            for test in tests:
                mask = test if mask is None else ops.bitwise_and(mask, test)
        if mask is None:
            return x.load(ops, moved)
        return ops.masked(mask, lambda: x.load(ops, moved), value)

    return call.builder.computed(call.layout, [x], 4, _typed(compute, held))


def _typed(compute: Any, held: torch.dtype) -> Any:
    return lambda ops, indices: ops.to_dtype(compute(ops, indices), held)


# Operations of what is read at an edge, and how many times as many elements are read of it: three
# dimensions of a film have 14, and fit; chosen, not measured.
MOST_OF_A_READ, MOST_REPEATED = 16, 2
FEW = 8  # of so many elements one is read
NOTHING = "an axis without elements: ATen says what is wrong"


@lowering(aten.embedding.default)
def embedding(call: Call, weight: Tensor, indices: Tensor, *rest: Any) -> Any:
    if weight.size[0] == 0:
        return call.refuse(NOTHING)
    weight.realize()
    rank = len(indices.size)
    lookup = Lookup(call.builder, [indices], [weight.size[0]], IndexFault.ROW)

    def compute(ops: Ops, where: Indices) -> Value:
        return weight.load(ops, (lookup.place(ops, 0, where[:rank]), *where[rank:]))

    indices.realize()
    return lookup.gives(call.builder.computed(call.layout, [weight, indices], 2, compute))


@lowering(aten.index_select.default)
def index_select(call: Call, x: Tensor, dim: int, index: Tensor) -> Any:
    if not x.size or not index.size:
        return call.refuse("no dimension")
    axis = dim % len(x.size)
    if x.size[axis] == 0:
        return call.refuse(NOTHING)
    x.realize()
    fault = IndexFault.PLACE if axis else IndexFault.ROW
    lookup = Lookup(call.builder, [index], [x.size[axis]], fault)

    def compute(ops: Ops, where: Indices) -> Value:
        return x.load(ops, replaced(where, axis, lookup.place(ops, 0, (where[axis],))))

    return lookup.gives(call.builder.computed(call.layout, [x, index], 2, compute))


@lowering(aten.gather.default)
def gather(call: Call, x: Tensor, dim: int, index: Tensor, sparse_grad: bool = False) -> Any:
    if not x.size or not index.size:
        return call.refuse("no dimension")
    if len(index.size) != len(x.size):  # only one without elements may be so
        return call.refuse(NOTHING)
    axis = dim % len(x.size)
    if x.size[axis] == 0:
        return call.refuse(NOTHING)
    fault = IndexFault.POSITION if call.is_part else IndexFault.ELEMENT
    few = FEW if x.chosen_along != axis else 1  # of a stack, all that is read stays where it was
    if x.reads and not surely_less(math.prod(index.size) * few, math.prod(x.size)):
        x.realize()  # else the few elements are computed where they are wanted
    call.builder.keep_checks(x)
    lookup = Lookup(call.builder, [index], [x.size[axis]], fault)

    def compute(ops: Ops, where: Indices) -> Value:
        return x.load(ops, replaced(where, axis, lookup.place(ops, 0, where)))

    picked = lookup.gives(call.builder.computed(call.layout, [x, index], 2, compute))
    if call.builder.device.type != "cpu" and (not x.reads or call.builder.reads_large(picked)):
        picked.realize()  # all of it is checked; and what it is picked from may go
    return picked


def _index_plan(indices: Sequence[Tensor | None]) -> tuple[list[int], int] | None:
    """Indexed axes and where the broadcast index dimensions stand; None: not supported."""
    if any(i is not None and i.dtype not in (torch.int64, torch.int32) for i in indices):
        return None
    axes = [axis for axis, index in enumerate(indices) if index is not None]
    adjacent = axes == list(range(axes[0], axes[-1] + 1))
    return axes, axes[0] if adjacent else 0


@lowering(aten.index.Tensor, aten._unsafe_index.Tensor)
def index_tensor(call: Call, x: Tensor, indices: Sequence[Tensor | None]) -> Any:
    plan = _index_plan(indices)
    why = unsupported([x])
    if plan is None or why:
        return call.refuse(why or "a mask as an index")
    axes, first = plan
    if any(x.size[axis] == 0 for axis in axes):
        return call.refuse(NOTHING)
    picked = [index for index in indices if index is not None]
    extra = max(len(index.size) for index in picked)
    if not _is_pad_of_a_pad(call, x) and not _picks_few(call, x):
        x.realize()
    call.builder.keep_checks(x)
    lookup = Lookup(call.builder, picked, [x.size[axis] for axis in axes], wrap=True)

    def compute(ops: Ops, where: Indices) -> Value:
        return x.load(ops, _places(ops, x, axes, first, extra, lookup, where))

    found = call.builder.computed(call.layout, [x, *picked], 2 * len(picked), compute)
    if on_gpu(call) and not x.reads:
        found.realize()  # numbers that are looked up to be checked: all of them
    return found if call.target is aten._unsafe_index.Tensor else lookup.gives(found)


def _picks_few(call: Call, x: Tensor) -> bool:
    """Whether what is read is computed where it is wanted: of much a little, or of numbers that are
    made of nothing in memory."""
    if not on_gpu(call) or not all(type(n) is int for n in (*call.layout.size, *x.size)):
        return False
    return not x.reads or math.prod(call.layout.size) * FEW < math.prod(x.size)


def on_gpu(call: Call) -> bool:
    return bool(call.builder.device.type != "cpu")


def _is_pad_of_a_pad(call: Call, x: Tensor) -> bool:
    """Whether what is read is little more than a read itself, and most of it once: torch pads films
    and images by their edges one dimension after the other, which is one kernel on a GPU."""
    if call.target is not aten._unsafe_index.Tensor or not on_gpu(call):
        return False
    if x.cost > MOST_OF_A_READ or len(x.reads) > 1:
        return False
    result = call.layout.size
    return all(type(n) is int for n in (*result, *x.size)) and (
        math.prod(result) <= MOST_REPEATED * math.prod(x.size))


def _places(
    ops: Ops, x: Tensor, axes: list[int], first: int, extra: int, lookup: Lookup, where: Indices,
) -> Indices:
    """Index into `x` for an index into the result of advanced indexing."""
    chosen = where[first : first + extra]
    others = iter((*where[:first], *where[first + extra :]))
    places: list[Any] = []
    for axis in range(len(x.size)):
        if axis in axes:
            number = axes.index(axis)
            at = broadcast(lookup.indices[number], chosen)
            places.append(lookup.place(ops, number, at))
        else:
            places.append(next(others))
    return tuple(places)


@lowering(aten.as_strided_scatter.default)
def as_strided_scatter(
    call: Call, x: Tensor, source: Tensor, size: Any, stride: Any, offset: Any = None
) -> Any:
    """A copy of x, then part of it is overwritten. The offset counts from the begin of x's storage,
    which ATen would look for at the begin of the arena."""
    why = unsupported([x, source])
    if why:
        return call.refuse(why)
    builder, layout = call.builder, call.layout
    whole = builder.store(Tensor(layout, builder, compute=x.load, reads=x.reads))
    start = 0 if offset is None else offset - x.layout.offset
    part = ViewRef(whole.buffer, tuple(size), tuple(stride), start, layout.dtype)
    if 0 not in part.size:
        steps = zip(part.size, part.stride, strict=True)
        end = start + sum((extent - 1) * step for extent, step in steps)
        steps = zip(whole.size, whole.stride, strict=True)
        if start < 0 or end > sum((extent - 1) * step for extent, step in steps):
            raise Unsupported("as_strided_scatter reaches elements that its tensor has not")
        builder.store_into(part, converting(source, layout.dtype))
    return builder.stored(layout, whole.buffer)


@lowering(aten.slice_scatter.default)
def slice_scatter(
    call: Call, x: Tensor, source: Tensor, dim: int = 0, start: Any = None, end: Any = None,
    step: int = 1,
) -> Any:
    axis = dim % len(x.size)
    extent = x.size[axis]
    first, last = _clip(start, 0, extent), _clip(end, extent, extent)
    held = compute_dtype(x.dtype)
    if dtype_kind(held) == "c" or step != 1 and not all(type(n) is int for n in (extent, last)):
        return call.refuse("complex numbers, or a step among sizes in symbols")
    count = max(last - first, 0) if step == 1 else len(range(first, last, step))
    if list(source.size) != [*x.size[:axis], count, *x.size[axis + 1 :]]:
        return call.refuse("a source of another size, for which ATen raises")

    def compute(ops: Ops, where: Indices) -> Value:
        mask = None
        position = ops.index_expr(where[axis])
        if first > 0:
            mask = ops.ge(position, ops.index_expr(first))
        if last < extent:
            below = ops.lt(position, ops.index_expr(last))
            mask = below if mask is None else ops.bitwise_and(mask, below)
        moved = replaced(where, axis, where[axis] - first)
        if step != 1:
            here = ops.eq(ops.index_expr(mod(where[axis], step)), ops.index_expr(first % step))
            mask = here if mask is None else ops.bitwise_and(mask, here)
            moved = replaced(where, axis, floordiv(where[axis], step) - first // step)
        inside = lambda: load_as(ops, source, moved, held)  # noqa: E731
        if mask is None:
            return inside()
        return ops.where(mask, ops.masked(mask, inside, 0), x.load(ops, where))

    call.builder.store_costly_part(source, call.layout)
    return call.builder.computed(call.layout, [x, source], 4, compute)


def _clip(position: Any, default: int, extent: int) -> int:
    if position is None:
        return default
    position = position + extent if position < 0 else position
    return min(max(position, 0), extent)


@lowering(aten.select_scatter.default)
def select_scatter(call: Call, x: Tensor, source: Tensor, dim: int, index: int) -> Any:
    axis = dim % len(x.size)
    held = compute_dtype(x.dtype)
    if not -x.size[axis] <= index < x.size[axis]:
        return call.refuse("an index out of range, for which ATen raises")
    wanted = index % x.size[axis]
    if dtype_kind(held) == "c":
        return call.refuse("complex numbers fall back to ATen")

    def compute(ops: Ops, where: Indices) -> Value:
        mask = ops.eq(ops.index_expr(where[axis]), ops.index_expr(wanted))
        rest = (*where[:axis], *where[axis + 1 :])
        inside = ops.masked(mask, lambda: load_as(ops, source, rest, held), 0)
        return ops.where(mask, inside, x.load(ops, where))

    call.builder.store_costly_part(source, call.layout)
    return call.builder.computed(call.layout, [x, source], 4, compute)


@lowering(aten.copy.default)
def copy(call: Call, x: Tensor, source: Tensor, non_blocking: bool = False) -> Any:
    if source.layout.device != x.layout.device or unsupported([x, source]):
        return call.refuse("a copy between devices")
    held = compute_dtype(x.dtype)

    def compute(ops: Ops, where: Indices) -> Value:
        return ops.to_dtype(
            ops.to_dtype(load_as(ops, source, where, compute_dtype(source.dtype)), x.dtype), held
        )

    return call.builder.computed(call.layout, [source], 1, compute)
