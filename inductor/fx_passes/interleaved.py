"""Tensors of which each second element is written from one tensor and the others from another.

In: a functional ATen graph with fakes. Out: the same graph (changed in place) where writes into
`x[..., 0::2]` and `x[..., 1::2]` that leave nothing of `x` (or 0::3, 1::3 and 2::3, ..) are one
tensor whose elements alternate, which a kernel computes at once. Rotary embeddings are written so:
as writes in place each was a kernel that stored every second element (32 us for 6 million elements
in bfloat16 on an H200, twice, and zeros before that; 7 us together).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from dynamo.aot.fakes import facts_of, is_fake
from inductor.fx_passes.fakes import fake_runner

aten = torch.ops.aten
WRITE = aten.slice_scatter.default
MOST_PARTS = 8  # whose loads a kernel has side by side (chosen, not measured)


def interleave_writes(module: fx.GraphModule) -> fx.GraphModule:
    """See the top of the file."""
    changed = False
    for node in [*module.graph.find_nodes(op="call_function", target=WRITE)][::-1]:
        parts = _parts_of(node) if node.users else None
        if parts is not None:
            _replace(module.graph, node, parts)
            changed = True
    if changed:
        module.graph.eliminate_dead_code()
        module.recompile()
    return module


def _parts_of(node: fx.Node) -> list[fx.Node] | None:
    """What alternates in the result, in order; None where something else is left of it."""
    dim, _, count = _place_of(node)
    value = node.meta.get("val")
    if not is_fake(value) or not 1 < count <= MOST_PARTS or not _is_dense(value):
        return None
    found: dict[int, fx.Node] = {}
    one: Any = node
    while isinstance(one, fx.Node) and one.target is WRITE and _place_of(one)[::2] == (dim, count):
        begin = _place_of(one)[1]
        if begin is None or not isinstance(source := one.args[1], fx.Node):
            return None
        found.setdefault(begin, source)
        if len(found) == count:
            return [found[n] for n in range(count)]
        one = one.args[0]
    return None


def _place_of(node: fx.Node) -> tuple[int, int | None, int]:
    """Dimension, first index and step of a write; no first index where it does not go to the end,
    or the parts are not of one length."""
    given: list[Any] = [*node.args[2:]]
    dim, begin, end, step = given + [0, None, None, 1][len(given) :]
    size = facts_of(node.meta["val"]).size
    known = [n for n in (dim, begin or 0, step) if type(n) is int]
    if node.kwargs or len(known) != 3 or type(size[known[0]]) is not int:
        return 0, None, 1
    axis, first, each = known[0] % len(size), known[1], known[2]
    whole = end is None or type(end) is int and end >= size[axis]
    fits = whole and 0 <= first < each and size[axis] % each == 0
    return axis, first if fits else None, each


def _is_dense(value: Any) -> bool:
    """Whether elements lie in the order of the indices."""
    facts, elements = facts_of(value), 1
    for extent, step in zip(reversed(facts.size), reversed(facts.stride), strict=True):
        if type(extent) is not int or type(step) is not int or extent != 1 and step != elements:
            return False
        elements *= extent
    return True


def _replace(graph: fx.Graph, node: fx.Node, parts: list[fx.Node]) -> None:
    value = node.meta["val"]
    facts, run = facts_of(value), fake_runner(value)
    dim = _place_of(node)[0]
    of_part = [*facts.size]
    of_part[dim] //= len(parts)

    def call(target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        made = graph.call_function(target, args, kwargs)
        fakes = fx.map_arg(args, lambda given: given.meta["val"])
        made.meta = {**node.meta, "val": run(target, *fakes, **kwargs)}
        return made

    with graph.inserting_before(node):
        wide = []
        for part in parts:
            source: Any = part
            while source.target is aten.copy.default:  # what it is copied into is overwritten
                source = source.args[1]
            if facts_of(source.meta["val"]).dtype is not facts.dtype:
                source = call(aten._to_copy.default, source, dtype=facts.dtype)
            if [*facts_of(source.meta["val"]).size] != of_part:
                source = call(aten.expand.default, source, of_part)
            wide.append(call(aten.unsqueeze.default, source, dim + 1))
        together = call(aten.cat.default, wide, dim + 1)
        total = call(aten.view.default, together, [*facts.size])
    node.replace_all_uses_with(total)
    graph.erase_node(node)
