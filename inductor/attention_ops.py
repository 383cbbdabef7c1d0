"""Attention as an operator: what graphs hold where a kernel of our own computes it.

`dynamo_jit::attention(q, k, v, bias, mask, causal, scale, window, cap, nan_rows, lse)` gives
softmax(cap(q k^T * scale) + bias, masked) v for tensors (batch, heads, length, head), and the
log-sum-exps of the scores, if `lse` asks for them (else an empty tensor). There may be fewer heads
of keys and values. bias, mask: tensors of four axes that broadcast to the scores; where mask is
False, a query does not see a key. causal: nor later keys. window: nor keys of that distance behind
or more; 0: all. cap: scores are cap * tanh(score / cap); 0: as they are. nan_rows: a query that
sees nothing gives NaN, else zeros. It has a derivative.

`attention` is what takes the place of `F.scaled_dot_product_attention` in captured graphs: it is
called while they are recorded, and decides by the metadata of its arguments alone.
"""

from __future__ import annotations

import functools
import importlib.util
import math
from typing import Any

import torch

from inductor.codegen.attention.spec import HALF, MOST_HEAD, dense_heads, result_stride
from inductor.runtime.attention import AttentionBackwardCall, AttentionCall

Tensor = torch.Tensor
Maybe = Tensor | None
sdpa = torch.nn.functional.scaled_dot_product_attention

LIBRARY = torch.library.Library("dynamo_jit", "FRAGMENT")
FACTS = "bool causal, float scale, int window, float cap, bool nan_rows"
LIBRARY.define(
    f"attention(Tensor q, Tensor k, Tensor v, Tensor? bias, Tensor? mask, {FACTS}, bool lse)"
    " -> (Tensor, Tensor)"
)
LIBRARY.define(
    "attention_backward(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor? bias, Tensor? mask,"
    f" Tensor out, Tensor lse, {FACTS}, bool bias_grad) -> (Tensor, Tensor, Tensor, Tensor)"
)


