"""What comes to the backward of an autograd function of the program, as an operator of a graph.

`dynamo_jit::arrived(grad, others)` is a gradient, in memory without gaps. others: those of the
function's other results. Backward of a graph may get gradients of some of its outputs alone: then
`grad` may be missing where one of the others is there, and the function gets zeros for it, as from
autograd. Where all are missing it does not run. No compiled backward has the operator: it is gone
once the outputs with a gradient are known (`dynamo/aot/missing.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

LIBRARY = torch.library.Library("dynamo_jit", "FRAGMENT")
LIBRARY.define("arrived(Tensor grad, Tensor[] others) -> Tensor")


def _same(grad: torch.Tensor, others: Sequence[torch.Tensor]) -> torch.Tensor:
    return grad.clone(memory_format=torch.contiguous_format)


def _like(grad: torch.Tensor, others: Sequence[torch.Tensor]) -> torch.Tensor:
    return grad.new_empty(grad.shape)


LIBRARY.impl("arrived", _same, "CompositeExplicitAutograd")
torch.library.register_fake("dynamo_jit::arrived", _like, lib=LIBRARY)

ARRIVED = torch.ops.dynamo_jit.arrived.default
