"""What a graph computes of nothing but its own constants, while it is compiled.

In: a functional ATen graph with fakes. Out: `KnownValues.value_of(node)`: the tensor, on the CPU,
or None. Random numbers, uninitialized memory, and what raises are not known.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from dynamo.aot.fakes import facts_of, is_fake
from dynamo.aot.graphs import is_literal
from dynamo.graph_operators.operator_effects import FREE, freedom_of

UNWRITTEN = ("empty", "new_empty", "resize")  # whatever lies there
WHERE = ("device", "pin_memory", "layout")  # of arguments: where a tensor is made


class KnownValues:
    """takes: of which nodes values may be computed, by their facts (a node whose value is not known
    makes those unknown that read it)."""

    def __init__(self, module: fx.GraphModule, takes: Callable[[Any], bool]) -> None:
        self.module = module
        self.takes = takes
        self.known: dict[fx.Node, torch.Tensor | None] = {}

    def value_of(self, node: fx.Node) -> torch.Tensor | None:
        if node not in self.known:
            self.known[node] = None
            fake = node.meta.get("val")
            if is_fake(fake) and self.takes(facts_of(fake)):
                is_attribute = node.op == "get_attr"
                self.known[node] = self._literal(node) if is_attribute else self._made(node)
        return self.known[node]

    def _literal(self, node: fx.Node) -> torch.Tensor | None:
        """A constant of the program, as `torch.tensor([..])` makes it."""
        if not is_literal(node):
            return None
        held: Any = self.module
        for part in str(node.target).split("."):
            held = getattr(held, part)
        return held.cpu() if type(held) is torch.Tensor and not held.is_meta else None

    def _made(self, node: fx.Node) -> torch.Tensor | None:
        target = node.target
        if node.op != "call_function" or not isinstance(target, torch._ops.OpOverload):
            return None
        if freedom_of(target, node.args, node.kwargs) != FREE:
            return None
        if target._schema.name.split("::")[1].startswith(UNWRITTEN):
            return None
        given = {each: self.value_of(each) for each in node.all_input_nodes}
        if any(value is None for value in given.values()):
            return None
        args, kwargs = fx.map_arg((node.args, node.kwargs), given.__getitem__)
        try:
            value = target(*args, **{k: v for k, v in kwargs.items() if k not in WHERE})
        except (RuntimeError, IndexError):
            return None  # it is the program's error, which ATen raises when it is called
        facts = facts_of(node.meta["val"])
        fits = type(value) is torch.Tensor and value.dtype is facts.dtype
        return value if fits and tuple(value.shape) == tuple(facts.size) else None
