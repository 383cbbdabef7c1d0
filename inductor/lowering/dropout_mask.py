"""The lowering of dropout's mask on a GPU: see `inductor.operators.dropout_ops`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from inductor.ir.body import Ops, Value
from inductor.ir.index import as_index, flatten
from inductor.ir.philox import draw_of
from inductor.lowering.registry import Call, lowering
from inductor.lowering.tensor import Indices, Tensor
from inductor.operators.dropout_ops import MASK
from inductor.runtime import dropout_state

COST = 66  # rather stored than computed by two kernels
MOST_INT32 = (1 << 31) - 1


@lowering(MASK)
def dropout_mask(
    call: Call, state: Tensor, before: Sequence[int], size: tuple[int, ...],
    stride: tuple[int, ...], dtype: torch.dtype, p: float,
) -> Any:
    elements = call.layout.numel()
    blocks = dropout_state.blocks_at_once(call.layout.device)
    draw = draw_of(elements, dtype.itemsize, p, blocks, before)
    kind = torch.int32 if elements <= MOST_INT32 else torch.int64
    state.realize()

    def compute(ops: Ops, indices: Indices) -> Value:
        seed, offset = (state.load(ops, (as_index(n),)) for n in range(2))
        position = ops.index_expr(flatten(indices, stride, 0), kind)
        return ops.keep(seed, offset, position, draw)

    return call.builder.computed(call.layout, [state], COST, compute)
