"""Attention and its gradients by ATen operators: the forms of the results, and their values.

What the operators `dynamo_jit::attention` and `dynamo_jit::attention_backward` are where no kernel
of our own computes them: on a CPU, for fakes, and where a kernel can't be compiled.
"""

from __future__ import annotations

import math

import torch

from inductor.kernels.attention_spec import Leaves, gradient_strides, result_stride

Tensor = torch.Tensor
Maybe = Tensor | None


def shape_of_attention(
    q: Tensor, k: Tensor, v: Tensor, bias: Maybe, mask: Maybe, causal: bool, scale: float,
    window: int, cap: float, nan_rows: bool, lse: bool, arrived: Maybe = None,
) -> tuple[Tensor, Tensor]:
    """Empty tensors of the forms of the results."""
    batch, heads, queries, _ = q.shape
    size = (batch, heads, queries, v.shape[3])
    out = torch.empty_strided(size, result_stride(q, v), dtype=q.dtype, device=q.device)
    sums = size[:3] if lse else (0,)
    return out, torch.empty(sums, dtype=torch.float32, device=q.device)


def scores_of(
    q: Tensor, k: Tensor, bias: Maybe, mask: Maybe, causal: bool, scale: float, window: int,
    cap: float,
) -> Tensor:
    """The scores that softmax gets, float32 at least."""
    wide = torch.promote_types(q.dtype, torch.float32)
    k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    score = q.to(wide) @ k.to(wide).transpose(2, 3) * scale
    if cap:
        score = cap * torch.tanh(score / cap)
    if bias is not None:
        score = score + bias
    if mask is not None:
        score = score.masked_fill(~mask, -math.inf)
    behind = torch.arange(q.shape[2], device=q.device)[:, None]
    behind = behind - torch.arange(k.shape[2], device=q.device)
    if causal:
        score = score.masked_fill(behind < 0, -math.inf)
    return score.masked_fill(behind >= window, -math.inf) if window else score


def reference_attention(
    q: Tensor, k: Tensor, v: Tensor, bias: Maybe, mask: Maybe, causal: bool, scale: float,
    window: int, cap: float, nan_rows: bool, lse: bool, arrived: Maybe = None,
) -> tuple[Tensor, Tensor]:
    """The operator, by ATen operators."""
    score = scores_of(q, k, bias, mask, causal, scale, window, cap)
    weight = torch.softmax(score, -1)
    sums = torch.logsumexp(score, -1)
    empty = torch.isneginf(sums)
    if not nan_rows:
        weight = weight.masked_fill(empty[..., None], 0.0)
    sums = sums.masked_fill(empty, math.inf)
    v = v.repeat_interleave(q.shape[1] // v.shape[1], 1)
    out, _ = shape_of_attention(
        q, k, v, bias, mask, causal, scale, window, cap, nan_rows, False
    )
    out.copy_(weight @ v.to(weight.dtype))
    return out, sums.float() if lse else sums.new_empty(0, dtype=torch.float32)


def empty_gradient(x: Tensor, leaf: bool) -> Tensor:
    """An empty tensor of the form of a gradient; see `gradient_strides`."""
    strides = gradient_strides(x.shape, x.stride(), leaf)
    return torch.empty_strided(x.shape, strides, dtype=x.dtype, device=x.device)


def shape_of_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, bias: Maybe, mask: Maybe, out: Tensor,
    lse: Tensor, causal: bool, scale: float, window: int, cap: float, nan_rows: bool,
    bias_grad: bool, leaves: Leaves,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Empty tensors of the forms of the gradients: of q, k, v and bias."""
    grads = [empty_gradient(x, leaf) for x, leaf in zip((q, k, v), leaves, strict=True)]
    if bias is not None and bias_grad:
        return *grads, torch.empty(bias.shape, dtype=bias.dtype, device=q.device)  # type: ignore
    return *grads, q.new_empty(0)  # type: ignore[return-value]


def reference_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, bias: Maybe, mask: Maybe, out: Tensor,
    lse: Tensor, causal: bool, scale: float, window: int, cap: float, nan_rows: bool,
    bias_grad: bool, leaves: Leaves,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients, by ATen operators."""
    given = shape_of_backward(
        grad, q, k, v, bias, mask, out, lse, causal, scale, window, cap, nan_rows, bias_grad,
        leaves,
    )
    raw = scores_of(q, k, None, None, False, scale, 0, 0.0)
    score = scores_of(q, k, bias, mask, causal, scale, window, cap)
    wide = score.dtype
    weight = torch.exp(score - lse[..., None])
    group = q.shape[1] // k.shape[1]
    each_k, each_v = k.repeat_interleave(group, 1).to(wide), v.repeat_interleave(group, 1).to(wide)
    grad = grad.to(wide)
    slope = weight * (grad @ each_v.transpose(2, 3) - (grad * out).sum(-1, keepdim=True))
    grads = [given[0], given[1], given[2]]
    if bias is not None and bias_grad:
        given[3].copy_(slope.sum_to_size(bias.shape))
    if cap:
        slope = slope * (1 - torch.tanh(raw / cap) ** 2)
    slope = slope * scale
    parts = (slope @ each_k, slope.transpose(2, 3) @ q.to(wide), weight.transpose(2, 3) @ grad)
    for result, part in zip(grads, parts, strict=True):
        heads = result.shape[1]
        result.copy_(part.unflatten(1, (heads, -1)).sum(2))
    return given
