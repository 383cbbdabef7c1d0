"""What is traced in the place of torch's Python functions for flex attention and block masks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch


def over_all(mod: Callable[..., Any], sizes: Any, device: Any, *score: Any) -> Any:
    """What a function gives for all positions: a tensor of these sizes."""
    dims: tuple[Any, ...] = (0,) * len(score)
    for axis in (3, 2, 1, 0):
        places = [None, None, None, None]
        places[axis] = 0  # type: ignore[call-overload]
        mod = torch.vmap(mod, in_dims=(*dims, *places))
    return mod(*score, *[torch.arange(0, size, device=device) for size in sizes])


def empty_block_mask(query: Any, key: Any) -> Any:
    """torch's own, without computing what is known."""
    from torch.nn.attention import flex_attention as flex

    count = torch.ones([1, 1, 1], dtype=torch.int32, device=query.device)
    first = torch.zeros([1, 1, 1, 1], dtype=torch.int32, device=query.device)
    size = flex._LARGE_SPARSE_BLOCK_SIZE
    return flex.BlockMask(
        seq_lengths=(1, 1), kv_num_blocks=count, kv_indices=first, full_kv_num_blocks=None,
        full_kv_indices=None, q_num_blocks=count, q_indices=first, full_q_num_blocks=None,
        full_q_indices=None, BLOCK_SIZE=(size, size), mask_mod=flex.noop_mask)


def dense_mask(mod: Any, B: Any, H: Any, Q_LEN: Any, KV_LEN: Any, device: Any) -> Any:
    """The mask of a function for all positions, as a block mask is made of it."""
    sizes = (1 if B is None else B, 1 if H is None else H, Q_LEN, KV_LEN)
    return over_all(mod, sizes, device)


def without_annotation(notes: Any) -> Any:
    """`torch.fx.traceback.annotate`: notes for torch's own compiler."""
    return contextlib.nullcontext()
