"""Optimizers that branch on a step counter: Python functions that are traced in place of torch's.

They compute both ways and choose by `torch.where`, so that the counter stays in the graph. One more
stands in for `zero_grad`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import _adafactor, adadelta, adam, adamax, asgd, nadam, radam, rmsprop, rprop
from torch.optim.optimizer import Optimizer, _get_value

from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.table import rule
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.python.functions import inline_polyfill
from dynamo.symbolic.tensors.tensor import TensorVar


def rectified_step(
    params: Any, grads: Any, exp_avgs: Any, exp_avg_sqs: Any, state_steps: Any, *, beta1: float,
    beta2: float, lr: Any, weight_decay: float, eps: float, decoupled_weight_decay: bool,
    maximize: bool,
) -> None:
    """RAdam: Adam where the variance of the step is known well enough, momentum before."""
    longest = 2 / (1 - beta2) - 1
    for param, grad, mean, square, counter in zip(
        params, grads, exp_avgs, exp_avg_sqs, state_steps, strict=True
    ):
        counter += 1
        step = _get_value(counter)
        grad = -grad if maximize else grad
        if weight_decay != 0 and decoupled_weight_decay:
            param.mul_(1 - lr * weight_decay)
        elif weight_decay != 0:
            grad = grad.add(param, alpha=weight_decay)
        mean.lerp_(grad, 1 - beta1)
        square.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        correction = 1 - beta2**step
        length = longest - 2 * step * beta2**step / correction
        factor = (length - 4) * (length - 2) * longest
        rectified = (factor / ((longest - 4) * (longest - 2) * length)) ** 0.5
        momentum = mean / (1 - beta1**step) * lr
        adaptive = momentum * (correction**0.5 / square.sqrt().add_(eps)) * rectified
        param.add_(torch.where(length > 5, adaptive, momentum), alpha=-1)


def averaged_step(
    params: Any, grads: Any, axs: Any, mus: Any, etas: Any, state_steps: Any, *, lambd: float,
    lr: Any, t0: float, alpha: float, weight_decay: float, maximize: bool,
) -> None:
    """ASGD: the average is the parameter itself until its weight is less than 1."""
    for param, grad, mean, weight, eta, counter in zip(
        params, grads, axs, mus, etas, state_steps, strict=True
    ):
        grad = -grad if maximize else grad
        counter += 1
        if weight_decay != 0:
            grad = grad.add(param, alpha=weight_decay)
        rate = _get_value(eta)
        param.mul_(1 - lambd * rate)
        param.add_(grad, alpha=-rate)
        mean.copy_(torch.where(weight == 1, param, mean + (param - mean) * weight))
        step = _get_value(counter)
        eta.copy_(torch.as_tensor(lr / (1 + lambd * lr * step) ** alpha))
        weight.copy_(torch.as_tensor(1 / max(1, step - t0)))


def factored_step(
    params: Any, grads: Any, row_vars: Any, col_vars: Any, variances: Any, state_steps: Any,
    grad_scale: Any, found_inf: Any, *, d: float, lr: float, beta2_decay: float,
    weight_decay: float, eps1: float | None, eps2: float, maximize: bool,
) -> None:
    """Adafactor: the norms that scale a step stay in the graph."""
    for param, grad, rows, columns, variance, counter in zip(
        params, grads, row_vars, col_vars, variances, state_steps, strict=True
    ):
        counter += 1
        step = _get_value(counter)
        grad = -grad if maximize else grad
        least = torch.finfo(param.dtype).eps if eps1 is None else eps1
        size = _get_value(param.norm(2)) / param.numel() ** 0.5
        length = max(eps2, size) * min(lr, 1 / step**0.5)
        weight = (step**beta2_decay).to(param.dtype)
        if weight_decay != 0:
            param.mul_(1 - lr * weight_decay)
        if grad.dim() > 1:
            for means, dim in ((rows, -1), (columns, -2)):
                norms = torch.norm(grad, dim=dim, keepdim=True)
                means.lerp_(norms.square_().div_(grad.size(dim)), weight)
            estimate = rows @ columns
            estimate.div_(rows.mean(dim=-2, keepdim=True).clamp_(min=least))
        else:
            variance.lerp_(grad * grad, weight)
            estimate = variance.clone()
        update = estimate.clamp_(min=least * least).rsqrt_().mul_(grad)
        excess = _get_value(update.norm(2)) / (update.numel() ** 0.5 * d)
        param.add_(update, alpha=-length / max(1.0, excess))


STEPS: dict[Any, Callable[..., None]] = {
    radam._single_tensor_radam: rectified_step,
    radam._multi_tensor_radam: rectified_step,
    asgd._single_tensor_asgd: averaged_step,
    _adafactor._single_tensor_adafactor: factored_step,
}
IN_EAGER = ("capturable", "differentiable", "has_complex")  # settings of which these know nothing


def is_plain(params: list[Var], rate: Var) -> bool:
    """True where numbers in tensors are rounded as Python's are."""
    dtypes = {param.fake.dtype for param in params if isinstance(param, TensorVar)}
    return not isinstance(rate, TensorVar) and dtypes <= {torch.float32, torch.float64}


