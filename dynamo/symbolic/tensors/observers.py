"""Observers of quantization-aware training that give their statistics a size while they run."""

from __future__ import annotations

import torch

from dynamo.base.errors import Break
from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.table import first_rule
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.tensors.tensor import TensorVar

RUNNING = (3, 4, 5, 6)  # the arguments with least and greatest values, scales and zero points


@first_rule(torch.fused_moving_avg_obs_fake_quant)
def observe(tx: Frame, *args: Var, **kwargs: Var) -> Var | None:
    """The first call with a scale for each channel resizes empty statistics, which no graph has.
    Errors: Break there."""
    given = [*args, *kwargs.values()]
    for var in (given[at] for at in RUNNING if at < len(given)):
        if isinstance(var, TensorVar) and var.fake.numel() == 0:
            raise Break("operation_without_fake_kernel",
                        f"{torch.fused_moving_avg_obs_fake_quant.__name__} of empty statistics")
    return None
