"""`AveragedModel.update_parameters`: traced in place of torch's, which branches on a counter.

The averages are computed at the first update too; `torch.where` takes the parameters instead. Only
with torch's own averages: functions of the program may tell how often they are called.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch.optim import swa_utils

from dynamo.base.errors import Break
from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.table import rule
from dynamo.symbolic.core.var import ObservedException, Var
from dynamo.symbolic.python.functions import FunctionVar, inline_polyfill
from dynamo.symbolic.tensors.modules import ModuleVar

# The code of what torch's own makers give.
OWN = {
    "multi_avg_fn": [inspect.unwrap(swa_utils.get_ema_multi_avg_fn()).__code__],
    "avg_fn": [inspect.unwrap(make()).__code__
               for make in (swa_utils.get_ema_avg_fn, swa_utils.get_swa_avg_fn)],
}


@rule(swa_utils.AveragedModel.update_parameters, ModuleVar, ModuleVar)
def update_parameters(tx: Frame, averaged: ModuleVar, model: ModuleVar) -> Var | None:
    given = {name: averaged.get_attr(tx, name) for name in OWN}
    chosen = [name for name in OWN if is_given(given[name])]
    if not chosen and torch.accelerator.is_available():
        return None  # what is averaged there depends on the device
    for name in chosen:
        function = given[name]
        real = function.real if isinstance(function, FunctionVar) else None
        if real is None or getattr(inspect.unwrap(real), "__code__", None) not in OWN[name]:
            return None
    try:
        return inline_polyfill(tx, update_averages, [averaged, model], {})
    except ObservedException as error:  # eager may raise at the second update alone
        raise Break("call_of_unknown_function", "update_parameters, which raises") from error


def is_given(var: Var) -> bool:
    return not (var.is_constant() and var.as_constant() is None)


def update_averages(averaged: Any, model: Any) -> None:
    """`averaged.update_parameters(model)`."""
    if averaged.use_buffers:
        own = [*averaged.module.parameters(), *averaged.module.buffers()]
        given = [*model.parameters(), *model.buffers()]
    else:
        own, given = [*averaged.parameters()], [*model.parameters()]
    average = averaged.avg_fn or swa_utils.get_swa_avg_fn()
    is_first = averaged.n_averaged == 0
    for mean_of, new in zip(own, given, strict=False):
        mean, value = mean_of.detach(), new.detach().to(mean_of.device)
        count = averaged.n_averaged.to(mean_of.device)
        if averaged.multi_avg_fn is not None:
            averaged.multi_avg_fn([mean], [value], count)
        else:
            mean.copy_(average(mean, value, count))
        mean.copy_(torch.where(is_first.to(mean_of.device), value.to(mean.dtype), mean))
    if not averaged.use_buffers:
        for mean_of, new in zip(averaged.module.buffers(), model.buffers(), strict=True):
            mean_of.detach().copy_(new.detach().to(mean_of.device))
    averaged.n_averaged += 1