def _register(real: Any, step: Callable[..., None]) -> None:
    @rule(real)
    def handle(tx: Frame, /, *args: Var, **kwargs: Var) -> Var | None:
        if step is rectified_step and kwargs["capturable"].truth(tx):
            return inline_polyfill(tx, real, list(args), kwargs)  # which does not branch, either
        if any(name in kwargs and kwargs[name].truth(tx) for name in IN_EAGER):
            return None
        if step is factored_step and not is_plain(args[0].unpack(tx), kwargs["lr"]):
            return None
        settings = {name: var for name, var in kwargs.items() if name not in IN_EAGER}
        return inline_polyfill(tx, step, list(args), settings)


for update, stand_in in STEPS.items():
    _register(update, stand_in)


# Torch's compiler does not look into these where counters lie on a GPU without `capturable`, as
# fused steps have them: a list operation that takes a number for each tensor wants those on a CPU.
# Here such an operation is one for each tensor. What is wrapped so is traced.
UPDATES = (
    _adafactor.adafactor, adadelta.adadelta, adam.adam, adamax.adamax, asgd.asgd,
    nadam.nadam, radam.radam, rmsprop.rmsprop, rprop.rprop,
)  # fmt: skip
# Torch leaves this check out of compiled code.
COUNTED = (
    adadelta.adadelta, adam.adam, adamax.adamax, rmsprop.rmsprop, rprop.rprop,
)  # fmt: skip
NOT_TENSORS = "API has changed, `state_steps` argument must contain a list of singleton tensors"


def _register_update(function: Callable[..., Any]) -> None:
    inner = inspect.unwrap(function)
    place = list(inspect.signature(function).parameters).index("state_steps") if (
        function in COUNTED) else None

    @rule(function)
    def update(tx: Frame, /, *args: Var, **kwargs: Var) -> Var:
        if place is not None:
            steps = args[place] if place < len(args) else kwargs["state_steps"]
            if not all(isinstance(step, TensorVar) for step in steps.unpack(tx)):
                tx.trace.raise_exception(RuntimeError, NOT_TENSORS)
        return inline_polyfill(tx, inner, list(args), kwargs)


for function in UPDATES:
    _register_update(function)


# Torch's compiler may not look into this function, though it only forgets gradients.
@rule(Optimizer.zero_grad)
def zero_grad(tx: Frame, optimizer: Var, set_to_none: Var = ConstVar(True)) -> Var | None:  # noqa: B008
    """Which gradients there were does not matter, where all are gone afterwards."""
    if not set_to_none.truth(tx):
        return None
    return inline_polyfill(tx, forget_gradients, [optimizer], {})


def forget_gradients(optimizer: Any) -> None:
    """`optimizer.zero_grad()`."""
    for group in optimizer.param_groups:
        for param in group["params"]:
            param.grad = None
