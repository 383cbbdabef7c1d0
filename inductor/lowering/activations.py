"""Lowerings of activation functions and their kin: compositions of scalar operations.

Each follows eager's formula on the same device, so that results agree to the last bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from inductor.ir.body import Ops, Value
from inductor.ir.scalar_ops import dtype_kind
from inductor.lowering.pointwise import DEAR, Kind, Scalar, pointwise, promoted
from inductor.lowering.registry import Call, lowering
from inductor.lowering.tensor import HALVES, Tensor

aten = torch.ops.aten
FLOAT_SIXTH = 0.1666666716337204  # the float32 next to 1/6


class Arithmetic:
    """Python operators over values, for formulas: `k(v)` wraps, `.value` unwraps."""

    def __init__(self, ops: Ops, value: Value) -> None:
        self.ops = ops
        self.value = value

    def of(self, other: Any) -> Value:
        if isinstance(other, Arithmetic):
            return other.value
        return self.ops.constant(other, self.value.dtype)

    def call(self, name: str, *others: Any) -> Arithmetic:
        return Arithmetic(self.ops, self.ops.call(name, self.value, *map(self.of, others)))

    def __add__(self, other: Any) -> Arithmetic:
        return self.call("add", other)

    def __sub__(self, other: Any) -> Arithmetic:
        return self.call("sub", other)

    def __mul__(self, other: Any) -> Arithmetic:
        return self.call("mul", other)

    def __truediv__(self, other: Any) -> Arithmetic:
        return self.call("truediv", other)

    def __rsub__(self, other: Any) -> Arithmetic:
        return Arithmetic(self.ops, self.of(other)).call("sub", self)

    def __rtruediv__(self, other: Any) -> Arithmetic:
        return Arithmetic(self.ops, self.of(other)).call("truediv", self)

    def __neg__(self) -> Arithmetic:
        return self.call("neg")

    def clamp(self, low: Any, high: Any) -> Arithmetic:
        """minimum(maximum(self, low), high): NaN stays NaN."""
        return self.call("maximum", low).call("minimum", high)

    def choose(self, yes: Any, no: Any) -> Arithmetic:
        """`yes` where this bool value is true, else `no`; one of both is an Arithmetic."""
        like = yes if isinstance(yes, Arithmetic) else no
        return Arithmetic(self.ops, self.ops.where(self.value, like.of(yes), like.of(no)))


Formula = Callable[..., Arithmetic]


def _apply(call: Call, tensors: list[Tensor], formula: Formula, cost: int = DEAR) -> Any:
    dtype = promoted(tensors)
    if dtype_kind(dtype) != "f":
        return call.refuse(f"{call.target} of {dtype}")

    def function(ops: Ops, *values: Value) -> Value:
        return formula(*(Arithmetic(ops, value) for value in values)).value

    return pointwise(call, tensors, function, dtype, cost)


@lowering(aten.relu.default)
def relu(call: Call, x: Tensor) -> Any:
    if x.dtype is torch.bool:
        return call.refuse("relu of bool")

    def function(ops: Ops, v: Value) -> Value:
        return ops.maximum(v, ops.constant(0, v.dtype))

    return pointwise(call, [x], function)


@lowering(aten.gelu.default)
def gelu(call: Call, x: Tensor, approximate: str = "none") -> Any:
    if approximate == "tanh":
        beta, kappa = math.sqrt(2) * 2 / math.sqrt(math.pi) * 0.5, 0.044715
        return _apply(
            call, [x], lambda v: v * 0.5 * (((v + v * v * v * kappa) * beta).call("tanh") + 1.0)
        )
    return _apply(call, [x], lambda v: v * 0.5 * ((v * math.sqrt(0.5)).call("erf") + 1.0))


@lowering(aten.silu.default)
def silu(call: Call, x: Tensor) -> Any:
    return _apply(call, [x], lambda v: v / ((-v).call("exp") + 1.0))


@lowering(aten.mish.default)
def mish(call: Call, x: Tensor) -> Any:
    return _apply(call, [x], lambda v: v * _log_of_one_and_exp(v).call("tanh"), 3 * DEAR)


@lowering(aten.hardtanh.default)
def hardtanh(call: Call, x: Tensor, low: Scalar = -1, high: Scalar = 1) -> Any:
    if dtype_kind(x.dtype) != "f":
        return call.refuse(f"hardtanh of {x.dtype}")
    return _clamp(call, x, low, high)


@lowering(aten.relu6.default)
def relu6(call: Call, x: Tensor) -> Any:
    return hardtanh(call, x, 0, 6)


def _sixth(x: Tensor, v: Arithmetic) -> Arithmetic:
    """A sixth of it; ATen's GPU kernels multiply by a float32, for all dtypes."""
    return v / 6.0 if x.layout.device.type == "cpu" else v * FLOAT_SIXTH


