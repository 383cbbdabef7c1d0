"""`Builder`: collects the nodes of a `LoopGraph` while the operations of an fx graph are lowered.

In: calls of lowering functions (`computed`, `reduce`, `extern`, ..). Out: `nodes` in order.
One builder lives as long as one `lower_graph`.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch

from inductor.ir.body import LoopBody, Ops, Value, trace_body
from inductor.ir.extent import hint_of
from inductor.ir.graph import (
    Argument,
    ComputedBuffer,
    ConstantBuffer,
    ExternKernel,
    Layout,
    MultiOutput,
    Node,
    Origins,
    ViewRef,
    joined_origins,
)
from inductor.ir.index import constant, flatten, variable
from inductor.lowering import lookups
from inductor.lowering.loop_order import in_better_order
from inductor.lowering.sizes import is_tensor
from inductor.lowering.tensor import Compute, Indices, Tensor, compute_dtype
from inductor.runtime.gpu_properties import properties_of

# Chosen, not measured: tensors that one element reads, and operations that it takes, before it is
# stored instead of computed where it is read.
MOST_READS = 12
MOST_COST = 96
# Operations of float64 on one number, which a kernel's threads would all repeat (chosen, not
# measured); and elements from which on that takes longer than a kernel of its own: 50 instructions
# for each eight of them, 15e12 a second on an H200, two microseconds.
DEAR_NUMBER, MANY_ELEMENTS = 8, 1 << 22
ONE_VALUE = frozenset(("sum", "prod", "max", "min", "any"))  # over one: the value itself
MANY = 1024  # elements that one number meets
# Operations of a number that many elements of a tensor read, over all of these: about 10 us on an
# H200, by its peak of 30e12 a second; a kernel of its own takes no longer. And those of one that
# is cheaper than the load in its place, whatever the elements.
LONG, CHEAP = 1 << 28, 4
PART = 8  # a tensor has so many times the elements of what is written into a small part of it
# Bytes of a tensor that is rather computed than held: chosen, not measured. By its peaks, an H200
# does 96 operations on each element in about the time in which it stores and loads it in float32.
LARGE = 128 << 20
# Elements of a sum, and results, of which a GPU adds one by one. Sums of each token's four experts
# took 21 us on an H200 in tiles, where memory takes 5; where it turns was not measured.
SHORT, MANY_ROWS = 8, 4096  # results on an H200


def layout_of(fake: Any) -> Layout:
    """The layout that eager's tensor has; fake: a tensor, or what stands for one (`Shaped`)."""
    return Layout(
        fake.device, fake.dtype, tuple(fake.shape), tuple(fake.stride()), fake.storage_offset()
    )


def memory_order(layout: Layout) -> list[int]:
    """Axes from the outermost to the innermost in memory."""
    axes = range(len(layout.size))
    first = -1 << 60
    steps = [
        first if size in (0, 1) else -hint_of(step)
        for size, step in zip(layout.size, layout.stride, strict=True)
    ]
    return sorted(axes, key=lambda a: (steps[a], a))


