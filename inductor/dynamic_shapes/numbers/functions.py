"""What operators compute with numbers that are tensors of no dimension: see `rules.py`.

Each function has its operator's parameters behind a `Goal`, which brings an argument to the dtype
in which eager computes. `FUNCTIONS` tells which parameters may be such numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class Number:
    """A number that is held by a tensor of no dimension: float64, or int64."""

    value: Tensor

    @property
    def is_int(self) -> bool:
        return self.value.dtype is torch.int64


@dataclass(frozen=True, slots=True)
class Goal:
    """dtype: of the result. held: what is computed in. device: of the numbers."""

    dtype: torch.dtype
    held: torch.dtype
    device: torch.device

    def __call__(self, value: Any) -> Any:
        """An argument in the dtype that is computed in."""
        return self.cast(value, self.held)

    def rounded(self, value: Any) -> Any:
        """The same in the dtype of the result, and back."""
        return self.cast(self.cast(value, self.dtype), self.held)

    def tensor(self, value: Any) -> Any:
        """The same; a number of the program, too, is a tensor."""
        if isinstance(value, (Tensor, Number)):
            return self(value)
        return torch.full((), value, dtype=self.held, device=self.device)

    @staticmethod
    def cast(value: Any, dtype: torch.dtype) -> Any:
        if isinstance(value, Number):
            value = value.value
        return value.to(dtype) if isinstance(value, Tensor) else value


@dataclass(frozen=True, slots=True)
class Function:
    """numbers: the parameters that may be numbers which change."""

    compute: Callable[..., Any]
    numbers: frozenset[str]


def _function(compute: Callable[..., Any], *numbers: str) -> Function:
    return Function(compute, frozenset(numbers))


def _plus_scaled(goal: Goal, value: Any, other: Any, factor: Any, sign: int) -> Any:
    """value + sign * factor * other, rounded once, the factor as ATen's kernels on a CPU do it."""
    value, on_cpu = goal.tensor(value), isinstance(other, Tensor) and other.device.type == "cpu"
    factor = sign * (goal.rounded(goal.tensor(factor)) if on_cpu else goal.tensor(factor))
    if goal.held.is_floating_point:
        return torch.addcmul(value, goal.tensor(other), factor)
    return value + goal(other) * factor


def _summand(goal: Goal, value: Any, other: Any) -> Any:
    """A number that is added to a tensor, of which ATen's kernels on a CPU round it first."""
    on_cpu = isinstance(other, Tensor) and other.device.type == "cpu"
    return goal.rounded(value) if on_cpu and isinstance(value, Number) else goal(value)


def add(goal: Goal, input: Any, other: Any, *, alpha: Any = 1) -> Any:
    if type(alpha) is int and alpha == 1:
        return _summand(goal, input, other) + _summand(goal, other, input)
    return _plus_scaled(goal, input, other, alpha, 1)


def sub(goal: Goal, input: Any, other: Any, *, alpha: Any = 1) -> Any:
    if type(alpha) is int and alpha == 1:
        return _summand(goal, input, other) - _summand(goal, other, input)
    return _plus_scaled(goal, input, other, alpha, -1)


def rsub(goal: Goal, input: Any, other: Any, *, alpha: Any = 1) -> Any:
    return sub(goal, other, input, alpha=alpha)


def mul(goal: Goal, input: Any, other: Any) -> Any:
    return goal(input) * goal(other)


def div(goal: Goal, input: Any, other: Any, *, rounding_mode: str | None = None) -> Any:
    if isinstance(input, Number):
        return rdiv(goal, other, input)
    return torch.div(goal.tensor(input), goal.tensor(other), rounding_mode=rounding_mode)


def rdiv(goal: Goal, input: Any, other: Any) -> Any:
    """What `Tensor.__rtruediv__` computes."""
    return goal.rounded(torch.reciprocal(goal(input))) * goal(other)


def floor_divide(goal: Goal, input: Any, other: Any) -> Any:
    return goal.tensor(input) // goal.tensor(other)


def fmod(goal: Goal, input: Any, other: Any) -> Any:
    return torch.fmod(goal(input), goal.rounded(other))


def remainder(goal: Goal, input: Any, other: Any) -> Any:
    return torch.remainder(goal.tensor(input), goal.rounded(goal.tensor(other)))


