"""Comparisons with random numbers whose outcome is known before the number is drawn.

`torch.rand` draws from [0, 1). A model whose layers may be dropped asks `torch.rand([]) < p` in
every layer; with p = 0, as most configurations have it, the answer is no. The draw stays in the
graph, as it moves the generator's state.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

MIRRORED: dict[Any, Any] = {
    operator.lt: operator.gt, operator.gt: operator.lt,
    operator.le: operator.ge, operator.ge: operator.le,
}


def known_outcome(node: fx.Node) -> bool | None:
    """What every draw answers to a comparison with a plain number; None where it depends."""
    compare = node.target
    if node.op != "call_function" or compare not in MIRRORED or len(node.args) != 2 or node.users:
        return None
    draw, bound = node.args
    if isinstance(bound, fx.Node):
        draw, bound, compare = bound, draw, MIRRORED[compare]
    if not (isinstance(draw, fx.Node) and isinstance(bound, int | float) and _is_draw(draw)):
        return None
    if set(draw.users) != {node}:
        return None  # it may have been written to in between
    if compare in (operator.lt, operator.ge):
        return compare is operator.ge if bound <= 0 else None
    return compare is operator.gt if bound < 0 else None


def _is_draw(node: fx.Node) -> bool:
    return node.op == "call_function" and node.target is torch.rand and "out" not in node.kwargs
