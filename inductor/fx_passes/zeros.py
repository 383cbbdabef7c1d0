"""Which nodes of a graph are tensors of zeros, or of one number."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

aten = torch.ops.aten
FILLS = {
    getattr(aten, name).default
    for name in "full new_full full_like ones new_ones ones_like zeros new_zeros zeros_like".split()
}


def is_zeros(node: Any) -> bool:
    """Whether a node makes zeros and nothing else."""
    if not isinstance(node, fx.Node):
        return False
    if node.target in (aten.new_zeros.default, aten.zeros.default, aten.zeros_like.default):
        return True
    filled = {aten.full.default: 1, aten.new_full.default: 2}.get(node.target)  # type: ignore[call-overload]
    return filled is not None and len(node.args) > filled and node.args[filled] == 0