def addcmul(goal: Goal, input: Any, tensor1: Any, tensor2: Any, value: Any = 1) -> Any:
    return torch.addcmul(goal(input), goal(value) * goal(tensor1), goal(tensor2))


def addcdiv(goal: Goal, input: Any, tensor1: Any, tensor2: Any, value: Any = 1) -> Any:
    return goal(input) + goal(value) * goal(tensor1) / goal(tensor2)


def lerp(goal: Goal, input: Any, end: Any, weight: Any) -> Any:
    return torch.lerp(goal(input), goal(end), goal.tensor(weight))


# What ATen computes for these exponents.
POWERS: tuple[tuple[float, Callable[[Tensor], Tensor]], ...] = (
    (0.0, torch.ones_like), (1.0, lambda x: x), (2.0, lambda x: x * x),
    (3.0, lambda x: x * x * x), (0.5, torch.sqrt), (-0.5, torch.rsqrt),
    (-1.0, lambda x: 1.0 / x), (-2.0, lambda x: 1.0 / (x * x)),
)  # fmt: skip


def _power(base: Tensor, exponent: Tensor) -> Tensor:
    result = torch.pow(base, exponent.to(base.dtype))
    for value, special in POWERS:
        result = torch.where(exponent == value, special(base), result)
    return result


class _Power(torch.autograd.Function):
    """The gradient of a power by a number is that of no special case."""

    @staticmethod
    def forward(ctx: Any, base: Tensor, exponent: Tensor) -> Tensor:
        ctx.save_for_backward(base, exponent)
        return _power(base, exponent)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        base, exponent = ctx.saved_tensors
        slope = exponent.to(base.dtype) * _Power.apply(base, exponent - 1)
        return torch.where(exponent == 0, 0.0, grads[0] * slope), None


def pow(goal: Goal, input: Any, exponent: Any) -> Any:
    if not isinstance(exponent, Number):
        return rpow(goal, exponent, input)
    return _Power.apply(goal(input), goal.cast(exponent, goal.dtype).to(torch.float64))


def rpow(goal: Goal, input: Any, exponent: Any) -> Any:
    return torch.pow(goal.rounded(exponent), goal(input))


def clamp(goal: Goal, input: Any, min: Any = None, max: Any = None) -> Any:
    least = None if min is None else goal.rounded(goal.tensor(min))
    most = None if max is None else goal.rounded(goal.tensor(max))
    return torch.clamp(goal(input), least, most)


def clamp_min(goal: Goal, input: Any, min: Any) -> Any:
    return clamp(goal, input, min)


def clamp_max(goal: Goal, input: Any, max: Any) -> Any:
    return clamp(goal, input, None, max)


def leaky_relu(
    goal: Goal, input: Any, negative_slope: Any = 0.01, inplace: bool = False
) -> Any:
    x = goal(input)
    return _written(goal, input, inplace, x * torch.where(x > 0, 1.0, goal(negative_slope)))


