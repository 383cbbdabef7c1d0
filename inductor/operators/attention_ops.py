"""Attention as an operator: what graphs hold where a kernel of our own computes it.

`dynamo_jit::attention(q, k, v, bias, mask, causal, scale, window, cap, nan_rows, lse, arrived)`
gives softmax(cap(q k^T * scale) + bias, masked) v for tensors (batch, heads, length, head), and the
log-sum-exps of the scores, if `lse` asks for them (else an empty tensor). There may be fewer heads
of keys and values. bias, mask: tensors of four axes that broadcast to the scores; where mask is
False, a query does not see a key. causal: nor later keys. window: nor keys of that distance behind
or more; 0: all. cap: scores are cap * tanh(score / cap); 0: as they are. nan_rows: a query that
sees nothing gives NaN, else zeros. arrived: None, or zeros in int32 that no other call uses at the
same time, one for each head of keys of each sequence, by which programs count themselves; they are
zeros behind the call, too. It has a derivative without these.

`dynamo_jit::zero_counters(like, count)` gives so many of them, on the device of a tensor.

`attention` is what takes the place of `F.scaled_dot_product_attention` in captured graphs: it is
called while they are recorded, and decides by the metadata of its arguments alone.
`attention_with_parts` is the same where something is known of the mask.
"""

from __future__ import annotations

import functools
import importlib.util
import itertools
import math
from typing import Any

import torch

from inductor.config import config, is_enabled
from inductor.kernels.attention_reference import (
    reference_attention,
    reference_backward,
    shape_of_attention,
    shape_of_backward,
)
from inductor.kernels.attention_spec import FEW_QUERIES, HALF, MOST_HEAD, splits_of
from inductor.kernels.gpu.attention.launches import AttentionBackwardCall, AttentionCall
from inductor.operators.differentiable_ops import LIBRARY, Kernels, below_autograd, register
from inductor.runtime.gpu_properties import properties_of

Tensor = torch.Tensor
Maybe = Tensor | None
sdpa = torch.nn.functional.scaled_dot_product_attention

MANY_SPLITS = 8  # of the keys of few queries: fewer are no faster than torch's flash attention
# Measured: with heads of 64 and 512 keys ours is faster, with 128 and 2048 slower (`is_faster`).
SMALL_HEAD = 64
MANY_KEYS = 1024
WORD = 16  # elements, so that kernels know of rows that begin at whole words
MOST_HEADS = 65535  # of all sequences: what a grid has along its second axes
MOST_OFFSET = 2**31 - 1  # kernels count elements of a head in 32 bits

FACTS = "bool causal, float scale, int window, float cap, bool nan_rows"
LIBRARY.define(
    f"attention(Tensor q, Tensor k, Tensor v, Tensor? bias, Tensor? mask, {FACTS}, bool lse,"
    " Tensor? arrived=None) -> (Tensor, Tensor)"
)
LIBRARY.define("zero_counters(Tensor like, int count) -> Tensor")
LIBRARY.define(
    "attention_backward(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor? bias, Tensor? mask,"
    f" Tensor out, Tensor lse, {FACTS}, bool bias_grad, bool[] leaves)"
    " -> (Tensor, Tensor, Tensor, Tensor)"
)


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
        out, lse = below_autograd("attention", *args[:-1], True)
        ctx.facts, ctx.leaves = args[5:10], [x.is_leaf for x in args[:3]]
        ctx.save_for_backward(*args[:5], out, lse)
        ctx.mark_non_differentiable(lse)
        return out, lse

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        q, k, v, bias, mask, out, lse = ctx.saved_tensors
        bias_grad = bias is not None and ctx.needs_input_grad[3]
        dq, dk, dv, db = torch.ops.dynamo_jit.attention_backward(
            grads[0], q, k, v, bias, mask, out, lse, *ctx.facts, bias_grad, ctx.leaves
        )
        return dq, dk, dv, db if bias_grad else None, *[None] * 7


register(
    "attention",
    Kernels(shape_of_attention, reference_attention, _by_kernels),
    Kernels(shape_of_backward, reference_backward, _backward_by_kernels),
    _Attention,
)


def _zero_counters(like: Tensor, count: int) -> Tensor:
    return like.new_zeros(count, dtype=torch.int32)


