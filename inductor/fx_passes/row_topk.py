"""`topk` along rows on a GPU is by kernels of our own where the rows are short (experts of tokens,
candidates of beams), or few and long (logits of a vocabulary).

In: a functional ATen graph of known sizes, with fakes. Out: the same graph (changed in place) with
`dynamo_jit::topk_of_rows` in the place of `aten.topk` where that has a kernel.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx

import inductor.operators.topk_ops  # noqa: F401  (defines the operator)
from dynamo.aot.fakes import facts_of
from inductor.kernels.gpu import long_topk, topk

aten = torch.ops.aten


def take_from_rows(module: fx.GraphModule) -> fx.GraphModule:
    """See the top of the file."""
    found = False
    for node in module.graph.find_nodes(op="call_function", target=aten.topk.default):
        x, k, dim, largest, ordered = _arguments(node)
        if _has_kernel(x, k, dim):
            node.target = torch.ops.dynamo_jit.topk_of_rows.default
            node.args, node.kwargs = (x, k, largest, ordered), {}
            found = True
    if found:
        module.recompile()
    return module


def _arguments(node: fx.Node) -> tuple[Any, ...]:
    names = ("x", "k", "dim", "largest", "sorted")
    defaults = {"dim": -1, "largest": True, "sorted": True}
    given = defaults | dict(zip(names, node.args, strict=False)) | node.kwargs
    given.setdefault("x", given.get("self"))
    return tuple(given[name] for name in names)


def _has_kernel(x: fx.Node, k: Any, dim: int) -> bool:
    facts = facts_of(x.meta["val"])
    if not on_gpu(facts.device) or not facts.size or type(k) is not int:
        return False
    if any(type(extent) is not int or extent == 0 for extent in facts.size):
        return False
    if dim % len(facts.size) != len(facts.size) - 1:
        return False
    *outer, size = facts.size
    return (
        topk.has_kernel(size, k, facts.dtype)
        or long_topk.has_kernels(math.prod(outer), size, k, facts.dtype)
    )  # fmt: skip


def on_gpu(device: torch.device) -> bool:
    """Whether it is one of NVIDIA's: what eager does with equal values is known of these."""
    return device.type == "cuda" and torch.version.hip is None
