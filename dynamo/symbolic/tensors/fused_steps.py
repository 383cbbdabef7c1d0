"""Fused optimizers: `torch._fused_sgd_` and its relatives as the operations of one parameter each.

The kernels write in place and have no functional form, so that a graph with one of them could not
be compiled. What a step means is short: it is traced in the place of the call, with the numbers in
double precision as the kernels have them, and the backend fuses it again. The graph breaks before
calls that scale gradients (`grad_scale`), and before those in 16 bits, which round once per step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import _get_value

from dynamo.base.errors import Break
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.table import rule
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.python.functions import inline_polyfill
from dynamo.symbolic.python.lists import SequenceVar
from dynamo.symbolic.tensors.tensor import TensorVar


def sgd_step(
    params: Any, grads: Any, buffers: Any, *, weight_decay: float, momentum: float, lr: Any,
    dampening: float, nesterov: bool, maximize: bool, is_first_step: bool,
) -> None:
    """`torch._fused_sgd_`."""
    lr = _get_value(lr)
    for at, param in enumerate(params):
        grad = -grads[at] if maximize else grads[at]
        if weight_decay != 0:
            grad = grad.add(param, alpha=weight_decay)
        if momentum != 0:
            buffer = buffers[at]
            if is_first_step:
                buffer.copy_(grad)
            else:
                buffer.mul_(momentum).add_(grad, alpha=1 - dampening)
            grad = grad.add(buffer, alpha=momentum) if nesterov else buffer
        param.add_(grad, alpha=-lr)


def adam_step(
    params: Any, grads: Any, exp_avgs: Any, exp_avg_sqs: Any, max_exp_avg_sqs: Any,
    state_steps: Any, *, lr: Any, beta1: float, beta2: float, weight_decay: float, eps: float,
    amsgrad: bool, maximize: bool, decoupled: bool = False,
) -> None:
    """`torch._fused_adam_`, whose counters have been increased by the caller."""
    lr = _get_value(lr)
    for at, param in enumerate(params):
        grad = -grads[at] if maximize else grads[at]
        if weight_decay != 0 and decoupled:
            param.mul_(1 - lr * weight_decay)
        elif weight_decay != 0:
            grad = grad.add(param, alpha=weight_decay)
        step, mean, square = _get_value(state_steps[at]), exp_avgs[at], exp_avg_sqs[at]
        mean.lerp_(grad, 1 - beta1)
        square.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        if amsgrad:
            torch.maximum(max_exp_avg_sqs[at], square, out=max_exp_avg_sqs[at])
            square = max_exp_avg_sqs[at]
        divisor = (square.sqrt() / (1 - beta2**step) ** 0.5).add_(eps)
        param.addcdiv_(mean, divisor, value=-(lr / (1 - beta1**step)))


def adamw_step(*lists: Any, **numbers: Any) -> None:
    """`torch._fused_adamw_`."""
    adam_step(*lists, decoupled=True, **numbers)


def adagrad_step(
    params: Any, grads: Any, sums: Any, state_steps: Any, *, lr: Any, lr_decay: float,
    weight_decay: float, eps: float, maximize: bool,
) -> None:
    """`torch._fused_adagrad_`, whose counters have been increased by the caller."""
    lr = _get_value(lr)
    for at, param in enumerate(params):
        grad = -grads[at] if maximize else grads[at]
        if weight_decay != 0:
            grad = grad.add(param, alpha=weight_decay)
        rate = lr / (1 + (_get_value(state_steps[at]) - 1) * lr_decay)
        sums[at].addcmul_(grad, grad, value=1)
        param.addcdiv_(grad, sums[at].sqrt().add_(eps), value=-rate)


def _rule_of(step: Callable[..., None]) -> Callable[..., Var | None]:
    def call(tx: Frame, *args: Var, **kwargs: Var) -> Var | None:
        scales = [kwargs.pop(name, ConstVar(None)) for name in ("grad_scale", "found_inf")]
        if any(isinstance(scale, TensorVar) for scale in scales):
            raise Break("tensor_not_modelled", "a fused optimizer scales its gradients")
        params = args[0].unpack(tx) if args and isinstance(args[0], SequenceVar) else []
        if not params or any(getattr(x, "fake", NONE).dtype not in EXACT for x in params):
            raise Break("tensor_not_modelled", "a fused optimizer of parameters in 16 bits")
        return inline_polyfill(tx, step, list(args), kwargs)

    return call


EXACT = (torch.float32, torch.float64)
NONE = torch.empty(0, dtype=torch.int8)
STEPS: dict[str, Callable[..., None]] = {
    "_fused_sgd_": sgd_step, "_fused_adam_": adam_step, "_fused_adamw_": adamw_step,
    "_fused_adagrad_": adagrad_step,
}  # fmt: skip
for name, stepped in STEPS.items():
    packet = getattr(torch.ops.aten, name)
    for fused in (getattr(torch, name), *(getattr(packet, kind) for kind in packet.overloads())):
        rule(fused)(_rule_of(stepped))
