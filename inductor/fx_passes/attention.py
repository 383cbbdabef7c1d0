"""Attention of captured graphs: calls that a kernel of our own may serve.

In: a captured graph (torch-level calls). Out: the same graph (changed in place), where the target
of such a call is `inductor.attention_ops.attention`, which takes the same arguments and decides
while the graph is recorded. Our kernel's result has queries outside of heads; eager's has other
strides for some masks. So only calls are replaced whose readers all transpose it, or copy where
strides ask for it.
"""

from __future__ import annotations

import torch
from torch import fx

from inductor.attention_ops import attention
from inductor.fx_passes.attention_patterns import is_indifferent, serve_written_attention

SDPA = torch.nn.functional.scaled_dot_product_attention


def serve_attention(gm: fx.GraphModule) -> None:
    """See the top of the file."""
    changed = False
    for node in gm.graph.nodes:
        if node.op != "call_function" or node.target is not SDPA:
            continue
        if node.users and all(map(is_indifferent, node.users)):
            node.target = attention
            changed = True
    if changed:
        gm.recompile()
    serve_written_attention(gm)
