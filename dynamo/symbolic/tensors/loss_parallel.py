"""`loss_parallel` of `torch.distributed.tensor`: what DTensor does for the operations of a loss.

The context puts functions of its own into a table that all DTensors of the process share. In a
trace it is a node that enters and one that leaves, and backward is recorded inside of it, as torch
asks of a program. A trace with DTensors holds for the table that it has seen.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

from dynamo.guards.sources import CallSource, ObjectSource
from dynamo.symbolic.core.frame import Evaluation, Frame
from dynamo.symbolic.core.table import late_rule
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.tensors.contexts import MAKERS, GraphContextVar
from dynamo.symbolic.tensors.masked_partials import forget_traced_masks

KIND = "loss_parallel"


def handled() -> tuple[str, ...]:
    """The operations that DTensor now has functions of its own for."""
    module: Any = sys.modules["torch.distributed.tensor"]
    return _names(tuple(module.DTensor._op_dispatcher._custom_op_handlers))


@functools.lru_cache(16)
def _names(operations: tuple[Any, ...]) -> tuple[str, ...]:
    return tuple(sorted(map(str, operations)))


HANDLED = CallSource(ObjectSource(handled, "the operations that DTensor handles"))


class _Seen:
    """One per trace: whether the table is guarded, which is as it was before the frame."""

    def __init__(self, trace: Any = None) -> None:
        self.guarded = False


def guard_table(trace: Evaluation) -> None:
    """For a trace in which DTensors are computed with."""
    seen = trace.state(_Seen)
    if not seen.guarded:
        seen.guarded = True
        forget_traced_masks()
        trace.guard("CONST", HANDLED, handled())


class LossParallelVar(GraphContextVar):
    """`loss_parallel()`."""

    def on_enter(self, trace: Evaluation) -> None:
        guard_table(trace)
        super().on_enter(trace)


def make() -> Any:
    module: Any = sys.modules["torch.distributed.tensor.parallel.loss"]
    return module.loss_parallel()


MAKERS[KIND] = make


@late_rule("loss", KIND)
def loss_parallel(tx: Frame) -> Var:
    return LossParallelVar(KIND, (), in_trace=True)
