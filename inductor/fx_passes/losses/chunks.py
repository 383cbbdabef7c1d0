"""A loss over a large vocabulary is computed for some rows of its logits at a time.

In: a functional ATen graph with fakes, forward alone or joint, after decomposition. Out: the same
graph (changed in place), in which a GEMM with a large result, the logits, and all that is
computed from it row by row, stands once for each chunk of the rows. What leaves a chunk is small:
numbers for each row, such as the loss, and GEMMs with the gradient of the logits, which are
rows of one gradient, and terms of another one.

In a joint graph these gradients are computed in the forward half, for an upstream gradient of 1;
backward multiplies them by the one that comes. So nothing of the size of all logits is ever there.
That needs an upstream gradient that is one number, and the gradients proportional to it.

Which graphs are changed is a matter of sizes alone: see `choose_rows`.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx

from dynamo.aot.graphs import is_effect, is_once, remove_dead_code
from dynamo.aot.joint import SAVED
from dynamo.aot.records import CHECKS, FAILS, RECOMPUTED
from dynamo.aot.rows import merge_equal
from dynamo.base import logs
from inductor.autotune.library_convolutions import is_native
from inductor.fx_passes.losses.checked import saved_by_eager
from inductor.fx_passes.losses.emit import Chunk, Mismatch, Outside, Writer
from inductor.fx_passes.losses.ends import (
    ROWS,
    SUM,
    SUM_OF_ALL,
    TOTAL,
    TURNED_TOTAL,
    Ends,
    Root,
    find_ends,
)
from inductor.fx_passes.losses.regions import GEMMS, Region, is_tensor, size_of
from inductor.fx_passes.losses.sizes import choose_rows, is_large
from inductor.operators.gemm_sums import (
    GEMM_ADDED,
    GEMM_SET,
    PART_ADDED,
    ROWS_SET,
    WIDE,
)

aten = torch.ops.aten
SUMS = (SUM, SUM_OF_ALL)
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def chunk_losses(module: fx.GraphModule) -> fx.GraphModule:
    """See the top of the file."""
    if not any(map(_is_candidate, module.graph.nodes)):
        return module
    merge_equal(module)
    for node in [node for node in module.graph.nodes if _is_candidate(node)]:
        if node.users and _rewrite(module.graph, node):
            module.graph.lint()
            module.recompile()
    return module


def _is_candidate(node: fx.Node) -> bool:
    if node.target not in GEMMS or not is_tensor(node) or RECOMPUTED in node.meta:
        return False
    value = node.meta["val"]
    if value.dtype not in DTYPES or not is_large(value):
        return False
    if node.target is aten.mm.default:
        return True
    bias, columns = size_of(node.args[0]), value.shape[1]  # type: ignore[arg-type]
    return bias[-1:] == (columns,) and math.prod(bias) == columns


def _rewrite(graph: fx.Graph, gemm: fx.Node) -> bool:
    region = Region(graph, gemm)
    ends = find_ends(region)
    if ends is None or _is_refused(region, ends):
        return False
    sums = [root for root in ends.roots if root.kind in (TOTAL, TURNED_TOTAL)]
    rows = choose_rows(
        region.counts[-1], size_of(region.left)[1], region.columns, region.dtype,
        region.device, bool(sums))
    if rows is None:
        return False
    place = _place_of(region, ends)
    if place is None:
        return False
    writer = Writer(place)
    before = set(graph.nodes)
    try:
        loop = _Loop(region, ends, writer)
        loop.run(rows)
    except Mismatch as refusal:
        logs.log("inductor").emit(f"a loss is computed for all rows at once: {refusal}")
        for node in reversed([node for node in graph.nodes if node not in before]):
            graph.erase_node(node)
        return False
    for old, new in loop.results.items():
        if SAVED in old.meta:
            new.meta[SAVED] = True
        old.replace_all_uses_with(new)
    for node in ends.needed:
        node.meta.pop(FAILS, None)
    remove_dead_code(graph)
    count = math.ceil(region.counts[-1] / rows)
    logs.log("inductor").emit(
        f"a loss over {region.columns} columns is computed for {rows} of {region.counts[-1]} rows "
        f"at a time ({count} chunks)")
    return True


def _is_refused(region: Region, ends: Ends) -> bool:
    """Gradients in float16 belong to the upstream gradient that the program scales so that they
    fit. On a CPU with GEMMs of half precision, those in float32 would take longer."""
    dtypes = {node.meta["val"].dtype for node in ends.needed if node in ends.late}
    if torch.float16 in dtypes:
        return True
    return bool(dtypes) and region.device.type == "cpu" and is_native(region.dtype)


def _place_of(region: Region, ends: Ends) -> fx.Node | None:
    """Where the loop stands: before the first who reads a column of it, or a GEMM. What the
    loop reads is moved before that place; None where something of it may not be moved."""
    order = {node: n for n, node in enumerate(region.graph.nodes)}
    readers = [user for exit in ends.exits for user in exit.users if user not in ends.needed]
    readers += [root.node for root in ends.roots]
    if not readers:
        return None
    place = min(readers, key=order.__getitem__)
    read: set[fx.Node] = set()
    work = [given for node in ends.needed for given in node.all_input_nodes]
    work += [root.other for root in ends.roots if root.other is not None]
    while work:
        node = work.pop()
        if node in read or node is ends.number or node in region.dependents:
            continue
        read.add(node)
        work += node.all_input_nodes
    moved = [node for node in read if order[node] >= order[place] and node not in ends.late]
    if any(is_effect(node) or is_once(node) or node.op != "call_function" for node in moved):
        return None
    for node in sorted(moved, key=order.__getitem__):
        place.prepend(node)
    return place


class _Loop:
    """Writes the chunks. results: by the nodes that they stand for."""

    def __init__(self, region: Region, ends: Ends, writer: Writer) -> None:
        self.region, self.ends, self.writer = region, ends, writer
        self.outside = Outside(region, ends, writer)
        self.chunked: dict[fx.Node, fx.Node] = {}
        self.results: dict[fx.Node, fx.Node] = {}
        late = [root.node for root in ends.roots if ends.is_late(root)]
        self.checks = saved_by_eager(region.graph, late)

    def run(self, rows: int) -> None:
        """Chunks of so many rows. Errors: Mismatch."""
        count = self.region.counts[-1]
        for node in self.ends.exits:
            self.chunked[node] = self._empty(node, (count, 1), node.meta["val"].dtype)
        for root in self.ends.roots:
            if root.kind == ROWS:
                size = (count, size_of(root.node)[1])
                self.chunked[root.node] = self._empty(root.node, size, _summed(root.node))
        for start in range(0, count, rows):
            chunk = Chunk(self.outside, start, min(start + rows, count))
            # First what reads the logits: their gradient may be written over them.
            for node in self.ends.exits:
                self._write(node, ROWS_SET, chunk.whole(node), start)
            for root in self.ends.roots:
                self._add(root, chunk)
        for node in self.ends.exits:
            self.results[node] = self.writer.shaped(self.chunked[node], size_of(node))
        for root in self.ends.roots:
            self._finish(root)

    def _empty(self, like: fx.Node, size: tuple[int, ...], dtype: torch.dtype) -> fx.Node:
        return self.writer.add(like, aten.empty.memory_format, list(size), dtype=dtype,
                               device=self.region.device)

    def _write(self, node: fx.Node, target: Any, *args: Any) -> None:
        self.chunked[node] = self.writer.add(node, target, self.chunked[node], *args)

    def _add(self, root: Root, chunk: Chunk) -> None:
        """One chunk's part of a root, in float32 at least."""
        wide, add, like = chunk.whole(root.wide), self.writer.add, root.node
        space = self.region.forms[root.wide].space
        if root.kind in SUMS:
            dims = [0] if root.kind == SUM else [0, 1]
            part = add(like, aten.sum.dim_IntList, wide, dims, True, dtype=_summed(like))
            if like not in self.chunked:
                self.chunked[like] = add(like, aten.full.default, list(size_of(part)), 0,
                                       dtype=_summed(like), device=self.region.device)
            self._write(like, PART_ADDED, part)
            return
        assert root.other is not None
        if root.kind == ROWS:
            self._write(like, GEMM_SET, wide, root.other, chunk.start)
            return
        if root.kind == TOTAL:
            left = add(like, aten.t.default, wide)
            right = chunk.part(self.outside.matrix(root.other, space))
        else:
            left, right = self._turned(root.other, space, chunk), wide
        if like in self.chunked:
            self._write(like, GEMM_ADDED, left, right)
        else:
            is_half = like.meta["val"].dtype.itemsize == 2
            self.chunked[like] = add(like, WIDE if is_half else aten.mm.default, left, right)

    def _turned(self, other: fx.Node, space: int, chunk: Chunk) -> fx.Node:
        """Columns of an operand with one for each row."""
        if space == self.region.last_space:
            return chunk.part(other, 1)
        key = (other, "turned")
        if key not in self.outside.known:
            turned = self.writer.add(other, aten.t.default, other)
            self.outside.known[key] = turned
        rows = chunk.part(self.outside.matrix(self.outside.known[key], space))
        return self.writer.add(other, aten.t.default, rows)

    def _finish(self, root: Root) -> None:
        """The whole of a root from its parts, times the number that comes from upstream."""
        node, whole, writer = root.node, self.chunked[root.node], self.writer
        writer.place = node
        if self.ends.is_late(root):
            whole = writer.add(node, aten.mul.Tensor, whole, self._number(node))
            whole.meta[CHECKS] = self.checks
        dtype = node.meta["val"].dtype
        if whole.meta["val"].dtype is not dtype:
            whole = writer.add(node, aten._to_copy.default, whole, dtype=dtype)
        if root.kind == ROWS and self.region.forms[root.wide].space != self.region.last_space:
            whole = self._scattered(node, whole)
        self.results[node] = writer.shaped(whole, size_of(node))
        if whole.meta["val"].stride() != node.meta["val"].stride() and root.kind not in SUMS:
            raise Mismatch(f"{node} would get other strides")

    def _number(self, node: fx.Node) -> fx.Node:
        number: Any = self.ends.number
        if size_of(number):
            number = self.writer.add(node, aten.view.default, number, [])
        if number.meta["val"].dtype.itemsize < 4:
            number = self.writer.add(node, aten._to_copy.default, number, dtype=torch.float32)
        return number  # type: ignore[no-any-return]

    def _scattered(self, node: fx.Node, rows: fx.Node) -> fx.Node:
        """The rows that were selected, among zeros."""
        chosen = self.region.selection
        assert chosen is not None
        width, fake = size_of(rows)[1], rows.meta["val"]
        part = self.writer.shaped(rows, (*chosen.after, width))
        zeros = self.writer.add(node, aten.full.default, [*chosen.before, width], 0,
                                dtype=fake.dtype, device=fake.device)
        whole = self.writer.add(node, aten.slice_scatter.default, zeros, part, *chosen.where)
        return self.writer.shaped(whole, size_of(node))


def _summed(node: fx.Node) -> torch.dtype:
    dtype: torch.dtype = node.meta["val"].dtype
    return torch.float32 if dtype.itemsize < 4 else dtype