def shape_of_attention(
    q: Tensor, k: Tensor, v: Tensor, bias: Maybe, mask: Maybe, causal: bool, scale: float,
    window: int, cap: float, nan_rows: bool, lse: bool,
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
    window: int, cap: float, nan_rows: bool, lse: bool,
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


def shape_of_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, bias: Maybe, mask: Maybe, out: Tensor,
    lse: Tensor, causal: bool, scale: float, window: int, cap: float, nan_rows: bool,
    bias_grad: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Empty tensors of the forms of the gradients: of q, k, v and bias, strides of q, k, v."""
    grads = [
        torch.empty_strided(x.shape, dense_heads(*x.shape), dtype=x.dtype, device=x.device)
        for x in (q, k, v)
    ]
    if bias is not None and bias_grad:
        return *grads, torch.empty(bias.shape, dtype=bias.dtype, device=q.device)  # type: ignore
    return *grads, q.new_empty(0)  # type: ignore[return-value]


def reference_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, bias: Maybe, mask: Maybe, out: Tensor,
    lse: Tensor, causal: bool, scale: float, window: int, cap: float, nan_rows: bool,
    bias_grad: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients, by ATen operators."""
    given = shape_of_backward(
        grad, q, k, v, bias, mask, out, lse, causal, scale, window, cap, nan_rows, bias_grad
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


@functools.cache
def _kernels() -> tuple[AttentionCall, AttentionBackwardCall]:
    return AttentionCall(), AttentionBackwardCall()


def _by_kernels(*args: Any) -> tuple[Tensor, Tensor]:
    return _kernels()[0](*args)


def _backward_by_kernels(*args: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return _kernels()[1](*args)


class _Attention(torch.autograd.Function):
    """The derivative of the operator."""

    @staticmethod
    def forward(ctx: Any, *args: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            out, lse = torch.ops.dynamo_jit.attention(*args[:-1], True)
        ctx.facts = args[5:10]
        ctx.save_for_backward(*args[:5], out, lse)
        ctx.mark_non_differentiable(lse)
        return out, lse

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        q, k, v, bias, mask, out, lse = ctx.saved_tensors
        bias_grad = bias is not None and ctx.needs_input_grad[3]
        dq, dk, dv, db = torch.ops.dynamo_jit.attention_backward(
            grads[0], q, k, v, bias, mask, out, lse, *ctx.facts, bias_grad
        )
        return dq, dk, dv, db if bias_grad else None, *[None] * 7


def _with_derivative(*args: Any) -> Any:
    if torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in args):
        return _Attention.apply(*args)
    with torch._C._AutoDispatchBelowAutograd():
        return torch.ops.dynamo_jit.attention(*args)


def _without_derivative(*args: Any) -> Any:
    with torch._C._AutoDispatchBelowAutograd():
        return torch.ops.dynamo_jit.attention_backward(*args)


LIBRARY.impl("attention", shape_of_attention, "Meta")
LIBRARY.impl("attention", reference_attention, "CPU")
LIBRARY.impl("attention", _by_kernels, "CUDA")
LIBRARY.impl("attention", _with_derivative, "Autograd")
LIBRARY.impl("attention_backward", shape_of_backward, "Meta")
LIBRARY.impl("attention_backward", reference_backward, "CPU")
LIBRARY.impl("attention_backward", _backward_by_kernels, "CUDA")
LIBRARY.impl("attention_backward", _without_derivative, "Autograd")


def attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Maybe = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:
    """`F.scaled_dot_product_attention`, by our kernel where it is for these tensors."""
    tensors = (query, key, value) if attn_mask is None else (query, key, value, attn_mask)
    wanted = dropout_p == 0.0 and all_backends_allowed() and has_kernel(*tensors)
    fits = wanted and (query.shape[1] == key.shape[1] or enable_gqa)
    if not fits or is_causal and attn_mask is not None or scale is not None and scale <= 0:
        return sdpa(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    if attn_mask is not None:
        attn_mask = attn_mask[(None,) * (4 - attn_mask.dim())]
    is_mask = attn_mask is not None and attn_mask.dtype is torch.bool
    bias, mask = (None, attn_mask) if is_mask else (attn_mask, None)
    size = 1.0 / math.sqrt(query.shape[3]) if scale is None else float(scale)
    result: Tensor = torch.ops.dynamo_jit.attention(
        query, key, value, bias, mask, is_causal, size, 0, 0.0, False, False
    )[0]
    return result


def all_backends_allowed() -> bool:
    """False where the program has chosen how torch computes attention."""
    backends = torch.backends.cuda
    return (
        backends.flash_sdp_enabled() and backends.mem_efficient_sdp_enabled()
        and backends.math_sdp_enabled() and not torch.is_autocast_enabled("cuda")
    )  # fmt: skip


@functools.cache
def has_triton() -> bool:
    """Whether kernels can be made here."""
    return importlib.util.find_spec("triton") is not None


def has_kernel(q: Tensor, k: Tensor, v: Tensor, added: Maybe = None) -> bool:
    """Whether there is a kernel for these tensors; added: bias or mask."""
    tensors = (q, k, v) if added is None else (q, k, v, added)
    if not has_triton() or any(tensor.device.type != "cuda" for tensor in tensors):
        return False
    if q.dtype not in HALF or k.dtype is not q.dtype or v.dtype is not q.dtype:
        return False
    if any(type(n) is not int for tensor in tensors for n in tensor.shape):
        return False
    if any(tensor.dim() != 4 or 0 in tensor.shape for tensor in (q, k, v)):
        return False
    (batch, heads, queries, head), (_, kv_heads, keys, _) = q.shape, k.shape
    fits = (
        k.shape == (batch, kv_heads, keys, head) and v.shape[:3] == k.shape[:3]
        and heads % kv_heads == 0 and max(head, v.shape[3]) <= MOST_HEAD
    )  # fmt: skip
    return fits and (added is None or _fits_scores(added, q.dtype, (batch, heads, queries, keys)))


def _fits_scores(added: Tensor, dtype: torch.dtype, size: tuple[int, ...]) -> bool:
    if added.dtype not in (torch.bool, torch.float32, dtype) or not 1 <= added.dim() <= 4:
        return False
    whole = size[4 - added.dim() :]
    return all(n in (1, most) for n, most in zip(added.shape, whole, strict=True))
