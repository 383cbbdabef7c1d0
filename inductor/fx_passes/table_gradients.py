"""Gradients of a table that is read by its rows and multiplied as a whole (tied embeddings), on a
CPU: rows are added to the GEMM, not to zeros that are added to it.

In: a functional ATen graph with fakes. Out: the same graph (changed in place) where
`gemm + index_put(zeros, rows, values)` is `index_put(gemm, rows, values)`, which is done in
place. Such tables are large and the rows few: zeros and sum would cost four passes over memory as
large as the table. Sums of floats are only in another order.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx

from dynamo.aot.joint import viewed
from inductor.fx_passes.zeros import is_zeros

aten = torch.ops.aten
DTYPES = (torch.float32, torch.float64)  # lower ones would be rounded at each addition
GEMMS = (aten.mm.default, aten.addmm.default)
# So many elements of the table for each that is added repay a kernel of its own.
FEWEST_ELEMENTS = 4


def add_rows_to_gemms(module: fx.GraphModule) -> fx.GraphModule:
    """See the top of the file."""
    graph, changed = module.graph, False
    for node in list(graph.find_nodes(op="call_function", target=aten.add.Tensor)):
        changed |= _rewrite(graph, node)
    if changed:
        graph.eliminate_dead_code()
        module.recompile()
    return module


def _rewrite(graph: fx.Graph, total: fx.Node) -> bool:
    if total.kwargs or not all(_is_table(given, total) for given in total.args):
        return False
    first, second = total.args
    for gemm, rows in ((first, second), (second, first)):
        assert isinstance(gemm, fx.Node) and isinstance(rows, fx.Node)
        writes = _additions_to_zeros(rows)
        if writes and _is_gemm(gemm) and _repays(writes, total):
            break
    else:
        return False
    made = gemm
    for write in writes:
        with graph.inserting_before(total):
            made = graph.call_function(write.target, (made, *write.args[1:]))  # type: ignore[arg-type]
        made.meta.update(write.meta)
        made.meta["val"] = total.meta["val"]
    total.replace_all_uses_with(made)
    graph.erase_node(total)
    return True


def _is_table(given: Any, total: fx.Node) -> bool:
    """Whether it is made for this sum alone, and like the result."""
    if not isinstance(given, fx.Node) or len(given.users) != 1 or given.op != "call_function":
        return False
    mine, result = given.meta.get("val"), total.meta.get("val")
    if not isinstance(mine, torch.Tensor) or not isinstance(result, torch.Tensor):
        return False
    alike = mine.shape == result.shape and mine.stride() == result.stride()
    on_cpu = mine.device.type == result.device.type == "cpu"
    return alike and on_cpu and mine.dtype is result.dtype and mine.dtype in DTYPES


def _additions_to_zeros(node: fx.Node) -> list[fx.Node]:
    """The additions of rows, in order, that make a tensor of zeros what it is; none for others."""
    found: list[fx.Node] = []
    while node.target is aten.index_put.default and len(node.users) == 1:
        accumulates = node.args[3:] == (True,) and not node.kwargs
        before, indices = node.args[:2]
        if not accumulates or not isinstance(before, fx.Node) or len(indices) != 1:  # type: ignore[arg-type]
            return []
        found.append(node)
        node = before
    return found[::-1] if found and len(node.users) == 1 and is_zeros(node) else []


def _is_gemm(node: fx.Node) -> bool:
    """Whether it is memory that a GEMM, or such a sum, has made and nothing else sees."""
    base: fx.Node | None = node
    while base is not None and len(base.users) == 1:
        if base.target in GEMMS:
            return True
        base = base.args[0] if base.target is aten.index_put.default else viewed(base)  # type: ignore[assignment]
    return False


def _repays(writes: list[fx.Node], total: fx.Node) -> bool:
    added = sum(map(_elements, (write.args[2] for write in writes)))
    return FEWEST_ELEMENTS * added <= _elements(total)


def _elements(node: Any) -> int:
    return math.prod(node.meta["val"].shape)