@lowering(aten.hardsigmoid.default)
def hardsigmoid(call: Call, x: Tensor) -> Any:
    return _apply(call, [x], lambda v: _sixth(x, (v + 3.0).clamp(0.0, 6.0)), 6)


@lowering(aten.hardswish.default)
def hardswish(call: Call, x: Tensor) -> Any:
    return _apply(call, [x], lambda v: _sixth(x, v * (v + 3.0).clamp(0.0, 6.0)), 7)


@lowering(aten.leaky_relu.default)
def leaky_relu(call: Call, x: Tensor, slope: Scalar = 0.01) -> Any:
    return _apply(call, [x], lambda v: v.call("gt", 0.0).choose(v, v * slope), 3)


@lowering(aten.elu.default)
def elu(call: Call, x: Tensor, alpha: Scalar = 1, scale: Scalar = 1, inner: Scalar = 1) -> Any:
    negative = lambda v: (v * inner).call("expm1") * (alpha * scale)  # noqa: E731
    return _apply(call, [x], lambda v: v.call("gt", 0.0).choose(v * scale, negative(v)))


@lowering(aten.celu.default)
def celu(call: Call, x: Tensor, alpha: Scalar = 1.0) -> Any:
    return elu(call, x, alpha, 1.0, 1.0 / alpha)


@lowering(aten.selu.default)
def selu(call: Call, x: Tensor) -> Any:
    return elu(call, x, 1.6732632423543772848170429916717, 1.0507009873554804934193349852946)


@lowering(aten.softplus.default)
def softplus(call: Call, x: Tensor, beta: Scalar = 1, threshold: Scalar = 20) -> Any:
    if beta == 1:
        small = lambda v: v.call("gt", threshold).choose(v, _log_of_one_and_exp(v))  # noqa: E731
        return _apply(call, [x], small, 2 * DEAR)
    soft = lambda v: _log_of_one_and_exp(v * beta) / beta  # noqa: E731
    large = lambda v: (v * beta).call("gt", threshold)  # noqa: E731
    return _apply(call, [x], lambda v: large(v).choose(v, soft(v)), 2 * DEAR)


def _log_of_one_and_exp(v: Arithmetic) -> Arithmetic:
    return v.call("exp").call("log1p")


@lowering(aten.threshold.default)
def threshold(call: Call, x: Tensor, bound: Scalar, value: Scalar) -> Any:
    return _apply(call, [x], lambda v: v.call("le", bound).choose(value, v), 2)


@lowering(aten.prelu.default, aten._prelu_kernel.default)
def prelu(call: Call, x: Tensor, weight: Tensor) -> Any:
    if call.target is aten.prelu.default and weight.size not in ((), (1,)):
        return call.refuse("prelu with a weight for each channel")
    return _apply(call, [x, weight], lambda v, w: v.call("gt", 0.0).choose(v, v * w), 3)


@lowering(aten.softshrink.default)
def softshrink(call: Call, x: Tensor, bound: Scalar = 0.5) -> Any:
    def formula(v: Arithmetic) -> Arithmetic:
        # NaN stays NaN
        inside = v.call("le", -bound).choose(v + bound, v * 0.0)
        return v.call("gt", bound).choose(v - bound, inside)

    return _apply(call, [x], formula, 5)


@lowering(aten.sigmoid_backward.default)
def sigmoid_backward(call: Call, grad: Tensor, y: Tensor) -> Any:
    return _apply(call, [grad, y], lambda g, v: g * (1.0 - v) * v, 3)


@lowering(aten.tanh_backward.default)
def tanh_backward(call: Call, grad: Tensor, y: Tensor) -> Any:
    return _apply(call, [grad, y], lambda g, v: g * (1.0 - v * v), 3)


@lowering(aten.threshold_backward.default)
def threshold_backward(call: Call, grad: Tensor, x: Tensor, bound: Scalar) -> Any:
    return _apply(call, [grad, x], lambda g, v: v.call("le", bound).choose(0.0, g), 2)


