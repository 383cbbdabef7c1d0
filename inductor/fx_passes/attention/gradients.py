"""Gradients of attention that lie as its results do.

In: a functional ATen graph with fakes. Out: the same graph (changed in place), where the gradient
that cuDNN's backward of attention reads has the strides of the result. Up to torch 2.14, plans of
cuDNN are kept by the strides of query, key and value, but not by those of the result and of its
gradient (MHA.cpp). So a plan for one gradient reads another one by wrong strides, far beyond it:
where one block of a diffusion transformer joins attention with an MLP, of which the gradient is a
part of a wider tensor, and another one does not, training ended with an illegal access.

Results lie as queries do, so that here one plan fits. Eager's plans may be such wrong ones, so that
ours get a key of their own: a probability of dropout that is minus zero.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from dynamo.aot.fakes import expression_of, facts_of
from inductor.fx_passes.calls_with_fakes import Calls, order_in_memory

aten = torch.ops.aten
DROPOUT = 13  # the position of its probability


def lay_gradients_as_results(module: fx.GraphModule) -> fx.GraphModule:
    """See the top of the file."""
    target = aten._scaled_dot_product_cudnn_attention_backward.default
    changed = False
    for node in module.graph.find_nodes(op="call_function", target=target):
        gradient, result = node.args[0], node.args[4]
        if node.args[DROPOUT] == 0.0:
            node.update_arg(DROPOUT, -0.0)
        if not _lie_alike(gradient.meta["val"], result.meta["val"]):
            order = order_in_memory(result.meta["val"])
            node.update_arg(0, Calls(gradient, node).copy_in_order(gradient, order))
            changed = True
    if changed:
        module.recompile()
    return module


def _lie_alike(one: Any, other: Any) -> bool:
    """Whether strides are the same, but for those along single elements."""
    size = facts_of(one).size
    steps = zip(size, facts_of(one).stride, facts_of(other).stride, strict=True)
    return all(
        type(extent) is int and extent == 1 or expression_of(a) == expression_of(b)
        for extent, a, b in steps)