class _Expm1(torch.autograd.Function):
    """Its gradient is precise, too, where the result is near -1."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return torch.expm1(x)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        [x] = ctx.saved_tensors
        return grads[0] * torch.exp(x)


def elu(goal: Goal, input: Any, alpha: Any = 1.0, inplace: bool = False) -> Any:
    x = goal(input)
    low = _Expm1.apply(torch.clamp(x, max=0.0)) * goal(alpha)
    return _written(goal, input, inplace, torch.where((x > 0) | (x != x), x, low))


def softplus(goal: Goal, input: Any, beta: Any = 1.0, threshold: Any = 20.0) -> Any:
    x, scale = goal(input), goal(beta)
    is_high = x * scale > goal(threshold)
    low = torch.log1p(torch.exp(torch.where(is_high, 0.0, x * scale))) / scale
    return torch.where(is_high, x, low)


def threshold(
    goal: Goal, input: Any, threshold: Any, value: Any, inplace: bool = False
) -> Any:
    x = goal(input)
    low = goal.tensor(value)
    limit = goal.rounded(threshold) if x.is_cuda else goal(threshold)
    return _written(goal, input, inplace, torch.where(x <= limit, low, x))


def hardshrink(goal: Goal, input: Any, lambd: Any = 0.5) -> Any:
    x, width = goal(input), goal.rounded(lambd)
    return torch.where((x >= -width) & (x <= width), 0.0, x)


def _written(goal: Goal, input: Tensor, inplace: bool, result: Tensor) -> Tensor:
    return input.copy_(result.to(goal.dtype)) if inplace else result


def where(goal: Goal, condition: Any, input: Any, other: Any) -> Any:
    return torch.where(condition, goal.tensor(input), goal.tensor(other))


def masked_fill(goal: Goal, input: Any, mask: Any, value: Any) -> Any:
    return torch.where(mask, goal(value), goal(input))


def full(
    goal: Goal, size: Any, fill_value: Any, *, dtype: Any = None, device: Any = None,
    requires_grad: bool = False,
) -> Any:
    made = torch.empty(size, dtype=goal.dtype, device=device)
    return made.fill_(goal.cast(fill_value, goal.dtype))


def new_full(
    goal: Goal, input: Any, size: Any, fill_value: Any, *, dtype: Any = None, device: Any = None,
    requires_grad: bool = False,
) -> Any:
    return full(goal, size, fill_value, device=device or input.device)


def full_like(
    goal: Goal, input: Any, fill_value: Any, *, dtype: Any = None, device: Any = None,
    requires_grad: bool = False, memory_format: Any = torch.preserve_format,
) -> Any:
    made = torch.empty_like(input, dtype=goal.dtype, device=device, memory_format=memory_format)
    return made.fill_(goal.cast(fill_value, goal.dtype))


def fill(goal: Goal, input: Any, value: Any) -> Any:
    return torch.empty_like(input).fill_(goal.cast(value, goal.dtype))


def setitem(goal: Goal, input: Any, key: Any, value: Any) -> None:
    input[key] = goal.cast(value, goal.dtype)


def maximum(goal: Goal, input: Any, other: Any) -> Any:
    return torch.maximum(goal(input), goal(other))


def minimum(goal: Goal, input: Any, other: Any) -> Any:
    return torch.minimum(goal(input), goal(other))


def _comparison(name: str) -> Callable[..., Any]:
    compare = getattr(torch, name)
    return lambda goal, input, other: compare(goal.tensor(input), goal.tensor(other))


COMPARISONS = ("gt", "lt", "ge", "le", "eq", "ne")
FUNCTIONS: dict[str, Function] = {
    "add": _function(add, "input", "other", "alpha"),
    "sub": _function(sub, "input", "other", "alpha"),
    "rsub": _function(rsub, "other", "alpha"),
    "mul": _function(mul, "input", "other"),
    "div": _function(div, "input", "other"),
    "rdiv": _function(rdiv, "other"),
    "floor_divide": _function(floor_divide, "input", "other"),
    "fmod": _function(fmod, "other"),
    "remainder": _function(remainder, "input", "other"),
    "addcmul": _function(addcmul, "value"),
    "addcdiv": _function(addcdiv, "value"),
    "lerp": _function(lerp, "weight"),
    "pow": _function(pow, "input", "exponent"),
    "rpow": _function(rpow, "exponent"),
    "clamp": _function(clamp, "min", "max"),
    "clamp_min": _function(clamp_min, "min"),
    "clamp_max": _function(clamp_max, "max"),
    "leaky_relu": _function(leaky_relu, "negative_slope"),
    "elu": _function(elu, "alpha"),
    "softplus": _function(softplus, "beta", "threshold"),
    "threshold": _function(threshold, "threshold", "value"),
    "hardshrink": _function(hardshrink, "lambd"),
    "where": _function(where, "input", "other"),
    "masked_fill": _function(masked_fill, "value"),
    "full": _function(full, "fill_value"),
    "new_full": _function(new_full, "fill_value"),
    "full_like": _function(full_like, "fill_value"),
    "fill": _function(fill, "value"),
    "setitem": _function(setitem, "value"),
    "maximum": _function(maximum, "other"),
    "minimum": _function(minimum, "other"),
    **{name: _function(_comparison(name), "input", "other") for name in COMPARISONS},
}
# They write a number down, whatever the dtype.
FILLS = frozenset(("full", "new_full", "full_like", "fill", "setitem", "masked_fill", "where"))
# They hold for integers, too.
WHOLE = frozenset(("add", "sub", "rsub", "mul", "clamp", "clamp_min", "clamp_max"))
