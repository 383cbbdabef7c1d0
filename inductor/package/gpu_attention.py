"""Attention in packages for a GPU: our own kernels, or GEMMs and a softmax.

In: a captured graph, in which `replace_attention` calls the operator `dynamo_jit::attention`, and a
step that calls it. Out: the launches that compute it.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx

from dynamo.aot.records import Unsupported
from inductor.ir.graph import ExternKernel, Layout, ViewRef
from inductor.kernels.attention_spec import HALF, MOST_HEAD, forward_choices, spec_of
from inductor.kernels.gpu.attention.plain import kernel_text
from inductor.operators.attention_ops import attention, attention_with_parts
from inductor.package.gpu_kernels import Function, Launch, Operand

SDPA = torch.nn.functional.scaled_dot_product_attention
Tensor = torch.Tensor
Maybe = Tensor | None


def replace_attention(gm: fx.GraphModule) -> None:
    """Calls of attention become calls of the functions below."""
    replacements = {
        SDPA: _attention, attention: _attention, attention_with_parts: _attention_with_parts,
    }  # fmt: skip
    for node in gm.graph.nodes:
        if node.op == "call_function" and node.target in replacements:
            node.target = replacements[node.target]
    gm.recompile()


def _attention_with_parts(parts: Any, *args: Any, **kwargs: Any) -> Tensor:
    """parts: what is known of the mask, which is not needed here."""
    return _attention(*args, **kwargs)


def _attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Maybe = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
    repeats: int = 1,
) -> Tensor:
    """`F.scaled_dot_product_attention`. repeats: as in `attention_ops.attention`."""
    if dropout_p:
        raise Unsupported("attention drops elements at random")
    size = 1.0 / math.sqrt(query.shape[-1]) if scale is None else float(scale)
    if not _has_kernel(query, key, value, attn_mask):
        many = query.shape[-3] // key.shape[-3] if query.dim() > 2 else 1
        return _by_matmuls(query, _repeated(key, many), _repeated(value, many), attn_mask,
                            is_causal, size)
    if attn_mask is not None:
        attn_mask = attn_mask[(None,) * (4 - attn_mask.dim())]
    is_mask = attn_mask is not None and attn_mask.dtype is torch.bool
    bias, mask = (None, attn_mask) if is_mask else (attn_mask, None)
    found: Tensor = torch.ops.dynamo_jit.attention(
        query, key, value, bias, mask, is_causal, size, 0, 0.0, False, False)[0]
    return found


def _has_kernel(q: Tensor, k: Tensor, v: Tensor, added: Maybe) -> bool:
    """Whether our kernel is for these tensors."""
    if q.dtype not in HALF or {k.dtype, v.dtype} != {q.dtype}:
        return False
    if any(tensor.dim() != 4 or 0 in tensor.shape for tensor in (q, k, v)):
        return False
    (batch, heads, queries, head), (_, kv_heads, keys, _) = q.shape, k.shape
    scores = (batch, heads, queries, keys)
    fits = added is None or (
        added.dtype in (torch.bool, torch.float32, q.dtype) and 1 <= added.dim() <= 4
        and all(n in (1, most) for n, most in zip(
            added.shape, scores[4 - added.dim():], strict=True)))
    return (
        fits and k.shape == (batch, kv_heads, keys, head) and v.shape[:3] == k.shape[:3]
        and heads % kv_heads == 0 and max(head, v.shape[3]) <= MOST_HEAD
    )  # fmt: skip


def _repeated(tensor: Tensor, many: int) -> Tensor:
    return tensor if many == 1 else tensor.repeat_interleave(many, -3)


def _by_matmuls(
    query: Tensor, key: Tensor, value: Tensor, added: Maybe, is_causal: bool, scale: float
) -> Tensor:
    """In float32 where the tensors are of half precision, as torch's own way of this kind."""
    dtype = query.dtype
    if dtype in HALF:
        query, key, value = query.float(), key.float(), value.float()
    scores = (query @ key.transpose(-1, -2)) * scale
    lowest = float("-inf")
    if is_causal:
        rows = torch.arange(query.shape[-2], device=query.device)[:, None]
        scores = scores.masked_fill(
            rows < torch.arange(key.shape[-2], device=query.device), lowest)
    if added is not None:
        seen = added.dtype is torch.bool
        scores = scores.masked_fill(~added, lowest) if seen else scores + added
    weights = torch.softmax(scores, -1)
    if added is not None or is_causal:  # a query that sees nothing gives zeros
        weights = weights.masked_fill((scores == lowest).all(-1, keepdim=True), 0.0)
    return (weights @ value).to(dtype)


def is_attention(call: ExternKernel) -> bool:
    """Whether a step calls our operator."""
    return call.target is torch.ops.dynamo_jit.attention.default


def attention_launch(call: ExternKernel, result: str, layout: Layout) -> Launch:
    """The launch that computes the first result, which lives in the buffer `result`. Errors:
    Unsupported."""
    q, k, v, bias, mask, *facts, lse, _ = call.values_by_argument()
    causal, scale, window, cap, nan_rows = facts
    assert isinstance(q, ViewRef) and not lse
    spec = spec_of(
        *(_shown(view) for view in (q, k, v)), _shown(bias), _shown(mask), causal=bool(causal),
        scale=float(scale), window=int(window), cap=float(cap), nan_rows=bool(nan_rows))  # type: ignore
    if tuple(layout.stride) != tuple(spec.out) or layout.offset:
        raise Unsupported("attention has a result of other strides")
    blocks = forward_choices(spec)[0]
    views = (q, k, v, q if bias is None else bias, q if mask is None else mask)
    operands = [Operand.of(view) for view in views if isinstance(view, ViewRef)]
    operands.append(Operand(result, 0, layout.dtype))
    operands.append(Operand(result, 0, torch.float32))  # where sums would be, which nothing wants
    constants = spec.constants() | {"ROWS": blocks.rows, "COLUMNS": blocks.columns}
    options = {"num_warps": blocks.warps, "num_stages": blocks.stages}
    function = Function.of(kernel_text(), "attention_forward", operands, constants, options)
    return Launch(function, spec.grid(blocks), tuple(operands))


def _shown(view: Any) -> Any:
    """A tensor without data with the metadata of a view."""
    if view is None:
        return None
    return torch.empty_strided(view.size, view.stride, dtype=view.dtype, device="meta")
