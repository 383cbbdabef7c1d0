"""Small tables that a program makes on the CPU of nothing but constants, and copies to its GPU.

In: a functional ATen graph with fakes. Out: the same graph (changed in place) where such a table is
made while compiling and lies on the GPU: the bits are those that the CPU computes. Before, each
call computed it with some calls of ATen and waited for a copy from memory that is not pinned, which
a CUDA graph can't hold either. Frequencies of a timestep's embedding are written like this in
public diffusion transformers: `torch.exp(-math.log(10000) * torch.arange(n) / n).to(t.device)`.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx

from dynamo.aot.fakes import facts_of, is_fake
from dynamo.graph_operators.operator_effects import FREE, freedom_of

aten = torch.ops.aten
MOST_ELEMENTS = 1 << 16  # chosen, not measured: they stay on the GPU as long as the program
UNWRITTEN = ("empty", "new_empty", "resize")  # whatever lies there


def hold_tables(module: fx.GraphModule) -> fx.GraphModule:
    """See the top of the file."""
    tables = _Tables(module)
    for node in module.graph.find_nodes(op="call_function", target=aten._to_copy.default):
        tables.hold(node)
    if tables.count:
        module.graph.eliminate_dead_code()
        module.recompile()
    return module


def bring_over(value: torch.Tensor, node: fx.Node) -> torch.Tensor:
    """What the copy gives."""
    return node.target(value, **node.kwargs)  # type: ignore[operator, no-any-return]


class _Tables:
    """known: values of nodes, None for what is not made of constants alone."""

    def __init__(self, module: fx.GraphModule) -> None:
        self.module = module
        self.known: dict[fx.Node, torch.Tensor | None] = {}
        self.count = 0

    def hold(self, node: fx.Node) -> None:
        """Replace a copy to the GPU by one of a table that lies there."""
        source: Any = node.args[0]
        fake = node.meta["val"]
        if facts_of(fake).device.type != "cuda" or not _is_small_table(source):
            return
        value = self._value(source)
        if value is None:
            return
        name = f"_table_{self.count}"
        self.count += 1
        setattr(self.module, name, bring_over(value, node))
        graph = self.module.graph
        with graph.inserting_before(node):
            table = graph.create_node("get_attr", name)
            table.meta["val"] = fake
            # A tensor of its own at each call: the caller may get it, and write into it.
            copy = graph.call_function(aten.clone.default, (table,))
        copy.meta = dict(node.meta)
        node.replace_all_uses_with(copy)

    def _value(self, node: fx.Node) -> torch.Tensor | None:
        if node not in self.known:
            self.known[node] = None
            if _is_small_table(node, 0):
                self.known[node] = self._made(node)
        return self.known[node]

    def _made(self, node: fx.Node) -> torch.Tensor | None:
        if node.op == "get_attr":
            return _literal(self.module, node)
        target = node.target
        if node.op != "call_function" or not isinstance(target, torch._ops.OpOverload):
            return None
        if freedom_of(target, node.args, node.kwargs) != FREE:
            return None
        if target._schema.name.split("::")[1].startswith(UNWRITTEN):
            return None
        given = {each: self._value(each) for each in node.all_input_nodes}
        if None in given.values():
            return None
        args, kwargs = fx.map_arg((node.args, node.kwargs), given.__getitem__)
        try:
            value = target(*args, **kwargs)
        except RuntimeError:
            return None  # it raises at each call, as in eager
        facts = facts_of(node.meta["val"])
        fits = type(value) is torch.Tensor and value.dtype is facts.dtype
        return value if fits and tuple(value.shape) == tuple(facts.size) else None


def _literal(module: fx.GraphModule, node: fx.Node) -> torch.Tensor | None:
    """What a program writes as `torch.tensor([..])`: nothing else reads that memory."""
    value = getattr(module, str(node.target), None)
    copied = all(user.target is aten.lift_fresh_copy.default for user in node.users)
    return value if copied and type(value) is torch.Tensor else None


def _is_small_table(node: Any, least_rank: int = 1) -> bool:
    fake = node.meta.get("val")
    if not is_fake(fake):
        return False
    facts = facts_of(fake)
    known = all(type(extent) is int for extent in facts.size)
    return known and facts.device.type == "cpu" and len(facts.size) >= least_rank and (
        math.prod(facts.size) <= MOST_ELEMENTS)
