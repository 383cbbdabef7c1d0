"""Tensors that are filled part by part.

In: a functional ATen graph with fakes. Out: the same graph (changed in place) where writes into
`x[:n]`, `x[n:m]`, `x[m:]`, which leave nothing of `x`, are one tensor joined of what was written:
codes of few bits are unpacked into an empty tensor so. Each write would be a condition for each
element of all that was written before, and of `x`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from dynamo.aot.fakes import facts_of, is_fake
from inductor.fx_passes.calls_with_fakes import Calls, is_row_major

aten = torch.ops.aten
WRITE = aten.slice_scatter.default
Part = tuple[int, int, fx.Node]  # from, up to, what is written there


def join_filled_parts(module: fx.GraphModule) -> fx.GraphModule:
    """See the top of the file."""
    found = False
    for node in reversed(module.graph.find_nodes(op="call_function", target=WRITE)):
        parts = _parts_of(node) if node.users else None
        if parts is None:
            continue
        facts, call, dim = facts_of(node.meta["val"]), Calls(node), _dim_of(node)
        before, behind = facts.size[:dim], facts.size[dim + 1 :]
        sources = [
            call.written(source, [*before, end - start, *behind], facts.dtype)
            for start, end, source in parts
        ]
        joined, found = call(aten.cat.default, sources, dim), True
        if facts_of(joined.meta["val"]).stride == facts.stride:  # else what is new is dead
            node.replace_all_uses_with(joined)
            module.graph.erase_node(node)
    if found:
        module.graph.eliminate_dead_code()
        module.recompile()
    return module


def _dim_of(node: fx.Node) -> int:
    dim: Any = node.args[2] if len(node.args) > 2 else 0
    return int(dim) % len(facts_of(node.meta["val"]).size)


def _parts_of(node: fx.Node) -> list[Part] | None:
    """What lies where in the result, in order; None where something of the tensor is left, where
    writes overlap, or where a tensor that is not full yet is wanted itself."""
    value = node.meta.get("val")
    if not is_fake(value) or not is_row_major(value) or 0 in facts_of(value).size:
        return None
    dim = _dim_of(node)
    extent = facts_of(value).size[dim]
    found: list[Part] = []
    one: Any = node
    while type(extent) is int and sum(end - start for start, end, _ in found) < extent:
        if not isinstance(one, fx.Node) or one.target is not WRITE or one.kwargs:
            return None
        if one is not node and len(one.users) - _overwritten(one) != 1 or _dim_of(one) != dim:
            return None
        part = _part_of(one, extent)
        if part is None or any(part[0] < end and start < part[1] for start, end, _ in found):
            return None
        found.append(part)
        one = one.args[0]
    return sorted(found, key=lambda part: part[0]) if len(found) > 1 else None


def _overwritten(node: fx.Node) -> int:
    """How many users are parts that are only copied into, of which nothing but the size is wanted.
    """
    return sum(
        user.target is aten.slice.Tensor and all(
            copy.target is aten.copy.default and copy.args[1] is not user for copy in user.users)
        for user in node.users)


def _part_of(node: fx.Node, extent: int) -> Part | None:
    given: list[Any] = [*node.args[1:]]
    source, _, start, end, step = given + [None, 0, None, None, 1][len(given) :]
    start, end = 0 if start is None else start, extent if end is None else end
    if not isinstance(source, fx.Node) or step != 1 or not type(start) is type(end) is int:
        return None
    start, end = (min(n + extent if n < 0 else n, extent) for n in (start, end))
    return (start, end, source) if 0 <= start < end else None
