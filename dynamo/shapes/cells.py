"""`torch.gru_cell` over symbolic sizes, in the operators that torch's own function calls.

From 2.14 on, `unsafe_chunk` asks for all sizes as plain numbers there, and makes constants of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn.functional import linear

aten = torch.ops.aten
Tensor = torch.Tensor


def gru_cell(
    input: Tensor, hx: Tensor, w_ih: Tensor, w_hh: Tensor,
    b_ih: Tensor | None = None, b_hh: Tensor | None = None,
) -> Tensor:
    """As torch's, which gets what it refuses, and what has no symbolic size."""
    if not _is_symbolic_and_fits(input, hx, w_ih, w_hh):
        return torch.gru_cell(input, hx, w_ih, w_hh, b_ih, b_hh)
    if input.device.type != "cpu":
        gates = linear(input, w_ih), linear(hx, w_hh)
        fused: Callable[..., Any] = aten._thnn_fused_gru_cell.default
        return fused(*gates, hx, b_ih, b_hh)[0]  # type: ignore[no-any-return]
    given = linear(input, w_ih, b_ih).unsafe_split(hx.shape[1], 1)
    hidden = linear(hx, w_hh, b_hh).unsafe_split(hx.shape[1], 1)
    reset = hidden[0].add_(given[0]).sigmoid_()
    update = hidden[1].add_(given[1]).sigmoid_()
    new = given[2].add(hidden[2].mul_(reset)).tanh_()
    return (hx - new).mul_(update).add_(new)


def _is_symbolic_and_fits(*tensors: Any) -> bool:
    if not all(isinstance(tensor, Tensor) and tensor.dim() == 2 for tensor in tensors):
        return False
    input, hx, w_ih, w_hh = tensors
    if not any(isinstance(size, torch.SymInt) for tensor in tensors for size in tensor.shape):
        return False
    pairs = [(input.shape[1], w_ih.shape[1]), (input.shape[0], hx.shape[0]),
             (hx.shape[1], w_hh.shape[1]), (3 * hx.shape[1], w_ih.shape[0]),
             (3 * hx.shape[1], w_hh.shape[0])]  # fmt: skip
    return all(one == other for one, other in pairs)


CELLS: Mapping[Any, Callable[..., Any]] = {torch.gru_cell: gru_cell}