for _key in ("Meta", "CPU", "CUDA"):
    LIBRARY.impl("zero_counters", _zero_counters, _key)


def attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Maybe = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
    repeats: int = 1,
) -> Tensor:
    """`F.scaled_dot_product_attention`, by our kernel where it is for these tensors. repeats: for
    how many heads of queries the program repeats each head of key and value."""
    tensors = (query, key, value) if attn_mask is None else (query, key, value, attn_mask)
    plain = isinstance(dropout_p, (int, float)) and dropout_p == 0.0
    plain = plain and (scale is None or isinstance(scale, (int, float)) and scale > 0)
    plain = plain and not (is_causal and attn_mask is not None)
    if plain and not enable_gqa and repeats == 1 and all_backends_allowed():
        axis = _head_axis(query, key, value)
        if axis is not None and (attn_mask is None or _is_for_all_heads(attn_mask)):
            q, k, v = (_in_four_axes(x, axis) for x in (query, key, value))
            mask = None if attn_mask is None else attn_mask.reshape(attn_mask.shape[-2:])
            found = attention(q, k, v, mask, dropout_p, is_causal, scale)
            return _in_axes_of(found, query, axis)
    wanted = plain and all_backends_allowed() and has_kernel(*tensors)
    fits = wanted and _has_heads(query, key, enable_gqa, repeats) and (
        is_faster(*tensors) or _saves_copies(query, key, value, repeats))
    if not fits:
        key, value = (_repeated(each, repeats) for each in (key, value))
        return sdpa(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    if attn_mask is not None:
        attn_mask = _in_whole_words(attn_mask[(None,) * (4 - attn_mask.dim())])
    is_mask = attn_mask is not None and attn_mask.dtype is torch.bool
    bias, mask = (None, attn_mask) if is_mask else (attn_mask, None)
    size = 1.0 / math.sqrt(query.shape[3]) if scale is None else float(scale)
    result: Tensor = torch.ops.dynamo_jit.attention(
        query, key, value, bias, mask, is_causal, size, 0, 0.0, False, False
    )[0]
    return result


def _head_axis(query: Tensor, key: Tensor, value: Tensor) -> int | None:
    """Of tensors with more or fewer axes than four on a GPU, in half precision, which axis is to be
    that of heads: one beside which the others in front are one in memory; the last one of these, if
    there is none. torch has fast kernels for four axes only; for others it multiplies in float32
    (NesT: 93 us of GEMMs and 29 of softmax a layer on an H200, where all else takes 58).

    None for tensors that are no such ones."""
    tensors = (query, key, value)
    front = query.shape[:-2]
    if len(front) in (0, 2) or not all(map(_is_half_on_gpu, tensors)):
        return None
    if any(type(n) is not int for x in tensors for n in (*x.shape, *x.stride())):
        return None
    if any(x.shape[:-2] != front or 0 in x.shape for x in tensors):
        return None
    if math.prod(front) > MOST_HEADS:
        return None
    last = len(front) - 1
    found = (
        axis for axis in reversed(range(len(front)))
        if all(_is_one_in_memory(x, [n for n in range(len(front)) if n != axis]) for x in tensors)
    )
    return next(found, last)


def _is_half_on_gpu(tensor: Tensor) -> bool:
    return tensor.device.type == "cuda" and tensor.dtype in HALF


def _is_one_in_memory(tensor: Tensor, axes: list[int]) -> bool:
    return all(
        tensor.shape[a] == 1 or tensor.stride(a) == tensor.shape[b] * tensor.stride(b)
        for a, b in itertools.pairwise(axes)
    )


def _is_for_all_heads(mask: Tensor) -> bool:
    return all(n == 1 for n in mask.shape[:-2])


def _in_four_axes(tensor: Tensor, axis: int) -> Tensor:
    """axis: of heads; the others in front become one."""
    moved = tensor.movedim(axis, -3)
    return moved.unsqueeze(0) if moved.dim() == 3 else moved.flatten(0, -4)


def _in_axes_of(result: Tensor, query: Tensor, axis: int) -> Tensor:
    """Attention's result with the axes of its query."""
    front = [n for at, n in enumerate(query.shape[:-2]) if at != axis]
    if not front:
        return result.squeeze(0)
    return result.unflatten(0, front).movedim(-3, axis)


def _in_whole_words(added: Tensor) -> Tensor:
    """A bias or mask of four axes whose rows begin at whole words of memory: of odd rows a kernel
    reads one element at a time. With 197 queries and keys (BEiT, 16 x 12 heads) that took 62 us of
    a layer on an H200."""
    row, step = added.stride()[2:]
    if added.shape[2] == 1 or 0 in (row, step) or step == 1 and row % WORD == 0:
        return added
    for axis in (0, 1):
        if added.stride(axis) == 0:
            added = added.narrow(axis, 0, 1)  # what is repeated would be repeated in memory
    keys = added.shape[3]
    return torch.nn.functional.pad(added, (0, -keys % WORD))[..., :keys]


Parts = tuple[tuple[Tensor, ...], bool, int]


def attention_with_parts(
    parts: Parts, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor,
    dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None,
    enable_gqa: bool = False, repeats: int = 1,
) -> Tensor:
    """`attention`, where attn_mask is the conjunction of the parts: masks that broadcast to it,
    whether it is causal, and a window (see `fx_passes.attention_masks`)."""
    masks, causal, window = parts
    given = query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, repeats
    known = query.dim() == 4 and not is_causal and attn_mask.dtype is torch.bool
    known = known and all_backends_allowed()
    plain = isinstance(dropout_p, (int, float)) and dropout_p == 0.0
    hides = bool(masks or causal or window)
    if known and not hides and (plain or 0 in attn_mask.stride()[-2:]):
        # Libraries make masks that hide nothing where they are traced, and none in eager: these
        # repeat in memory, where torch has no fast kernel of dropout. With one that a program has
        # filled itself, torch's kernel drops other elements than without.
        return attention(query, key, value, None, dropout_p, False, scale, enable_gqa, repeats)
    # with another mask, torch's kernels would drop other elements, or refuse what they do not now
    if not (known and plain) or any(mask.dtype is not torch.bool for mask in masks):
        return attention(*given)
    if window >= query.shape[2]:
        window = 0
    if not masks and not window:
        return attention(query, key, value, None, dropout_p, causal, scale, enable_gqa, repeats)
    seen = functools.reduce(torch.logical_and, masks) if masks else None
    if seen is not None:
        seen = seen[(None,) * (4 - seen.dim())]
    tensors = (query, key, value) if seen is None else (query, key, value, seen)
    fits = (
        (scale is None or isinstance(scale, (int, float)) and scale > 0)
        and has_kernel(query, key, value, attn_mask) and has_kernel(*tensors)
        and _has_heads(query, key, enable_gqa, repeats)
        and (is_faster_in_parts(query, key, value, seen)
             or _saves_copies(query, key, value, repeats))
    )  # fmt: skip
    if not fits:
        return attention(*given)
    if seen is not None:
        seen = _in_whole_words(seen)
    size = 1.0 / math.sqrt(query.shape[3]) if scale is None else float(scale)
    result: Tensor = torch.ops.dynamo_jit.attention(
        query, key, value, None, seen, causal, size, window, 0.0, False, False
    )[0]
    return result


def _has_heads(query: Tensor, key: Tensor, enable_gqa: bool, repeats: int) -> bool:
    """Whether the program may have so many heads."""
    return enable_gqa or query.shape[1] == key.shape[1] * repeats


def _repeated(tensor: Tensor, repeats: int) -> Tensor:
    """Each head so many times, as the program has written it."""
    if repeats == 1:
        return tensor
    batch, heads, length, size = tensor.shape
    many = tensor[:, :, None].expand(batch, heads, repeats, length, size)
    return many.reshape(batch, heads * repeats, length, size)


def is_faster_in_parts(q: Tensor, k: Tensor, v: Tensor, seen: Maybe) -> bool:
    """Whether our kernel is faster than torch's that reads a whole mask. seen: what is left of it.

    As measured on an H200 for 8 x 12 heads of 64 and 512 tokens, forward and backward in us: a mask
    of keys 92 beside 141 (cuDNN's), causal too 75; for 2 x 16 heads of 128 and 2048 tokens, causal
    with a mask of keys, 442 and 849. With a whole mask ours gain nothing in training.
    """
    if max(q.shape[3], v.shape[3]) > 2 * SMALL_HEAD:
        return False
    trains = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (q, k, v))
    if q.shape[2] <= FEW_QUERIES:
        return not trains and is_faster_for_few(q, k, seen)
    return not trains or seen is None or seen.shape[2] == 1


