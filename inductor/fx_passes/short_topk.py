"""`topk` along short rows on a GPU is a kernel of our own: experts of tokens, candidates of beams.

In: a functional ATen graph of known sizes, with fakes. Out: the same graph (changed in place) with
`dynamo_jit::topk_of_rows` in the place of `aten.topk` where that has a kernel.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

import inductor.operators.topk_ops  # noqa: F401  (defines the operator)
from dynamo.aot.fakes import facts_of
from inductor.kernels.gpu.topk import DTYPES, MOST_COLUMNS, MOST_TAKEN

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
    if not on_gpu(facts.device) or facts.dtype not in DTYPES or not facts.size:
        return False
    if any(type(extent) is not int or extent == 0 for extent in facts.size):
        return False
    last = dim % len(facts.size) == len(facts.size) - 1
    size = facts.size[-1]
    return last and type(k) is int and 0 < k <= min(MOST_TAKEN, size) and size <= MOST_COLUMNS


def on_gpu(device: torch.device) -> bool:
    """Whether it is one of NVIDIA's: what eager does with equal values is known of these."""
    return device.type == "cuda" and torch.version.hip is None
