"""Writes the part of a region that belongs to some rows as nodes of the graph.

Every wide value is (rows, columns) there, and every column (rows, 1), in whatever dimensions the
program has it; values may be narrower where they are the same along a dimension.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from dynamo.aot.joint import SAVED
from dynamo.aot.records import FAILS
from inductor.fx_passes.calls_with_fakes import Calls
from inductor.fx_passes.losses.ends import Ends
from inductor.fx_passes.losses.regions import (
    FILLED,
    SAME,
    SOFTMAX,
    SUMS,
    VIEWS,
    Region,
    is_elementwise,
    size_of,
)

aten = torch.ops.aten


class Mismatch(Exception):
    """A node would get another dtype or size."""


class _Parts(Calls):
    """Parts of a node: eager saves none of them, and none may raise."""

    def __call__(self, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        made = super().__call__(target, *args, **kwargs)
        for mark in (SAVED, FAILS):
            made.meta.pop(mark, None)
        return made


class Writer:
    """Puts nodes before `place`, with fakes."""

    def __init__(self, place: fx.Node) -> None:
        self.place = place

    def add(self, like: fx.Node, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        """A call. like: the node that it is a part of."""
        return _Parts(like, self.place)(target, *args, **kwargs)

    def shaped(self, node: fx.Node, size: tuple[int, ...]) -> fx.Node:
        """The same elements in other sizes."""
        return node if size_of(node) == size else _Parts(node, self.place).view(node, *size)

    def expanded(self, node: fx.Node, size: tuple[int, ...]) -> fx.Node:
        """Repeated where it has one element."""
        if size_of(node) == size:
            return node
        return self.add(node, aten.expand.default, node, list(size))


class Outside:
    """What the region reads from outside, in the sizes that the loop reads; each made once.

    Of what comes from the upstream gradient it is what belongs to an upstream gradient of 1.
    """

    def __init__(self, region: Region, ends: Ends, writer: Writer) -> None:
        self.region, self.ends, self.writer = region, ends, writer
        self.known: dict[Any, fx.Node] = {}
        self.copies: dict[fx.Node, fx.Node] = {}

    def value(self, node: fx.Node) -> fx.Node:
        """The node itself, or its copy for an upstream gradient of 1."""
        if node not in self.ends.late:
            return node
        if node not in self.copies:
            if node is self.ends.number:
                fake = node.meta["val"]
                made = self.writer.add(node, aten.full.default, list(size_of(node)), 1.0,
                                       dtype=fake.dtype, device=fake.device)
            else:
                args, kwargs = fx.map_arg((node.args, node.kwargs), self.value)
                made = self.writer.add(node, node.target, *args, **kwargs)
            self.copies[node] = made
        return self.copies[node]

    def operand(self, node: fx.Node, size: tuple[int, ...], wide: bool) -> fx.Node:
        """What broadcasts to `size`, so that it broadcasts to (rows, columns)."""
        value = self.value(node)
        if not size_of(node):
            return value
        padded = (*(1,) * (len(size) - len(size_of(node))), *size_of(node))
        rows, width = (padded[:-1], padded[-1]) if wide else (padded, 1)
        goal = size[:-1] if wide else size
        key = (node, wide, goal)
        if key not in self.known:
            count = 1 if math.prod(rows) == 1 else math.prod(goal)
            if count > 1:
                tail = (width,) if wide else ()
                value = self.writer.shaped(value, (*rows, *tail))
                value = self.writer.expanded(value, (*goal, *tail))
            self.known[key] = self.writer.shaped(value, (count, width))
        return self.known[key]

    def matrix(self, node: fx.Node, space: int) -> fx.Node:
        """An operand with one row for each row of the GEMM, of those of a space."""
        chosen = self.region.selection
        if space == self.region.last_space or chosen is None:
            return node
        key = (node, "selected")
        if key not in self.known:
            width = size_of(node)[1]
            whole = self.writer.shaped(node, (*chosen.before, width))
            dim, start, end, step = chosen.where
            part = self.writer.add(node, aten.slice.Tensor, whole, dim, start, end, step)
            self.known[key] = self.writer.shaped(part, (self.region.counts[1], width))
        return self.known[key]


class Chunk:
    """The values of the rows from `start` to `end`."""

    def __init__(self, outside: Outside, start: int, end: int) -> None:
        self.outside, self.writer, self.region = outside, outside.writer, outside.region
        self.start, self.end = start, end
        self.values: dict[fx.Node, fx.Node] = {}
        self.parts: dict[tuple[fx.Node, int], fx.Node] = {}
        self.extents: dict[fx.Node, tuple[fx.Node, fx.Node]] = {}
        self.picked: dict[tuple[fx.Node, fx.Node], fx.Node] = {}

    def part(self, node: fx.Node, dim: int = 0) -> fx.Node:
        """These rows of a matrix from outside; dim: where it has its rows."""
        key = (node, dim)
        if key not in self.parts:
            self.parts[key] = self.writer.add(
                node, aten.slice.Tensor, node, dim, self.start, self.end)
        return self.parts[key]

    def value(self, node: fx.Node) -> fx.Node:
        """What a node of the region is for these rows. Errors: Mismatch."""
        if node not in self.values:
            made = self._made(node)
            if made.meta["val"].dtype is not node.meta["val"].dtype:
                raise Mismatch(f"{node} becomes {made.meta['val'].dtype}")
            if FAILS in node.meta:
                made.meta[FAILS] = True
            self.values[node] = made
        return self.values[node]

    def whole(self, node: fx.Node) -> fx.Node:
        """The same in its full size."""
        width = self.region.columns if self.region.forms[node].wide else 1
        return self.writer.expanded(self.value(node), (self.end - self.start, width))

    def _made(self, node: fx.Node) -> fx.Node:
        region, writer = self.region, self.writer
        if node is region.gemm:
            rows = self.part(self.outside.matrix(region.left, 0))
            bias = () if region.bias is None else (region.bias,)
            return writer.add(node, node.target, *bias, rows, region.right, **node.kwargs)
        rule = RULES.get(node.target)
        return self._elementwise(node) if rule is None else rule(self, node)

    def operand(self, given: fx.Node, node: fx.Node, wide: bool) -> fx.Node:
        """An operand of an elementwise operation."""
        if given in self.region.forms:
            return self.value(given)
        found = self.outside.operand(given, size_of(node), wide)
        size = size_of(found)
        return self.part(found) if size and size[0] != 1 else found

    def _elementwise(self, node: fx.Node) -> fx.Node:
        wide = self.region.forms[node].wide
        args = fx.map_arg(node.args, lambda given: self.operand(given, node, wide))
        return self._call(node, args)

    def _call(self, node: fx.Node, args: Any) -> fx.Node:
        """An elementwise operation on what its operands are here."""
        if node.target in SAME:
            return args[0]  # type: ignore[no-any-return]
        kwargs = {name: value for name, value in node.kwargs.items() if name not in LAID_OUT}
        return self.writer.add(node, node.target, *args, **kwargs)

    def _first(self, node: fx.Node) -> fx.Node:
        return self.value(node.args[0])  # type: ignore[arg-type]

    def _softmax(self, node: fx.Node) -> fx.Node:
        return self._normalised(node, self.whole(node.args[0]))  # type: ignore[arg-type]

    def _normalised(self, node: fx.Node, values: fx.Node) -> fx.Node:
        """Values of the input of a softmax become such of its result."""
        add, (top, total) = self.writer.add, self._extent(node)
        exponent = add(node, aten.sub.Tensor, self._in_float(values), top)
        if node.target is aten._softmax.default:
            found = add(node, aten.div.Tensor, add(node, aten.exp.default, exponent), total)
        else:
            found = add(node, aten.sub.Tensor, exponent, add(node, aten.log.default, total))
        dtype = node.meta["val"].dtype
        if found.meta["val"].dtype is dtype:
            return found
        return add(node, aten._to_copy.default, found, dtype=dtype)

    def _extent(self, node: fx.Node) -> tuple[fx.Node, fx.Node]:
        """The maxima of the input of a softmax, and the sums of its exponentials."""
        given: Any = node.args[0]
        if given not in self.extents:
            add, whole = self.writer.add, self._in_float(self.whole(given))
            top = add(node, aten.amax.default, whole, [1], True)
            # `alpha` says nothing, and keeps this apart from the difference of which the result
            # is made: one that both read would be stored.
            difference = add(node, aten.sub.Tensor, whole, top, alpha=1)
            powers = add(node, aten.exp.default, difference)
            total = add(node, aten.sum.dim_IntList, powers, [1], True)
            self.extents[given] = top, total
        return self.extents[given]

    def _in_float(self, node: fx.Node) -> fx.Node:
        """At least in the dtype in which ATen computes a softmax."""
        if node.meta["val"].dtype.itemsize >= 4:
            return node
        return self.writer.add(node, aten._to_copy.default, node, dtype=torch.float32)

    def _reduced(self, node: fx.Node) -> fx.Node:
        listed = isinstance(node.args[1], (list, tuple))
        return self.writer.add(
            node, node.target, self.whole(node.args[0]), [1] if listed else 1, True,  # type: ignore[arg-type]
            **node.kwargs)

    def _gathered(self, node: fx.Node) -> fx.Node:
        return self._picked(node.args[0], self._column(node.args[2], node, False))  # type: ignore[arg-type]

    def _picked(self, node: fx.Node, index: fx.Node) -> fx.Node:
        """One element of each row. Of what is computed element by element only these are: else
        all would be stored for them."""
        key = (node, index)
        if key not in self.picked:
            self.picked[key] = self._one_of_each_row(node, index)
        return self.picked[key]

    def _one_of_each_row(self, node: fx.Node, index: fx.Node) -> fx.Node:
        region = self.region
        if node.target in VIEWS or node.target is aten.slice.Tensor:
            return self._picked(node.args[0], index)  # type: ignore[arg-type]
        if node.target in SOFTMAX:
            return self._normalised(node, self._picked(node.args[0], index))  # type: ignore[arg-type]
        if node is region.gemm or not is_elementwise(node.target):
            return self.writer.add(node, aten.gather.default, self.whole(node), 1, index)

        def operand(given: fx.Node) -> fx.Node:
            if given in region.forms and region.forms[given].wide:
                return self._picked(given, index)
            found = self.operand(given, node, True)
            if size_of(found)[1:] in ((), (1,)):
                return found
            whole = self.writer.expanded(found, (self.end - self.start, region.columns))
            return self.writer.add(node, aten.gather.default, whole, 1, index)

        return self._call(node, fx.map_arg(node.args, operand))

    def _column(self, given: Any, node: fx.Node, wide: bool) -> fx.Node:
        found = self.operand(given, node, wide)
        return self.writer.expanded(found, (self.end - self.start, 1))

    def _scattered(self, node: fx.Node) -> fx.Node:
        """Each row has one column at most that is not zero."""
        base, _, index, source = node.args
        place = self._column(index, node, True)
        columns = self.outside.known.get("columns")
        if columns is None:
            columns = self.writer.add(node, aten.arange.default, self.region.columns,
                                      dtype=torch.int64, device=self.region.device)
            columns = self.outside.known["columns"] = self.writer.shaped(
                columns, (1, self.region.columns))
        here = self.writer.add(node, aten.eq.Tensor, columns, place)
        value = self._column(source, node, True)
        return self.writer.add(node, aten.where.self, here, value, self.value(base))  # type: ignore[arg-type]

    def _filled(self, node: fx.Node) -> fx.Node:
        fake = node.meta["val"]
        return self.writer.add(node, aten.full.default, [1, 1], FILLED[node.target][1],
                               dtype=fake.dtype, device=fake.device)


LAID_OUT = ("layout", "device", "pin_memory", "memory_format", "non_blocking")
RULES: dict[Any, Callable[[Chunk, fx.Node], fx.Node]] = {
    **dict.fromkeys(VIEWS, Chunk._first),
    **dict.fromkeys(SOFTMAX, Chunk._softmax),
    **dict.fromkeys(SUMS, Chunk._reduced),
    **dict.fromkeys(FILLED, Chunk._filled),
    aten.slice.Tensor: Chunk._first,
    aten.slice_scatter.default: lambda chunk, node: chunk.value(node.args[1]),  # type: ignore[arg-type]
    aten.gather.default: Chunk._gathered,
    aten.scatter_add.default: Chunk._scattered,
}
