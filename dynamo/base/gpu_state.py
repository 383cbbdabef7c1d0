"""Choices that torch makes once in a process, at the first call of some operators on a GPU.

The first GEMM decides which library computes GEMMs, and on some GPUs the first attention in
which order its kernels are tried. Guards look at both: what was read before is no more what it was,
though the program has set nothing.
"""

from __future__ import annotations

import functools

import torch
from torch.utils._python_dispatch import _disable_current_modes


def settle_choices() -> None:
    """Has torch choose before guards look, where the program uses a GPU. What the program has set
    is left alone.

    >>> settle_choices()
    """
    if torch.cuda.is_initialized():
        torch._C._get_blas_preferred_backend()  # asked, torch puts what is used for the default
        _choose_attention_kernel()


@functools.cache
def _choose_attention_kernel() -> None:
    if torch._C._get_sdp_priority_order() == ORDER_AT_START:
        with torch._C.DisableTorchFunction(), _disable_current_modes():
            any_heads = torch.empty(1, 1, 1, 8, dtype=torch.float16, device="cuda")
            torch._fused_sdp_choice(any_heads, any_heads, any_heads)


ORDER_AT_START = torch._C._get_sdp_priority_order()
