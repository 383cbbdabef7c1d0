"""Weights among the inputs of a trace, for backends that prepare them
(`inductor/driver/freezing.py`).

A trace reads ordinary tensors through aliases, which are others each time. A backend that keeps
copies of weights in another order has to know the tensors themselves, to see that they are the same
and unchanged. Weights are parameters that are read while nothing is recorded for a backward, and
the statistics of batch norms in inference; a trace that writes into inputs has none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dynamo.lazy.graph import steps
from dynamo.lazy.rules import Operand
from dynamo.lazy.trace import Trace

aten = torch.ops.aten
# Operators of batch norm with the places of their statistics, and of `training` (None: never).
NORMS: dict[Any, tuple[tuple[int, int], int | None]] = {
    aten.native_batch_norm.default: ((3, 4), 5),
    aten._native_batch_norm_legit_no_training.default: ((3, 4), None),
}


def may_be_weight(tensor: torch.Tensor) -> bool:
    """Whether an ordinary tensor that is read now may be one."""
    if type(tensor) is torch.nn.Parameter:
        records = torch.is_grad_enabled() and tensor.requires_grad
        return not records and torch._C._current_graph_task_id() < 0  # type: ignore[attr-defined]
    return type(tensor) is torch.Tensor and not tensor.requires_grad


def weights_of(trace: Trace, live: Sequence[int]) -> frozenset[int]:
    """Positions of weights among the inputs; none whose memory a result has."""
    if trace.writes:
        return frozenset()
    returned = {trace.roots[number] for number in live}
    statistics = _statistics(trace)
    kinds = {at: type(value.ordinary) for at, value in enumerate(trace.inputs)
             if value.ordinary is not None and trace.places[at] not in returned}  # fmt: skip
    if torch.nn.Parameter not in kinds.values():
        return frozenset()
    return frozenset(at for at, kind in kinds.items()
                     if kind is torch.nn.Parameter or trace.places[at] in statistics)  # fmt: skip


def _statistics(trace: Trace) -> set[int]:
    """Numbers of the tensors that batch norms read as their mean and variance."""
    found: set[int] = set()
    for rule, operands in steps(trace.rules, trace.wires):
        if rule.func not in NORMS:
            continue
        places, training = NORMS[rule.func]
        if training is None or rule.args[training] is False:
            found |= {operands[rule.args[place].number] for place in places
                      if type(rule.args[place]) is Operand}  # fmt: skip
    return found


def with_weights(
    reals: Sequence[torch.Tensor], owners: Sequence[Any], places: frozenset[int]
) -> list[torch.Tensor]:
    """The inputs, at these positions the ordinary tensors instead of their aliases."""
    return [
        owners[at] if at in places and type(owners[at]) in (torch.Tensor, torch.nn.Parameter) else
        real for at, real in enumerate(reals)]  # fmt: skip
