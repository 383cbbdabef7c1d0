"""Writes of one element of each row, as a comparison of columns.

In: a functional ATen graph of known sizes, with fakes. Out: the same graph (changed in place) where
`x[arange(n), columns] = v`, `x[arange(n), columns] += v` and a scatter of one element along an axis
are `where(column == columns[:, None], v, x)`, if `x` is computed on a GPU: margins of a loss,
targets that are smoothed, and the gradient of what such an index reads. What reads the result
computes it, where the write needs it in memory, for a kernel that touches a few elements. `x` that
is a buffer or an argument stays as it is, since the write may then go there. (Zeros of a training
program, for which a scatter writes targets, have been taken apart by `dynamo/aot/rows.py`.)

The columns are read out of a count of all columns, by the same index: so one that is negative
counts from the end, and one that is out of range raises, as before.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from dynamo.aot.fakes import facts_of, is_fake
from inductor.fx_passes.calls_with_fakes import Calls
from inductor.fx_passes.fakes import on_gpu
from inductor.fx_passes.permutations import counts_up
from inductor.fx_passes.zeros import FILLS
from inductor.ir.body import is_small

aten = torch.ops.aten
FEWEST_COLUMNS = 16  # with fewer, a kernel that writes has as much to do; chosen, not measured
SCATTERS = (aten.scatter.src, aten.scatter.value, aten.scatter_add.default)
WRITES = (aten.index_put.default, *SCATTERS)
COPIES = (aten.clone.default, aten._to_copy.default)


def compare_columns(module: fx.GraphModule) -> fx.GraphModule:
    """See the top of the file."""
    changed = False
    for target in WRITES:
        for node in module.graph.find_nodes(op="call_function", target=target):
            if not node.users or not _is_computed(node.args[0]):
                continue
            made = _of_index(node) if target is aten.index_put.default else _of_scatter(node)
            if made is None:
                continue
            changed = True
            if _lies_alike(made, node):  # else what is new is dead
                node.replace_all_uses_with(made)
                module.graph.erase_node(node)
    if changed:
        module.graph.eliminate_dead_code()
        module.recompile()
    return module


def _is_computed(node: Any) -> bool:
    """Whether kernels compute a tensor on a GPU where it is read."""
    if not isinstance(node, fx.Node) or not is_fake(node.meta.get("val")):
        return False
    facts = facts_of(node.meta["val"])
    if not on_gpu(facts.device) or not all(type(n) is int and n for n in facts.size):
        return False
    if facts.dtype.is_complex or is_small(facts.dtype):  # of which ATen may not choose
        return False
    tags = getattr(node.target, "tags", ())
    return node.target in FILLS or node.target in COPIES or torch.Tag.pointwise in tags


def _lies_alike(made: fx.Node, node: fx.Node) -> bool:
    return facts_of(made.meta["val"]).stride == facts_of(node.meta["val"]).stride


def _of_index(node: fx.Node) -> fx.Node | None:
    """`x[rows, columns] = values`, of a matrix."""
    given: tuple[Any, ...] = node.args
    x, indices, values, *more = given
    facts = facts_of(x.meta["val"])
    if len(facts.size) != 2 or len(indices) != 2 or node.kwargs:
        return None
    (rows, columns), (count, width) = indices, facts.size
    if not counts_up(rows) or not _is_list(rows, count) or not _is_list(columns, count):
        return None
    size = facts_of(values.meta["val"]).size
    if width < FEWEST_COLUMNS or size not in ((), (1,), (count,)):
        return None
    call = Calls(node)
    of_all = call(aten.arange.default, width, dtype=torch.int64, device=facts.device)
    places = call(aten.unsqueeze.default, call(aten.index.Tensor, of_all, [columns]), 1)
    if size == (count,):
        values = call(aten.unsqueeze.default, values, 1)
    return _chosen(call, (x, values), (places, of_all), more == [True])


def _is_list(node: Any, count: int) -> bool:
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    return is_fake(value) and facts_of(value).size == (count,) and (
        facts_of(value).dtype is torch.int64)


def _of_scatter(node: fx.Node) -> fx.Node | None:
    """A scatter of one element along an axis, all others being as long as in the tensor."""
    arguments: tuple[Any, ...] = node.args
    x, dim, index, values = arguments
    size, given = facts_of(x.meta["val"]).size, facts_of(index.meta["val"])
    if node.kwargs or not size or given.dtype is not torch.int64:
        return None
    axis = int(dim) % len(size)
    alike = given.size == (*size[:axis], 1, *size[axis + 1 :])
    if not alike or size[axis] < FEWEST_COLUMNS:
        return None
    call, facts = Calls(node), facts_of(node.meta["val"])
    if isinstance(values, fx.Node):
        if facts_of(values.meta["val"]).size != given.size:
            return None
    else:
        values = call(aten.full.default, [], values, dtype=facts.dtype, device=facts.device)
    of_all = call(aten.arange.default, size[axis], dtype=torch.int64, device=facts.device)
    of_all = call(aten.view.default, of_all, [-1, *[1] * (len(size) - axis - 1)])
    every = call(aten.expand.default, of_all, [*size])
    places = call(aten.gather.default, every, axis, index)
    return _chosen(call, (x, values), (places, of_all), node.target is aten.scatter_add.default)


def _chosen(
    call: Calls, tensors: tuple[Any, Any], columns: tuple[fx.Node, fx.Node], adds: bool
) -> fx.Node:
    x, values = tensors
    if adds:
        values = call(aten.add.Tensor, x, values)
    return call(aten.where.self, call(aten.eq.Tensor, *columns), values, x)
