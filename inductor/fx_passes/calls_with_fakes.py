"""New nodes with their fakes, for passes that put operations into a graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_leaves

from dynamo.aot.fakes import expression_of, facts_of, hint_of, is_fake
from inductor.fx_passes.fakes import fake_runner

aten = torch.ops.aten


def first_fake(node: fx.Node) -> Any:
    """A fake of a node or, where it has none (of results that are not wanted, say), of what it
    reads; None where that has none either."""
    values = (one.meta.get("val") for one in (node, *node.all_input_nodes))
    return next((leaf for value in values for leaf in tree_leaves(value) if is_fake(leaf)), None)


def is_row_major(fake: Any) -> bool:
    """Whether a contiguous copy has these strides, whatever symbolic sizes are."""
    facts, elements = facts_of(fake), 1
    for extent, step in zip(reversed(facts.size), reversed(facts.stride), strict=True):
        if not (type(extent) is int and extent == 1) and expression_of(step) != elements:
            return False
        elements *= expression_of(extent)
    return True


def order_in_memory(fake: Any) -> list[int]:
    """The axes from the outermost to the innermost."""
    steps = [hint_of(step) for step in facts_of(fake).stride]
    return sorted(range(len(steps)), key=lambda axis: -steps[axis])


class Calls:
    """Puts operations before a node: each has its fake, and the node's place in the program.

    before: the node that they stand before, where it is another one; with `node.next` they stand
    behind it, in the order in which they are made.

        >>> # call = Calls(node); node.replace_all_uses_with(call(aten.mul.Tensor, left, right))
    """

    def __init__(self, node: fx.Node, before: fx.Node | None = None) -> None:
        self.node = node
        self.before = node if before is None else before
        self.run = fake_runner(first_fake(node))

    def __call__(self, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        given, options = fx.map_arg((args, kwargs), lambda one: one.meta["val"])
        value = self.run(target, *given, **options)
        with self.before.graph.inserting_before(self.before):
            made = self.before.graph.call_function(target, args, kwargs)
        made.meta = {**self.node.meta, "val": value}
        return made

    def contiguous(self, node: fx.Node) -> fx.Node:
        """Row by row: the node itself, or a copy."""
        return node if node.meta["val"].is_contiguous() else self.copy(node)

    def copy(self, node: fx.Node) -> fx.Node:
        """Row by row."""
        return self(aten.clone.default, node, memory_format=torch.contiguous_format)

    def copy_in_order(self, node: fx.Node, order: Sequence[int]) -> fx.Node:
        """Dense, with the axes in this order in memory, from the outermost to the innermost."""
        dense = self.copy(self(aten.permute.default, node, [*order]))
        places = [order.index(axis) for axis in range(len(order))]
        return self(aten.permute.default, dense, places)

    def written(self, source: Any, size: Sequence[int], dtype: torch.dtype) -> fx.Node:
        """What a write of a source puts into a place of that size in a tensor of that dtype."""
        while source.target is aten.copy.default:  # what it is copied into is overwritten
            copied = source.args[1]
            if facts_of(copied.meta["val"]).device != facts_of(source.meta["val"]).device:
                break
            source = copied
        if facts_of(source.meta["val"]).dtype is not dtype:
            source = self(aten._to_copy.default, source, dtype=dtype)
        if [*facts_of(source.meta["val"]).size] != [*size]:
            source = self(aten.expand.default, source, [*size])
        return source  # type: ignore[no-any-return]

    def view(self, node: fx.Node, *size: Any) -> fx.Node:
        """The same elements, row by row, in other sizes."""
        return self(aten.view.default, self.contiguous(node), [*size])
