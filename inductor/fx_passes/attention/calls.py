"""Attention of captured graphs: calls that a kernel of our own may serve.

In: a captured graph (torch-level calls). Out: the same graph (changed in place), where the target
of such a call is `inductor.operators.attention_ops.attention`, which takes the same arguments and
decides while the graph is recorded. Where something is known of its mask (`masks.py`), it is
`attention_with_parts`, which gets that, too; where heads of keys are repeated for those of queries
(`repeated_heads.py`), it gets them as they were. Our kernel's result has queries outside of heads;
eager's has other strides for some masks. So only calls are replaced whose readers all transpose
it, or copy where strides ask for it. Of flex attention the target becomes one that knows its
kernels.
"""

from __future__ import annotations

import torch
from torch import fx

from dynamo.graph_operators.flex_calls import FlexCall
from inductor.config import config, is_enabled
from inductor.fx_passes.attention.masks import parts_of
from inductor.fx_passes.attention.patterns import is_indifferent, replace_written_attention
from inductor.fx_passes.attention.repeated_heads import before_repeats
from inductor.operators.attention_ops import attention, attention_with_parts, has_triton
from inductor.operators.flex_ops import choose_flex

SDPA = torch.nn.functional.scaled_dot_product_attention


def replace_attention(gm: fx.GraphModule) -> None:
    """See the top of the file."""
    has_kernels = is_enabled("attention") and config.kernels and has_triton()
    changed = replace_flex(gm) if has_kernels else False
    for node in gm.graph.nodes:
        if node.op != "call_function" or node.target is not SDPA:
            continue
        if node.users and all(map(is_indifferent, node.users)):
            node.target = attention
            _mark_repeats(node)
            _mark_parts(node)
            changed = True
    if changed:
        gm.recompile()
    replace_written_attention(gm)


def _mark_repeats(node: fx.Node) -> None:
    """Give a call the heads of keys and values as they were before the program repeated them."""
    found = before_repeats(node)
    if found is not None:
        keys, values, repeats = found
        node.args = (node.args[0], keys, values, *node.args[3:])
        node.kwargs = {**node.kwargs, "repeats": repeats}


def _mark_parts(node: fx.Node) -> None:
    """Tell a call what its mask says."""
    mask = node.args[3] if len(node.args) > 3 else node.kwargs.get("attn_mask")
    parts = parts_of(mask, node) if isinstance(mask, fx.Node) else None
    if parts is not None:
        node.target = attention_with_parts
        node.args = ((parts.rest, parts.causal, parts.window), *node.args)


def replace_flex(gm: fx.GraphModule) -> bool:
    """Replaces flex attention that our kernels may serve; whether there was any."""
    changed = False
    nodes = [node for node in gm.graph.nodes if isinstance(node.target, FlexCall)]
    autocasts = torch.is_autocast_enabled("cuda") or any(
        node.target is torch.set_autocast_enabled for node in gm.graph.nodes
    )
    for node in nodes:
        given = [item.meta["example_value"] if isinstance(item, fx.Node) else item
                 for item in node.args]
        target = choose_flex(node.target, given, autocasts)
        if target is not None:
            node.target, changed = target, True
    return changed
