"""Whether our own attention on a CPU is faster than ATen's: measured once per machine and class.

In: the metadata of one attention. Out: yes or no, from the cache folder where it was asked before.
Sizes of a class are rounded up to powers of two; the first of a class is measured with its own.
"""

from __future__ import annotations

import math
import time
from typing import Any

import torch

from dynamo.store.content import cache_store
from dynamo.store.processor import OURS, processor
from inductor.autotune.answers import Answers
from inductor.autotune.trials import compare, is_time_left, measuring
from inductor.config import OWN, config
from inductor.kernels.cpu.attention.library import CpuAttention
from inductor.kernels.cpu.attention.source import attention_name
from inductor.operators.cpu_attention_ops import FEWEST_OPERATIONS, load, operations

Tensor = torch.Tensor
Maybe = Tensor | None
FLASH = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
# Larger ones are measured with fewer heads.
MOST_OPERATIONS = 1 << 30
MOST_SECONDS = 0.15  # for one class of attention; chosen, not measured


def is_faster(q: Tensor, k: Tensor, v: Tensor, bias: Maybe, causal: bool) -> bool:
    """Whether to use our kernel, which is built for that; the tensors fit it."""
    said = processor().fastest
    if config.library_kernels != OWN:
        if said and said != OURS or not said and operations(q, k, v) < FEWEST_OPERATIONS:
            return False
    library = load(q.dtype)
    if library is None or said or config.library_kernels != "measure":
        return library is not None
    threads = torch.get_num_threads()
    name, ours = repr(_class(q, k, v, bias, causal)), attention_name(q.dtype is torch.bfloat16)
    answers = Answers(cache_store(), "attentions", threads, ours=ours)
    known = answers.known.get(name)
    if known is None and not is_time_left():
        return True
    if known is None or is_time_left() and known.is_worth_another("ours"):
        found = _measure(library, q, k, v, bias, causal, threads)
        known = answers.add(name, {"aten": 0.0, "ours": found})
        answers.save()
    return known.ratios["ours"] < 0


def _class(q: Tensor, k: Tensor, v: Tensor, bias: Maybe, causal: bool) -> tuple[Any, ...]:
    sizes = (*q.shape[:3], *k.shape[1:], v.shape[3])
    rounded = tuple(1 << (int(n) - 1).bit_length() for n in sizes)
    added = "" if bias is None else "keys" if bias.dim() < 2 or bias.shape[-2] == 1 else "scores"
    return *rounded, str(q.dtype), added, causal


def _measure(
    library: CpuAttention, q: Tensor, k: Tensor, v: Tensor, bias: Maybe, causal: bool, threads: int
) -> float:
    numbers = torch.Generator().manual_seed(0)  # the program's own is not touched
    scale = 1.0 / math.sqrt(q.shape[3])

    def like(tensor: Tensor) -> Tensor:
        made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
        return made.normal_(generator=numbers)

    with torch.inference_mode(False), torch.no_grad(), measuring():
        added = None if bias is None else like(bias)
        q, k, v, added = _fewer(like(q), like(k), like(v), added)
        out = torch.empty_like(q) if q.shape == (*q.shape[:3], v.shape[3]) else None
        if out is None or out.stride(-1) != 1:
            out = torch.empty((*q.shape[:3], v.shape[3]), dtype=q.dtype)

        def run_aten() -> None:
            FLASH(q, k, v, 0.0, causal, attn_mask=added, scale=scale)

        def run_own() -> None:
            library.attend(q, k, v, added, None, causal, scale, 0, 0.0, False, False, out, threads)

        candidates = {"aten": [run_aten], "ours": [run_own]}
        return compare(candidates, "aten", {"ours": 0.0}, time.perf_counter, MOST_SECONDS)["ours"]


def _fewer(q: Tensor, k: Tensor, v: Tensor, bias: Maybe) -> tuple[Tensor, Tensor, Tensor, Maybe]:
    """The same for some batches and heads only, where all would take too long."""
    batch, heads, kv_heads = q.shape[0], q.shape[1], k.shape[1]
    worth = operations(q, k, v)
    while worth > MOST_OPERATIONS and (batch > 1 or kv_heads > 1):
        batch, fewer = (batch // 2, kv_heads) if batch > 1 else (batch, max(1, kv_heads // 2))
        worth //= 2
        heads, kv_heads = heads // kv_heads * fewer, fewer
    if bias is not None and bias.dim() == 4:
        bias = bias[:batch, :heads]
    return q[:batch, :heads], k[:batch, :kv_heads], v[:batch, :kv_heads], bias
