"""Shapes of what operators return that torch has no meta kernel for.

Without one a call ends the graph: on a GPU `F.grid_sample` by cuDNN and `nn.GRUCell`, and what
makes nested tensors of padded ones. What torch knows by itself is left alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

GATES = 3  # of a gated recurrent unit
SAVED = 5  # numbers that it keeps for backward, per unit


def sampled(image: Tensor, grid: Tensor) -> Tensor:
    """image: (N, C, H, W); grid: (N, H', W', 2). Returns (N, C, H', W')."""
    return image.new_empty((image.shape[0], image.shape[1], grid.shape[1], grid.shape[2]))


def sampled_backward(image: Tensor, grid: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of the image and of the grid."""
    return image.new_empty(image.shape), grid.new_empty(grid.shape)


def gated_cell(
    inputs: Tensor, hidden: Tensor, state: Tensor, bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """inputs, hidden: (N, 3 H); state: (N, H). Returns the state and what backward needs."""
    workspace = state.new_empty((state.shape[0], state.shape[1] * SAVED))
    return torch.empty_like(state, memory_format=torch.contiguous_format), workspace


def gated_cell_backward(gradient: Tensor, workspace: Tensor, has_bias: bool) -> tuple[Any, ...]:
    """Gradients of the gates of the input and the state, of the state, and of both biases."""
    count, units = workspace.shape[0], workspace.shape[1] // SAVED
    gates = [workspace.new_empty((count, GATES * units)) for _ in range(2)]
    biases = [workspace.new_empty((GATES * units,)) if has_bias else None for _ in range(2)]
    return (*gates, torch.empty_like(gradient, memory_format=torch.contiguous_format), *biases)


def jagged(padded: Tensor, offsets: list[Tensor], total: int | None = None) -> Tensor:
    """padded: (N, length, C). Returns the rows that are no padding, (total, C)."""
    if total is None:
        raise NotImplementedError("the offsets alone tell the size")
    return padded.new_empty((total, padded.shape[2]))


def fake_quantized(x: Tensor, *quantization: Any) -> tuple[Tensor, Tensor]:
    """The result, and which of its elements are within the range."""
    return torch.empty_like(x), torch.empty_like(x, dtype=torch.bool)


KERNELS: dict[str, Callable[..., Any]] = {
    "cudnn_grid_sampler": sampled, "cudnn_grid_sampler_backward": sampled_backward,
    "_padded_dense_to_jagged_forward": jagged,
    "fake_quantize_per_tensor_affine_cachemask": fake_quantized,
    "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams": fake_quantized,
    "fake_quantize_per_channel_affine_cachemask": fake_quantized,
    "_thnn_fused_gru_cell": gated_cell, "_thnn_fused_gru_cell_backward": gated_cell_backward,
}  # fmt: skip
LIBRARY = torch.library.Library("aten", "IMPL", "Meta")


def register() -> None:
    """Gives torch the kernels that it does not have, for the whole process."""
    for name, kernel in KERNELS.items():
        if not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "Meta"):
            LIBRARY.impl(name, kernel)