class Builder:
    """See the top of the file. `origins` is set by the driver for each fx node. recipes: how the
    elements of stored tensors are computed, and what that reads. in_memory_order: loops run over
    the dimensions as the result lies in memory, not as they are written. stores: tensors may be put
    into memory; else all are computed where they are used. convolves: depthwise convolutions on a
    GPU may be loops."""

    def __init__(
        self, device: torch.device, in_memory_order: bool = True, stores: bool = True,
        convolves: bool = True,
    ) -> None:
        self.device = device
        self.convolves = convolves
        self.stores = stores
        self.in_memory_order = in_memory_order
        self.nodes: list[Node] = []
        self.constants: list[ConstantBuffer] = []
        self.layouts: dict[str, Layout] = {}  # of buffers
        self.reduced: set[str] = set()  # buffers of reductions, and of what is made of them
        self.looks_at: dict[str, frozenset[str]] = {}  # results of calls that give views
        self.lookups: list[lookups.Lookup] = []
        self.recipes: dict[str, tuple[Layout, Compute, frozenset[str]]] = {}
        self.turned: dict[tuple[ViewRef, int, int], tuple[Tensor, int]] = {}  # of `gemms`
        self.origins = Origins()
        self.fallbacks: dict[str, int] = {}
        self._count = 0

    def new_name(self) -> str:
        self._count += 1
        return f"buf{self._count - 1}"

    def bytes_read(self, tensor: Tensor, there: Collection[str] = ()) -> int:
        """How much a kernel loads to compute a tensor: no buffer counts for more than one element
        for each of the tensor's. there: buffers that it has loaded."""
        most = hint_of(tensor.layout.numel())
        names = [name for name in tensor.reads if name not in there]
        read = [self.layouts[name] for name in names if name in self.layouts]
        return sum(min(most, hint_of(each.numel())) * each.dtype.itemsize for each in read)

    # -- tensors that are computed where they are used --------------------------------------------

    def computed(
        self, layout: Layout, inputs: Sequence[Tensor], cost: int, compute: Compute
    ) -> Tensor:
        """A lazy tensor; realized at once where it has grown too large to be repeated."""
        for tensor in inputs:
            root = tensor.root()
            if self.device.type != "cpu" and (
                    self._follows_a_sum(root, layout) or self._is_costly_column(root, layout)):
                root.realize()
        for tensor in inputs:
            self.keep_checks(tensor, layout.numel())
            if tensor.view is None and (
                tensor.cost > MOST_COST or self._is_dear_number(tensor, layout)
            ):
                tensor.realize()
        reads = frozenset[str]().union(*(tensor.reads for tensor in inputs))
        if self._are_many(reads, layout):
            for tensor in inputs:
                if len(tensor.reads) > 1:
                    tensor.realize()
            reads = frozenset[str]().union(*(tensor.reads for tensor in inputs))
        total = cost + sum(tensor.cost for tensor in inputs)
        lazy = [tensor.origins for tensor in inputs if tensor.view is None]
        origins = joined_origins([*lazy, self.origins])
        doubles = sum(tensor.doubles for tensor in inputs if tensor.view is None)
        if torch.float64 in (layout.dtype, *(tensor.dtype for tensor in inputs)):
            doubles += cost
        return Tensor(
            layout, self, compute=compute, cost=total, reads=reads, origins=origins,
            doubles=doubles,
        )

    def keep_checks(self, tensor: Tensor, seen: int = 0) -> None:
        """See `lookups.keep_checks`."""
        lookups.keep_checks(self.lookups, tensor, seen)

    def _is_dear_number(self, tensor: Tensor, layout: Layout) -> bool:
        """A number that takes functions of float64, which each program of a kernel would repeat;
        most GPUs have few units for it."""
        if self.device.type == "cpu" or tensor.size or not layout.size:
            return False
        is_asked = tensor.dtype is torch.float64 or hint_of(layout.numel()) >= MANY_ELEMENTS
        return is_asked and tensor.doubles >= DEAR_NUMBER

    def reads_large(self, tensor: Tensor) -> bool:
        """Whether a few elements are computed from a tensor that takes much memory."""
        few = hint_of(tensor.layout.numel())
        read = [self.layouts[name] for name in tensor.reads if name in self.layouts]
        return tensor.view is None and self.stores and any(
            hint_of(each.numel()) * each.dtype.itemsize >= LARGE
            and hint_of(each.numel()) >= MANY * few for each in read)

    def _follows_a_sum(self, tensor: Tensor, layout: Layout) -> bool:
        """Whether the kernel of a reduction may end with a tensor, of which each element meets
        many. Otherwise each of these would compute it."""
        if tensor.view is not None or tensor.cost < 2 or self.reduced.isdisjoint(tensor.reads):
            return False
        few = hint_of(tensor.layout.numel())
        return 1 < few <= hint_of(layout.numel()) // MANY

    def _are_many(self, reads: frozenset[str], layout: Layout) -> bool:
        """Whether one element reads too many tensors. On a GPU, numbers that many elements share
        count less: they stay in registers, or in the cache."""
        if len(reads) <= MOST_READS or self.device.type == "cpu" or len(reads) > 2 * MOST_READS:
            return len(reads) > MOST_READS
        few = hint_of(layout.numel()) // MANY
        wide = [name for name in reads
                if name not in self.layouts or hint_of(self.layouts[name].numel()) > few]
        return len(wide) > MOST_READS

    def _is_costly_column(self, tensor: Tensor, layout: Layout) -> bool:
        """Whether a number of which there is one for many elements would take them long to compute,
        each anew; what reads it might be stored then, and that takes much memory."""
        if tensor.view is not None or not self.stores or not tensor.reads or tensor.cost < CHEAP:
            return False
        few, many = hint_of(tensor.layout.numel()), hint_of(layout.numel())
        return 1 < few <= many // MANY and tensor.cost * many >= LONG

    def store_costly_part(self, tensor: Tensor, whole: Layout) -> None:
        """Stores what is written into a small part of a tensor, where it would take long to compute
        for all: threads of a GPU compute it for the other elements, too, and drop it."""
        if self.device.type == "cpu" or not self.stores or tensor.view is not None:
            return
        few, many = hint_of(tensor.layout.numel()), hint_of(whole.numel())
        if 1 < few <= many // PART and tensor.cost >= CHEAP and tensor.cost * many >= LONG:
            tensor.realize()

    def end_sum(self, tensor: Tensor) -> None:
        """Stores what is made of a reduction's results on a GPU, so that its kernel does that: the
        parts that others read have loops of their own."""
        if self.device.type != "cpu" and self.stores and tensor.view is None:
            if not self.reduced.isdisjoint(tensor.reads):
                tensor.realize()

    # -- buffers ----------------------------------------------------------------------------------

    def store(self, tensor: Tensor) -> ViewRef:
        """A buffer with the elements of a lazy tensor."""
        layout = _own(tensor.layout)
        name = self.new_name()
        body = self._pointwise_body(name, layout, tensor.load)
        if not self.reduced.isdisjoint(tensor.reads):
            self.reduced.add(name)
        if tensor.compute is not None:
            self.recipes[name] = (layout, tensor.compute, tensor.reads)
        self.layouts[name] = layout
        origins = tensor.origins if tensor.origins.nodes else self.origins
        self.nodes.append(ComputedBuffer(name, layout, body, "pointwise", origins))
        return ViewRef(name, layout.size, layout.stride, 0, layout.dtype)

    def store_into(self, goal: ViewRef, tensor: Tensor) -> None:
        """Overwrite part of an existing buffer with the elements of `tensor`.

        A tensor that is computed from other elements of the buffer is computed first.
        """
        layout = Layout(tensor.layout.device, goal.dtype, goal.size, goal.stride, goal.offset)
        body = self._pointwise_body(goal.buffer, layout, tensor.load)
        (store,) = body.stores()
        if any(op.buffer == goal.buffer and op.index != store.index for op in body.loads()):
            tensor = self.stored(_own(tensor.layout), self.store(tensor).buffer)
            body = self._pointwise_body(goal.buffer, layout, tensor.load)
        name = self.new_name()
        self.nodes.append(
            ComputedBuffer(name, layout, body, "scatter", self.origins, False, goal.buffer)
        )

    def joined(self, layout: Layout, parts: Sequence[Tensor], axis: int) -> Tensor:
        """A buffer whose parts along `axis` are written one after the other."""
        name, start = self.new_name(), 0
        for part in parts:
            size = (*layout.size[:axis], part.size[axis], *layout.size[axis + 1 :])
            offset = start * layout.stride[axis]
            place = Layout(layout.device, layout.dtype, size, layout.stride, offset)
            start += part.size[axis]
            if 0 in size:
                continue
            goal = ViewRef(name, size, layout.stride, offset, layout.dtype)
            converted = converting(part, layout.dtype)
            if offset:
                self.store_into(goal, converted)
            else:
                body = self._pointwise_body(name, place, converted.load)
                own = _own(layout)
                self.nodes.append(ComputedBuffer(name, own, body, "pointwise", self.origins))
        return self.stored(layout, name)

    def scatter(
        self, goal: ViewRef, ranges: tuple[int, ...], function: Callable[..., None]
    ) -> None:
        """A loop nest `function(ops, indices)` that stores at computed places of a buffer."""
        name = self.new_name()
        body = trace_body(ranges, (), lambda ops, i, r: function(ops, i))
        layout = Layout(self.device, goal.dtype, goal.size, goal.stride, goal.offset)
        self.nodes.append(
            ComputedBuffer(name, layout, body, "scatter", self.origins, False, goal.buffer)
        )

    def reduce(
        self,
        layout: Layout,
        source: Tensor,
        axes: Sequence[int],
        kind: str,
        element: Callable[[Ops, Value, Indices], tuple[Value, ...]] | None = None,
        finish: Callable[[Ops, Value], Value] | None = None,
    ) -> Tensor:
        """Reduce `source` over `axes`; the layout is that of the result, reduced axes of size 1
        or left out. element: makes operands of the reduction from a loaded value; finish: makes
        the result from what was reduced."""
        if source.cost > MOST_COST:
            source.realize()
        outer = [a for a in range(len(source.size)) if a not in axes]
        order = self._loop_order(layout, outer, len(source.size))
        ranges = tuple(source.size[a] for a in order)
        inner = sorted(axes, key=lambda a: (-hint_of(source.layout.stride[a]), a))
        if kind in ("argmax", "argmin"):
            inner = sorted(axes)  # of equal elements the first counts, wherever it lies in memory
        keepdim = len(layout.size) == len(source.size) and len(outer) != len(source.size)
        own = _own(layout)
        name = self.new_name()

        reduced = tuple(source.size[a] for a in inner)
        is_short = kind == "sum" and self._is_short(ranges, reduced)
        # Without loops of its own it would take those of what it is fused with.
        is_short |= not reduced and kind in ONE_VALUE

        def operands(ops: Ops, i: Indices, r: Indices) -> tuple[Value, ...]:
            position = dict(zip(order, i, strict=True)) | dict(zip(inner, r, strict=True))
            indices = tuple(position[a] for a in range(len(source.size)))
            value = source.load(ops, indices)
            return element(ops, value, indices) if element else (value,)

        def body(ops: Ops, i: Indices, r: Indices) -> None:
            position = dict(zip(order, i, strict=True))
            if is_short:
                each = itertools.product(*map(range, reduced))
                added = [operands(ops, i, tuple(map(constant, place)))[0] for place in each]
                result = functools.reduce(ops.add, added)
            else:
                result = ops.reduction(kind, *operands(ops, i, r))
            if finish is not None:
                result = finish(ops, result)
            places = {a: position[a] for a in outer}
            where = tuple(
                places[a] if a in places else variable("i", 1) for a in range(len(source.size))
            ) if keepdim else tuple(places[a] for a in outer)
            ops.store(name, flatten(where, own.stride), ops.to_dtype(result, own.dtype))

        loops = self._along_memory(trace_body(ranges, () if is_short else reduced, body))
        origins = self.origins
        if source.view is None:
            origins = joined_origins([source.origins, origins])
        if not is_short:
            self.reduced.add(name)
        what = "pointwise" if is_short else "reduction"
        self.nodes.append(ComputedBuffer(name, own, loops, what, origins))
        return self.stored(layout, name)

    def _along_memory(self, body: LoopBody) -> LoopBody:
        """A reduction's body, whose loop on a GPU goes along what it reads most of."""
        if self.device.type == "cpu":
            return body
        read = [name for name in body.buffers_read() if name in self.layouts]
        return in_better_order(body, {
            name: hint_of(self.layouts[name].numel()) * self.layouts[name].dtype.itemsize
            for name in read})

    def by_rows(
        self, layout: Layout, source: Tensor, axis: int, element: Callable[[Ops, Value], Value]
    ) -> Tensor:
        """What a `scan` or a `sort` makes of each element of `source`, of at most LONGEST_SCAN
        along `axis`. The layout is that of the result."""
        if source.cost > MOST_COST:
            source.realize()
        own, rank = _own(layout), len(source.size)
        order = [a for a in self._order(layout) if a != axis]
        name = self.new_name()

        def body(ops: Ops, i: Indices, r: Indices) -> None:
            position = {**dict(zip(order, i, strict=True)), axis: r[0]}
            where = tuple(position[a] for a in range(rank))
            result = element(ops, source.load(ops, where))
            ops.store(name, flatten(where, own.stride), ops.to_dtype(result, own.dtype))

        loops = trace_body(tuple(source.size[a] for a in order), (source.size[axis],), body)
        origins = self.origins
        if source.view is None:
            origins = joined_origins([source.origins, origins])
        self.nodes.append(ComputedBuffer(name, own, loops, "reduction", origins))
        return self.stored(layout, name)

    def _is_short(self, rows: tuple[int, ...], columns: tuple[int, ...]) -> bool:
        """Whether a GPU rather adds these few elements for each result one by one, where neighbours
        of a row load side by side: a tile of four columns takes 21 us where memory takes 5."""
        if self.device.type == "cpu" or any(type(n) is not int for n in (*rows, *columns)):
            return False
        many = properties_of(self.device).scaled(MANY_ROWS)
        return math.prod(columns) <= SHORT and math.prod(rows) >= many

    def stored(self, layout: Layout, name: str) -> Tensor:
        """The tensor that lies in buffer `name`."""
        self.layouts.setdefault(name, layout)
        view = ViewRef(name, layout.size, layout.stride, 0, layout.dtype)
        return Tensor(layout, self, view=view)

    def constant(self, value: torch.Tensor, layout: Layout) -> Tensor:
        """A tensor that is part of the program."""
        name = f"const{len(self.constants)}"
        self.constants.append(ConstantBuffer(name, _own(layout), value))
        return self.stored(layout, name)

    def _order(self, layout: Layout) -> list[int]:
        """Axes from the outermost loop to the innermost."""
        return memory_order(layout) if self.in_memory_order else list(range(len(layout.size)))

    def _loop_order(self, layout: Layout, outer: list[int], rank: int) -> list[int]:
        """The kept axes of the source, outermost first as the result lies in memory."""
        axis_of = list(range(rank)) if len(layout.size) == rank else outer
        return [axis_of[a] for a in self._order(layout) if axis_of[a] in outer]

    def _pointwise_body(self, name: str, layout: Layout, load: Compute) -> LoopBody:
        order = self._order(layout)
        held = compute_dtype(layout.dtype)

        def body(ops: Ops, i: Indices, r: Indices) -> None:
            position = dict(zip(order, i, strict=True))
            indices = tuple(position[a] for a in range(len(order)))
            value = load(ops, indices)
            if value.dtype is not held:
                raise TypeError(f"{name}: computed {value.dtype}, expected {held}")
            place = flatten(indices, layout.stride, layout.offset)
            ops.store(name, place, ops.to_dtype(value, layout.dtype))

        return trace_body(tuple(layout.size[a] for a in order), (), body)

    # -- calls into the library -------------------------------------------------------------------

    def extern(
        self,
        target: torch._ops.OpOverload,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        result: Any,
        reason: str = "",
    ) -> Any:
        """Call an operator; `result` is the fake of what it returns. Tensors are realized."""
        name = self.new_name()
        plain = tuple(_argument(arg) for arg in args)
        named = tuple((key, _argument(value)) for key, value in kwargs.items())
        if is_tensor(result):
            layout = _own(layout_of(result))
            self.nodes.append(
                ExternKernel(name, layout, target, plain, named, (), self.origins, reason)
            )
            if target.is_view:
                seen = self.nodes[-1].reads()
                self.looks_at[name] = frozenset(seen).union(*map(self.looked_at, seen))
            return self.stored(layout_of(result), name)
        self.nodes.append(ExternKernel(name, None, target, plain, named, (), self.origins, reason))
        return self._results(name, result) if result is not None else None

    def extern_into(
        self, target: torch._ops.OpOverload, args: Sequence[Any], kwargs: dict[str, Any],
        buffers: tuple[str, ...], reason: str,
    ) -> None:
        """Call an operator that writes into these buffers, which arguments show."""
        plain = tuple(_argument(arg) for arg in args)
        named = tuple((key, _argument(value)) for key, value in kwargs.items())
        self.nodes.append(
            ExternKernel(
                self.new_name(), None, target, plain, named, buffers, self.origins, reason
            )
        )

    def is_written(self, name: str, since: int) -> bool:
        """Whether one of the nodes from a number on writes into a buffer that was there before."""
        touched = (getattr(node, "mutates", ()) for node in self.nodes[since:])
        return any(name == one or name in one and not isinstance(one, str) for one in touched)

    def looked_at(self, name: str) -> frozenset[str]:
        """The buffers whose memory a buffer shows: its own, or those that a call gave a view of."""
        return self.looks_at.get(name, frozenset()) | {name}

    def _results(self, extern: str, result: Any) -> Any:
        tensors: list[Any] = []
        for index, item in enumerate(result):
            if not is_tensor(item):
                tensors.append(None)
                continue
            layout = layout_of(item)
            name = self.new_name()
            self.nodes.append(MultiOutput(name, _own(layout), extern, index, self.origins))
            tensors.append(self.stored(layout, name))
        return tuple(tensors)


def _own(layout: Layout) -> Layout:
    """The layout in a buffer that begins with the tensor's first element."""
    if layout.offset == 0:
        return layout
    return Layout(layout.device, layout.dtype, layout.size, layout.stride)


def converting(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """The same elements as another dtype."""
    if tensor.dtype is dtype:
        return tensor
    old = tensor.layout
    layout = Layout(old.device, dtype, old.size, old.stride, old.offset)
    held = compute_dtype(dtype)
    convert: Compute = lambda ops, indices: ops.to_dtype(tensor.load(ops, indices), held)  # noqa: E731
    return Tensor(layout, tensor.owner, compute=convert, cost=tensor.cost, reads=tensor.reads)


def _argument(value: Any) -> Argument:
    if isinstance(value, Tensor):
        return value.realize()
    if isinstance(value, (list, tuple)):
        return tuple(_argument(item) for item in value)
    return value  # type: ignore[no-any-return]
