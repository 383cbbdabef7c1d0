"""Sums into a table of few rows, as gradients of relative positions, times and other buckets are: a
GPU adds them into copies of the table, and then the copies.

In: a functional ATen graph with fakes. Out: the same graph (changed in place) where
`index_put(zeros, places, values, accumulate=True)` of many values is that of a table with one more
axis, and a sum over it. Additions to one place in memory wait for each other (0.9 ns on an H200),
and neighbours have copies side by side. Sums are in another order; values of half precision are
added in float32 and rounded once, as before.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx

from dynamo.aot.fakes import is_fake
from inductor.fx_passes.calls_with_fakes import Calls
from inductor.fx_passes.fakes import on_gpu
from inductor.fx_passes.zeros import is_zeros

aten = torch.ops.aten

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
# Elements that are added (200 us on an H200 if all meet at one place), elements for each of the
# table, elements and copies of the table at most, and copies that repay a sum over them: chosen,
# not measured. Copies of 4 MiB stay in the cache of an H200, and of what came before it. They only
# choose between two right ways, on any device.
FEWEST_ADDED, FEWEST_MEETING, MOST_ELEMENTS, MOST_COPIES = 1 << 18, 64, 1 << 20, 1024
FEWEST_COPIES = 8


def add_into_copies(module: fx.GraphModule) -> fx.GraphModule:
    """See the top of the file. Not in deterministic mode, where ATen adds in its own order."""
    if torch.are_deterministic_algorithms_enabled():
        return module
    graph, changed = module.graph, False
    for node in graph.find_nodes(op="call_function", target=aten.index_put.default):
        changed |= _rewrite(node)
    if changed:
        graph.eliminate_dead_code()
        graph.lint()
        module.recompile()
    return module


def _rewrite(node: fx.Node) -> bool:
    if node.args[3:] != (True,) or node.kwargs or not is_zeros(node.args[0]):
        return False  # to what is there before, each value would be added in turn
    table, values = node.meta["val"], node.args[2].meta["val"]  # type: ignore[union-attr]
    given: Any = node.args[1]
    indices = [one for one in given if one is not None]
    if given[: len(indices)] != indices or not all(map(_is_places, indices)):
        return False  # the indexed axes come first
    if not on_gpu(table.device) or table.dtype not in DTYPES or not is_fake(values):
        return False
    if not table.is_contiguous():
        return False
    size = torch.broadcast_shapes(*(one.meta["val"].shape for one in indices))
    rest = table.shape[len(indices) :]
    copies = _copies(table.numel(), math.prod(size), math.prod(rest))
    if not copies:
        return False
    call, device = Calls(node), table.device
    count = call(aten.arange.default, math.prod(size), dtype=torch.int64, device=device)
    copy = call(aten.view.default, call(aten.bitwise_and.Scalar, count, copies - 1), [*size])
    rows = [*table.shape[: len(indices)], copies, *rest]
    zeros = call(aten.full.default, rows, 0, dtype=torch.float32, device=device)
    wide = call(aten._to_copy.default, node.args[2], dtype=torch.float32)
    added = call(aten.index_put.default, zeros, [*indices, copy], wide, True)
    total = call(aten.sum.dim_IntList, added, [len(indices)])
    if table.dtype is not torch.float32:
        total = call(aten._to_copy.default, total, dtype=table.dtype)
    node.replace_all_uses_with(total)
    return True


def _is_places(node: Any) -> bool:
    value = node.meta["val"]
    return is_fake(value) and value.dtype in (torch.int64, torch.int32)


def _copies(table: int, places: int, width: int) -> int:
    """A power of two, so that a thread finds its copy by its last bits; 0 where none repays."""
    added = places * width
    if added < max(FEWEST_ADDED, FEWEST_MEETING * table):
        return 0
    most = min(MOST_COPIES, MOST_ELEMENTS // table, added // (FEWEST_MEETING // 2 * table))
    return 0 if most < FEWEST_COPIES else 1 << most.bit_length() - 1
