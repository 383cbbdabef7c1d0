"""Dropout on a GPU as two operators, of which kernels compute the second one for each element.

`dynamo_jit::philox_state(elements, device)` draws for dropouts of so many elements: seed and offset
of the device's default generator, an int64 tensor of two, and the generator's offset is moved on as
by ATen's dropouts. It is all that backward needs of a mask.

`dynamo_jit::dropout_mask(state, before, size, stride, dtype, p)` is the mask of ATen's
`native_dropout` of a dense tensor of that size, stride and dtype: bool, false with the probability
p. before: the elements of the dropouts that have drawn from the same state. It draws nothing, so it
may run again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from inductor.ir.philox import draw_of, keeps
from inductor.runtime import dropout_state

LIBRARY = torch.library.Library("dynamo_jit", "FRAGMENT")
LIBRARY.define(
    "philox_state(int[] elements, Device device) -> Tensor",
    tags=(torch.Tag.nondeterministic_seeded,),
)
LIBRARY.define(
    "dropout_mask(Tensor state, int[] before, int[] size, int[] stride, ScalarType dtype, float p)"
    " -> Tensor",
    tags=(torch.Tag.pointwise,),
)


def _mask(
    state: torch.Tensor, before: Sequence[int], size: Sequence[int], stride: Sequence[int],
    dtype: torch.dtype, p: float,
) -> torch.Tensor:
    """The mask by ATen's operators, where no kernel computes it."""
    elements, device = math.prod(size), state.device
    draw = draw_of(elements, dtype.itemsize, p, dropout_state.blocks_at_once(device), before)
    flat = keeps(state[0], state[1], torch.arange(elements, device=device), draw)
    return flat.as_strided(size, stride)


def _state(elements: Sequence[int], device: torch.device) -> torch.Tensor:
    return dropout_state.draw(elements, device)


LIBRARY.impl("philox_state", _state, "CompositeExplicitAutograd")
LIBRARY.impl("dropout_mask", _mask, "CompositeExplicitAutograd")

STATE = torch.ops.dynamo_jit.philox_state.default
MASK = torch.ops.dynamo_jit.dropout_mask.default
