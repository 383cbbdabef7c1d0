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
from inductor.fx_passes.known_values import KnownValues

aten = torch.ops.aten
MOST_ELEMENTS = 1 << 16  # chosen, not measured: they stay on the GPU as long as the program


def hold_tables(module: fx.GraphModule) -> fx.GraphModule:
    """See the top of the file."""
    known, count = KnownValues(module, _is_small), 0
    for node in module.graph.find_nodes(op="call_function", target=aten._to_copy.default):
        source: Any = node.args[0]
        if not facts_of(node.meta["val"]).device.type == "cuda" or not _is_table(source):
            continue
        value = known.value_of(source)
        if value is not None:
            _hold(module, node, f"_table_{count}", bring_over(value, node))
            count += 1
    if count:
        module.graph.eliminate_dead_code()
        module.recompile()
    return module


def bring_over(value: torch.Tensor, node: fx.Node) -> torch.Tensor:
    """What the copy gives."""
    return node.target(value, **node.kwargs)  # type: ignore[operator, no-any-return]


def _hold(module: fx.GraphModule, node: fx.Node, name: str, value: torch.Tensor) -> None:
    """Replace a copy to the GPU by one of a table that lies there."""
    setattr(module, name, value)
    with module.graph.inserting_before(node):
        table = module.graph.create_node("get_attr", name)
        table.meta["val"] = node.meta["val"]
        # A tensor of its own at each call: the caller may get it, and write into it.
        copy = module.graph.call_function(aten.clone.default, (table,))
    copy.meta = dict(node.meta)
    node.replace_all_uses_with(copy)


def _is_small(facts: Any) -> bool:
    """Whether it is on the CPU, where its bits are made."""
    known = all(type(extent) is int for extent in facts.size)
    return known and facts.device.type == "cpu" and math.prod(facts.size) <= MOST_ELEMENTS


def _is_table(node: fx.Node) -> bool:
    """Numbers are what other passes know."""
    fake = node.meta.get("val")
    return is_fake(fake) and len(facts_of(fake).size) > 0