@lowering(aten.clamp.default, aten.clip.default)
def clamp(call: Call, x: Tensor, low: Any = None, high: Any = None) -> Any:
    return _clamp(call, x, low, high)


@lowering(aten.clamp_min.default, aten.clamp_min.Tensor)
def clamp_min(call: Call, x: Tensor, low: Any) -> Any:
    return _clamp(call, x, low, None)


@lowering(aten.clamp_max.default, aten.clamp_max.Tensor)
def clamp_max(call: Call, x: Tensor, high: Any) -> Any:
    return _clamp(call, x, None, high)


@lowering(aten.clamp.Tensor)
def clamp_tensor(call: Call, x: Tensor, low: Any = None, high: Any = None) -> Any:
    return _clamp(call, x, low, high)


def _clamp(call: Call, x: Tensor, low: Any, high: Any) -> Any:
    bounds = [bound for bound in (low, high) if bound is not None]
    dtype = promoted([x, *bounds])
    if dtype_kind(dtype) == "b":
        return call.refuse("clamp of bool")
    if x.layout.device.type != "cpu" and any(type(b) is float and b != b for b in bounds):
        return call.refuse("a bound that is no number, which kernels there ignore")

    def function(ops: Ops, v: Value, *limits: Value) -> Value:
        rest = list(limits)
        if low is not None:
            v = ops.maximum(v, rest.pop(0))
        return ops.minimum(v, rest.pop(0)) if high is not None else v

    return pointwise(call, [x, *bounds], function, dtype, 2, rounds=True)


@lowering(aten._to_copy.default)
def to_copy(call: Call, x: Tensor, **kwargs: Any) -> Any:
    device = kwargs.get("device")
    if device is not None and torch.device(device) != x.layout.device:
        return call.refuse("a copy to another device")
    if kwargs.get("pin_memory") or kwargs.get("layout") not in (None, torch.strided):
        return call.refuse("a copy to another kind of memory")
    goal = call.result.dtype
    # What the program takes out of half precision is what eager has there; float8 and statistics
    # in float32 come out as eager's. (On a CPU that takes more instructions than the rest.)
    rounds = x.layout.device.type != "cpu" and x.dtype in HALVES
    rounds &= goal in (torch.float32, torch.float64)

    def function(ops: Ops, v: Value) -> Value:
        v = ops.as_held(v, x.dtype) if rounds else v
        return ops.to_dtype(v, goal)  # rounds to half precision where asked

    return pointwise(call, [x], function, promoted([x]))


@lowering(aten.clone.default, aten.contiguous.default, aten.lift_fresh_copy.default)
def clone(call: Call, x: Tensor, memory_format: Any = None) -> Any:
    return pointwise(call, [x], lambda ops, v: v, promoted([x]), 0)


@lowering(torch.ops.prims.convert_element_type.default)
def convert_element_type(call: Call, x: Tensor, dtype: torch.dtype) -> Any:
    return to_copy(call, x)


@lowering(aten.lerp.Scalar, aten.lerp.Tensor)
def lerp(call: Call, start: Tensor, end: Tensor, weight: Any) -> Any:
    dtype = promoted([start, end], Kind.DEFAULT)

    def function(ops: Ops, a: Value, b: Value, w: Value) -> Value:
        weight = Arithmetic(ops, w)
        is_near = weight.call("abs").call("lt", 0.5)
        factor = is_near.choose(weight, weight - 1.0)
        return ops.fma(factor.value, ops.sub(b, a), ops.where(is_near.value, a, b))

    return pointwise(call, [start, end, weight], function, dtype, 8)


@lowering(aten.addcmul.default)
def addcmul(call: Call, x: Tensor, a: Tensor, b: Tensor, value: Scalar = 1) -> Any:
    if value == 1:
        return _apply(call, [x, a, b], lambda v, p, q: p.call("fma", q, v), 3)
    if call.builder.device.type != "cpu":  # in the order of ATen's kernels there
        return _apply(call, [x, a, b], lambda v, p, q: (p * q).call("fma", value, v), 3)
    return _apply(call, [x, a, b], lambda v, p, q: (p * value).call("fma", q, v), 3)


@lowering(aten.addcdiv.default)
def addcdiv(call: Call, x: Tensor, a: Tensor, b: Tensor, value: Scalar = 1) -> Any:
    if call.builder.device.type != "cpu":
        return _apply(call, [x, a, b], lambda v, p, q: (p / q).call("fma", value, v), 6)
    return _apply(call, [x, a, b], lambda v, p, q: v + p * value / q, 6)