def all_backends_allowed() -> bool:
    """False where the program has chosen how torch computes attention."""
    backends = torch.backends.cuda
    return (
        backends.flash_sdp_enabled() and backends.mem_efficient_sdp_enabled()
        and backends.math_sdp_enabled() and not torch.is_autocast_enabled("cuda")
    )  # fmt: skip


def is_faster(q: Tensor, k: Tensor, v: Tensor, added: Maybe = None) -> bool:
    """Whether our kernel is the faster one.

    As measured on an H200 beside torch's (cuDNN's): 18.9 and 20.4 us for 8 x 12 heads of 64 and 512
    tokens, with a mask 24.5 and 35.4, with a bias 27.8 and 35.0; for 2048 tokens of 32 heads of
    128, causal, 623 and 503. In training only where the bias has a gradient, for which torch has
    nothing better than GEMMs and a softmax.
    """
    head, queries, keys = max(q.shape[3], v.shape[3]), q.shape[2], k.shape[2]
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (q, k, v)):
        return added is not None and added.requires_grad
    if queries <= FEW_QUERIES:
        return head <= 2 * SMALL_HEAD and is_faster_for_few(q, k, added)
    if added is None:
        return head <= SMALL_HEAD and keys <= MANY_KEYS
    return head <= 2 * SMALL_HEAD


