"""ATen's flash attention on a CPU, by a kernel of our own where that is faster.

In: a functional ATen graph with fakes in `meta["val"]`. Out: the same graph (changed in place),
where such calls are `dynamo_jit::cpu_attention`, with the strides of ATen's results. Keys and
values that the program repeats for each head of a group are read as they were before. Calls whose
log-sum-exp is wanted (for gradients) stay. Results that are only copied with queries outside of
heads are written so at once.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import torch
from torch import fx

from inductor.autotune.attention_choice import FLASH, is_faster
from inductor.kernels.attention_spec import dense_heads
from inductor.operators.cpu_attention_ops import OPERATOR, fits, has_unit

aten = torch.ops.aten
TURNS = (aten.transpose.int, aten.permute.default)
RESHAPES = (aten.view.default, aten._unsafe_view.default, aten.reshape.default)


def replace_cpu_attention(module: fx.GraphModule) -> fx.GraphModule:
    """See the top of the file."""
    changed = False
    for node in list(module.graph.nodes):
        if node.op == "call_function" and node.target is FLASH:
            changed |= _replace(module.graph, node)
    for node in list(module.graph.nodes):
        if node.op == "call_function" and node.target is OPERATOR:
            changed |= _turn(module.graph, node)
    if changed:
        module.graph.eliminate_dead_code()
        module.recompile()
    return module


def _replace(graph: fx.Graph, node: fx.Node) -> bool:
    parts = list(node.users)
    if any(part.target is not operator.getitem or part.args[1] != 0 for part in parts):
        return False
    found = _arguments(node)
    if found is None:
        return False
    with graph.inserting_before(node):
        made = graph.call_function(OPERATOR, found)
    made.meta.update(node.meta)
    made.meta["val"] = node.meta["val"][0]
    for part in parts:
        part.replace_all_uses_with(made)
        graph.erase_node(part)
    graph.erase_node(node)
    return True


def _turn(graph: fx.Graph, node: fx.Node) -> bool:
    """Write a result as its only reader copies it."""
    turned = _only_user(node)
    copied = None if turned is None else _only_user(turned)
    if turned is None or copied is None or copied.target is not aten.clone.default:
        return False
    if copied.kwargs.get("memory_format") is not torch.contiguous_format:
        return False
    is_turn = turned.target in TURNS and tuple(turned.args[1:]) in (([0, 2, 1, 3],), (1, 2), (2, 1))
    if not is_turn or not _value(copied).is_contiguous():
        return False
    stride = dense_heads(*_value(node).shape)
    node.args = (*node.args[:-1], list(stride))
    node.meta["val"] = _value(node).new_empty_strided(_value(node).shape, stride)
    turned.meta["val"] = _value(copied)
    copied.replace_all_uses_with(turned)
    graph.erase_node(copied)
    return True


def _only_user(node: fx.Node) -> fx.Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


def _arguments(node: fx.Node) -> tuple[Any, ...] | None:
    """The operator's arguments, where it computes the same, faster."""
    q, k, v = node.args[:3]
    dropout = node.args[3] if len(node.args) > 3 else 0.0
    causal = node.args[4] if len(node.args) > 4 else False
    bias, scale = node.kwargs.get("attn_mask"), node.kwargs.get("scale")
    if not all(isinstance(x, fx.Node) for x in (q, k, v)) or dropout != 0.0:
        return None
    heads = int(_value(q).shape[1])
    k, v = _unrepeated(k, heads), _unrepeated(v, heads)
    if _value(k).shape[1] != _value(v).shape[1]:
        k, v = node.args[1:3]
    if scale is None:
        scale = 1.0 / math.sqrt(_value(q).shape[3])
    out = node.meta["val"][0]
    values = _value(q), _value(k), _value(v)
    added = None if bias is None else _value(bias)
    if not (isinstance(scale, (int, float)) and scale > 0 and has_unit(out)):
        return None
    if not fits(*values, added, None) or not is_faster(*values, added, bool(causal)):
        return None
    return (q, k, v, bias, None, causal, float(scale), 0, 0.0, False, False, list(out.stride()))


def _value(node: Any) -> torch.Tensor:
    value: torch.Tensor = node.meta["val"]
    return value


def _unrepeated(node: Any, heads: int) -> Any:
    """The x of reshape(clone(expand(x[:, :, None]))), which has each head as often as it takes."""
    at = node
    if at.target not in RESHAPES or _value(at).dim() != 4 or _value(at).shape[1] != heads:
        return node
    whole = tuple(_value(at).shape)
    at = at.args[0]
    if at.target is aten.clone.default:
        at = at.args[0]
    if at.target is not aten.expand.default:
        return node
    wide = _value(at)
    at = at.args[0]
    if at.target is not aten.unsqueeze.default or at.args[1] not in (2, -3):
        return node
    source = _value(at.args[0])
    if source.dim() != 4 or wide.dim() != 5:
        return node
    batch, kv_heads, length, head = source.shape
    same = tuple(wide.shape) == (batch, kv_heads, heads // kv_heads, length, head)
    return at.args[0] if same and whole == (batch, heads, length, head) else node
