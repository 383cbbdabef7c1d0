"""The order of GEMMs whose results only leave the graph: late, where that holds less memory.

In: a functional ATen graph with fakes, of a GPU. Out: the graph, changed in place. A GEMM that
gives the gradient of a large weight from few rows holds more than it lets go; nothing reads it
before the end, so it is computed there. What writes into a tensor keeps its place, and then so
does everything else.
"""

from __future__ import annotations

import torch
from torch import fx

from dynamo.aot.fakes import bytes_of, is_fake
from dynamo.aot.joint import viewed

aten = torch.ops.aten
GEMMS = (aten.mm.default, aten.bmm.default, aten.addmm.default)


def large_results_last(module: fx.GraphModule) -> fx.GraphModule:
    """See the top of the file."""
    nodes = list(module.graph.nodes)
    targets = {node.target for node in nodes if node.target in GEMMS}
    if not targets or _device(nodes) == "cpu" or any(map(_writes, nodes)):
        return module
    late = [node for node in nodes if node.target in GEMMS and _only_leaves(node)]
    gains = {node: bytes_of(node.meta["val"]) - _held(node) for node in late}
    end = nodes[-1]
    for node in sorted((n for n in late if gains[n] > 0), key=gains.__getitem__):
        for moved in (node, *_views(node)):
            end.prepend(moved)
    return module


def _device(nodes: list[fx.Node]) -> str:
    fakes = [node.meta["val"] for node in nodes if is_fake(node.meta.get("val"))]
    return str(fakes[0].device.type) if fakes else "cpu"


def _writes(node: fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return bool(schema is not None and schema.is_mutable)


def _views(node: fx.Node) -> list[fx.Node]:
    """What shows the node's result, in order."""
    found = []
    for user in node.users:
        if user.op != "output":
            found += [user, *_views(user)]
    return found


def _only_leaves(node: fx.Node) -> bool:
    """Whether nothing but the end of the graph reads it, but for views."""
    return all(
        user.op == "output" or viewed(user) is not None and _only_leaves(user)
        for user in node.users
    )


def _held(node: fx.Node) -> int:
    """Bytes of what it reads: they are alive until it has run."""
    roots = set()
    for given in node.all_input_nodes:
        base = viewed(given)
        while base is not None:
            given, base = base, viewed(base)
        roots.add(given)
    return sum(bytes_of(root.meta["val"]) for root in roots if is_fake(root.meta.get("val")))