def _saves_copies(q: Tensor, k: Tensor, v: Tensor, repeats: int) -> bool:
    """Whether torch's kernel of few queries would wait for heads of keys and values to be copied.

    As measured on an H200 for a query of 16 heads of 128 and 128 keys of four: 5.3 us for cuDNN's
    and 1.4 for each copy. That ours takes less by itself is not measured.
    """
    trains = torch.is_grad_enabled() and any(each.requires_grad for each in (q, k, v))
    is_small = max(q.shape[3], v.shape[3]) <= 2 * SMALL_HEAD
    return repeats > 1 and q.shape[2] <= FEW_QUERIES and is_small and not trains


def is_faster_for_few(q: Tensor, k: Tensor, added: Maybe) -> bool:
    """Whether our kernel of few queries is faster than torch's, which also shares out the keys.

    As measured on an H200 for 32 heads of 128, 8 of keys: with a mask of keys 6.7 and 12.5 us for
    2048 of them, 23.8 and 29.7 for eight sequences; for 8192, 11.6 and 17.3. Without, 6.3 and 7.6,
    22.8 and 23.2, 10.9 and 11.4; for eight queries of 2048 keys, 8.0 and 28.9.
    """
    least = 2 if added is not None or q.shape[2] > 1 else MANY_SPLITS
    gpu = properties_of(q.device)
    return splits_of(gpu, q.shape[0], q.shape[1], q.shape[2], *k.shape[1:3]) >= least


@functools.cache
def has_triton() -> bool:
    """Whether kernels can be made here."""
    return importlib.util.find_spec("triton") is not None


def has_kernel(q: Tensor, k: Tensor, v: Tensor, added: Maybe = None) -> bool:
    """Whether there is a kernel for these tensors; added: bias or mask."""
    tensors = (q, k, v) if added is None else (q, k, v, added)
    if not (is_enabled("attention") and config.kernels and has_triton()):
        return False
    if any(tensor.device.type != "cuda" for tensor in tensors):
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
    spans = [
        sum((n - 1) * step for n, step in zip(x.shape[-2:], x.stride()[-2:], strict=True))
        for x in tensors
    ]
    if max(*spans, queries * keys, queries * heads * v.shape[3]) > MOST_OFFSET:
        return False
    return fits and (added is None or _fits_scores(added, q.dtype, (batch, heads, queries, keys)))


def _fits_scores(added: Tensor, dtype: torch.dtype, size: tuple[int, ...]) -> bool:
    if added.dtype not in (torch.bool, torch.float32, dtype) or not 1 <= added.dim() <= 4:
        return False
    whole = size[4 - added.dim() :]
    return all(n in (1, most) for n, most in zip(added.shape, whole, strict=True))
