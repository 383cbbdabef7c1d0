"""GEMMs of single rows with matrices that are looked up in a table are loops: experts and adapters.

In: a functional ATen graph with fakes, perhaps a joint one. Out: the same graph (changed in place)
where each `bmm` on a GPU

- of one row (or column) with a matrix that is a row of a table is a product and a sum. The loop
  reads the table where it lies: the matrices, one for each token, are written nowhere, and are no
  values that backward needs;
- of a column with a row is their product, which whatever follows takes along.

Products are added in float32, as a library does.

    >>> # bmm(x[:, None], weight[experts]): no kernel makes weight[experts]
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from dynamo.aot.fakes import expression_of, facts_of
from inductor.fx_passes.calls_with_fakes import Calls
from inductor.fx_passes.fakes import on_gpu

aten = torch.ops.aten
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
LOOKUPS = (aten.index.Tensor, aten.index_select.default, aten.embedding.default)
VIEWS = (
    aten.view.default, aten._unsafe_view.default, aten.transpose.int, aten.permute.default,
    aten.unsqueeze.default, aten.squeeze.dim, aten.expand.default, aten.t.default,
    aten.clone.default,
)  # fmt: skip


def multiply_in_loops(module: fx.GraphModule) -> fx.GraphModule:
    """See the top of the file."""
    found = False
    for node in module.graph.find_nodes(op="call_function", target=aten.bmm.default):
        made = _written(node)
        if made is not None:
            made = as_it_lay(node, made)
            node.replace_all_uses_with(made)
            module.graph.erase_node(node)
            found = True
    if found:
        module.graph.eliminate_dead_code()
        module.recompile()
    return module


def _written(node: fx.Node) -> fx.Node | None:
    """What stands for a `bmm`; None where it stays."""
    left, right = node.args
    assert isinstance(left, fx.Node) and isinstance(right, fx.Node)
    facts = facts_of(left.meta["val"])
    (_, rows, terms), columns = facts.size, facts_of(right.meta["val"]).size[2]
    if not on_gpu(facts.device) or facts.dtype not in DTYPES:
        return None
    call = Calls(node)
    if is_one(terms):
        return call(aten.mul.Tensor, left, right)
    if is_one(rows) and _is_looked_up(right):
        left = call(aten.transpose.int, left, 1, 2)
        return summed(call, left, right, 1, facts.dtype)
    if is_one(columns) and _is_looked_up(left):
        right = call(aten.transpose.int, right, 1, 2)
        return summed(call, left, right, 2, facts.dtype)
    return None


def as_it_lay(node: fx.Node, made: fx.Node) -> fx.Node:
    """The result with the strides of a `bmm`: a product has those of what is multiplied."""
    strides = (facts_of(one.meta["val"]).stride for one in (node, made))
    before, now = (tuple(map(expression_of, stride)) for stride in strides)
    if before == now:
        return made
    return Calls(node).copy(made)


def is_one(extent: Any) -> bool:
    return type(extent) is int and extent == 1


def _is_looked_up(node: fx.Node) -> bool:
    """Whether a matrix is a row of a table, which an index into its first dimension selects."""
    while node.target in VIEWS:
        node = node.args[0]  # type: ignore[assignment]
    if node.target not in LOOKUPS:
        return False
    if node.target is aten.index_select.default:
        return bool(node.args[1] == 0)
    if node.target is aten.embedding.default:
        return True
    indices: Any = node.args[1]
    dtype = facts_of(indices[0].meta["val"]).dtype if indices[0] is not None else torch.bool
    return len(indices) == 1 and dtype not in (torch.bool, torch.uint8)


def summed(
    call: Calls, left: fx.Node, right: fx.Node, dim: int, dtype: torch.dtype
) -> fx.Node:
    """The sum of the products along a dimension, which stays with one element."""
    if dtype is not torch.float32:
        left, right = (call(aten._to_copy.default, operand, dtype=torch.float32)
                       for operand in (left, right))  # fmt: skip
    total = call(aten.sum.dim_IntList, call(aten.mul.Tensor, left, right), [dim], True)
    return total if dtype is torch.float32 else call(aten._to_copy.default, total, dtype=dtype)
