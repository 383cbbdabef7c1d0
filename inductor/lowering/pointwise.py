"""Lowerings of operators that work element by element.

Values are computed in the dtype that eager computes in: the promoted dtype of the operands, float32
for half precision. A row of `UNARY` or `BINARY` names the scalar operation and how dtypes promote.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

import torch

from inductor.ir.body import Ops, Value, is_small
from inductor.ir.extent import Real, hint_of
from inductor.ir.index import constant
from inductor.ir.scalar_ops import dtype_kind
from inductor.lowering.registry import Call, lowering
from inductor.lowering.tensor import HALVES, QUARTERS, Indices, Tensor, compute_dtype, fits

aten = torch.ops.aten
Scalar = bool | int | float
Function = Callable[..., Value]
DEAR = 8  # cost of a function that is not plain arithmetic


def broadcast(tensor: Tensor, indices: Indices) -> Indices:
    """The index of `tensor` for an index of the broadcast result."""
    skip = len(indices) - len(tensor.size)
    return tuple(
        constant(0) if extent == 1 else index
        for extent, index in zip(tensor.size, indices[skip:], strict=True)
    )


def broadcast_sizes(sizes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """The sizes of the broadcast result of tensors that do broadcast."""
    rank = max(map(len, sizes))
    result = [1] * rank
    for size in sizes:
        for place, extent in enumerate(size, rank - len(size)):
            if extent != 1:
                result[place] = extent
    return tuple(result)


def load_as(ops: Ops, operand: Any, indices: Indices, dtype: torch.dtype) -> Value:
    """An operand (tensor or number) as a value of `dtype`, broadcast."""
    if isinstance(operand, Tensor):
        return ops.to_dtype(operand.load(ops, broadcast(operand, indices)), dtype)
    return ops.constant(operand, dtype)


class Kind(Enum):
    """How eager chooses the dtype that it computes in."""

    DEFAULT = "of the operands"
    INT_TO_FLOAT = "of the operands, integers as the default float"


def promoted(operands: Sequence[Any], kind: Kind = Kind.DEFAULT) -> torch.dtype:
    """The dtype that eager computes in, as it is held inside of a body."""
    dtype = _promotion(operands)
    if kind is Kind.INT_TO_FLOAT and dtype_kind(dtype) in "bi":
        dtype = torch.get_default_dtype()
    return compute_dtype(dtype)


def _promotion(operands: Sequence[Any]) -> torch.dtype:
    facts = [_fact(operand) for operand in operands]
    found = facts[0]
    for other in facts[1:]:
        dtype = torch.result_type(found, other)
        found = _stand_in(dtype, _has_dimension(found) or _has_dimension(other))
    return found.dtype if isinstance(found, torch.Tensor) else torch.result_type(found, False)


def _fact(operand: Any) -> Any:
    """What promotion looks at: a tensor or number of the same kind."""
    if isinstance(operand, Tensor):
        return _stand_in(operand.dtype, len(operand.size) > 0)
    return 1.0 if isinstance(operand, Real) else hint_of(operand)


def _has_dimension(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() > 0


@functools.cache
def _stand_in(dtype: torch.dtype, dimension: bool) -> torch.Tensor:
    """A tensor of the same dtype and, as far as promotion looks, dimension."""
    return torch.empty((1,) if dimension else (), dtype=dtype)


def unsupported(operands: Sequence[Any]) -> str:
    """Why the operands can't be computed here; empty if they can."""
    for operand in operands:
        if isinstance(operand, complex):
            return "complex numbers fall back to ATen"
        if isinstance(operand, Tensor):
            if dtype_kind(operand.dtype) == "c":
                return "complex numbers fall back to ATen"
            if is_small(operand.dtype) and is_odd(operand.dtype, operand.layout.device):
                return "8-bit floats fall back to ATen"
            if operand.dtype in (torch.uint16, torch.uint32, torch.uint64):
                return "wide unsigned integers fall back to ATen"
    return ""


def pointwise(
    call: Call,
    operands: Sequence[Any],
    function: Function,
    dtype: torch.dtype | None = None,
    cost: int = 1,
    rounds: bool = False,
) -> Any:
    """`function(ops, *values)` of operands that were converted to `dtype` (default: promoted).
    rounds: numbers among half precision are rounded to it first, as eager's kernels take them."""
    device = call.builder.device
    why = unsupported(operands)
    if why or is_odd(call.result.dtype, device):
        return call.refuse(why or f"{call.result.dtype} falls back to ATen")
    held = promoted(operands) if dtype is None else dtype
    goal = compute_dtype(call.result.dtype)
    narrow = _promotion(operands) if rounds and held is torch.float32 else held

    def load(ops: Ops, operand: Any, indices: Indices) -> Value:
        value = load_as(ops, operand, indices, held)
        if narrow not in HALVES or _has_axes(operand):
            return value
        return ops.to_dtype(ops.to_dtype(value, narrow), held)

    def compute(ops: Ops, indices: Indices) -> Value:
        values = [load(ops, operand, indices) for operand in operands]
        return ops.to_dtype(function(ops, *values), goal)

    tensors = [operand for operand in operands if isinstance(operand, Tensor)]
    return call.builder.computed(call.layout, tensors, cost, compute)


def _has_axes(operand: Any) -> bool:
    return isinstance(operand, Tensor) and len(operand.size) > 0


def is_odd(dtype: torch.dtype, device: torch.device | None = None) -> bool:
    """Complex numbers, wide unsigned integers, 8-bit floats where the device has no instructions
    for them: a fallback to ATen."""
    if is_small(dtype):
        return dtype not in QUARTERS or device is None or not converts_small_floats(device)
    return dtype.is_complex or dtype in (torch.uint16, torch.uint32, torch.uint64)


def converts_small_floats(device: torch.device) -> bool:
    """Whether kernels on a device can load and store 8-bit floats."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 9)


def _row(name: str) -> Function:
    return lambda ops, *values: ops.call(name, *values)


# operator name -> (scalar operation, promotion, cost)
UNARY: dict[str, tuple[str, Kind, int]] = {
    "neg": ("neg", Kind.DEFAULT, 1),
    "floor": ("floor", Kind.DEFAULT, 1),
    "ceil": ("ceil", Kind.DEFAULT, 1),
    "trunc": ("trunc", Kind.DEFAULT, 1),
    "round": ("round", Kind.DEFAULT, 1),
    "sign": ("sign", Kind.DEFAULT, 1),
    "sgn": ("sign", Kind.DEFAULT, 1),  # of real numbers; complex ones fall back
    "sqrt": ("sqrt", Kind.INT_TO_FLOAT, 4),
    **{
        name: (name, Kind.INT_TO_FLOAT, DEAR)
        for name in (
            "exp exp2 expm1 log log2 log10 log1p rsqrt sin cos tan asin acos atan sinh cosh tanh "
            "asinh acosh atanh erf erfc sigmoid lgamma"
        ).split()
    },
}

ROUNDING = {"floor", "ceil", "trunc", "round"}

BINARY: dict[str, tuple[str, Kind, int]] = {
    "mul.Tensor": ("mul", Kind.DEFAULT, 1),
    "mul.Scalar": ("mul", Kind.DEFAULT, 1),
    "maximum": ("maximum", Kind.DEFAULT, 1),
    "minimum": ("minimum", Kind.DEFAULT, 1),
    "remainder.Tensor": ("remainder", Kind.DEFAULT, 4),
    "remainder.Scalar": ("remainder", Kind.DEFAULT, 4),
    "fmod.Tensor": ("fmod", Kind.DEFAULT, 4),
    "fmod.Scalar": ("fmod", Kind.DEFAULT, 4),
    "atan2": ("atan2", Kind.INT_TO_FLOAT, DEAR),
    "hypot": ("hypot", Kind.DEFAULT, DEAR),
    "copysign.Tensor": ("copysign", Kind.INT_TO_FLOAT, 1),
    "copysign.Scalar": ("copysign", Kind.INT_TO_FLOAT, 1),
}

COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
BITWISE = ("bitwise_and", "bitwise_or", "bitwise_xor")


def _overload(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(aten, packet), overload or "default")


def _enter_unary(name: str, op: str, kind: Kind, cost: int) -> None:
    @lowering(_overload(name))
    def lower(call: Call, x: Tensor) -> Any:
        dtype = promoted([x], kind)
        if dtype_kind(dtype) == "b" or (dtype_kind(dtype) == "i" and op not in ("neg", "sign")):
            if op not in ROUNDING:
                return call.refuse(f"{name} of {x.dtype}")
            return pointwise(call, [x], lambda ops, value: value, dtype)
        return pointwise(call, [x], _row(op), dtype, cost)


def _enter_binary(name: str, op: str, kind: Kind, cost: int) -> None:
    @lowering(_overload(name))
    def lower(call: Call, x: Any, y: Any) -> Any:
        dtype = promoted([x, y], kind)
        if dtype_kind(dtype) == "b":
            if op != "mul":
                return call.refuse(f"{name} of {dtype}")
            return pointwise(call, [x, y], _row("bitwise_and"), dtype)
        if op in ("remainder", "fmod") and dtype_kind(dtype) == "i" and not _divides(y, dtype):
            return call.refuse("integer division by a number that may be zero")
        rounds = op in ("remainder", "fmod", "atan2") and _is_alone(x, y)
        rounds = rounds or op == "hypot" and _on_cpu_alone(call, x, y)
        return pointwise(call, [x, y], _row(op), dtype, cost, rounds)


@lowering(aten.xlogy.Tensor, aten.xlogy.Scalar_Self, aten.xlogy.Scalar_Other)
def xlogy(call: Call, x: Any, y: Any) -> Any:
    """x * log(y), where the logarithm is rounded to the result's dtype, as by ATen."""
    dtype = promoted([x, y], Kind.INT_TO_FLOAT)
    narrow = call.result.dtype

    def compute(ops: Ops, a: Value, b: Value) -> Value:
        power = ops.to_dtype(ops.to_dtype(ops.call("log", b), narrow), dtype)
        zero = ops.constant(0, dtype)
        value = ops.where(ops.eq(a, zero), zero, ops.mul(a, power))
        return ops.where(ops.call("isnan", b), b, value)

    return pointwise(call, [x, y], compute, dtype, DEAR)


def _is_alone(x: Any, y: Any) -> bool:
    """Whether one of them is a number, or a tensor of one without axes: promotion leaves the
    dtype to the other."""
    return not (_has_axes(x) and _has_axes(y))


def _on_cpu_alone(call: Call, x: Any, y: Any) -> bool:
    """Where ATen's kernels on a CPU round a number beside half precision; those of a GPU, and those
    of products and quotients, do not."""
    return call.builder.device.type == "cpu" and _is_alone(x, y)


def _enter_comparison(name: str) -> None:
    @lowering(_overload(f"{name}.Tensor"), _overload(f"{name}.Scalar"))
    def lower(call: Call, x: Any, y: Any) -> Any:
        return pointwise(call, [x, y], _row(name), rounds=_is_alone(x, y))


def _enter_bitwise(name: str) -> None:
    @lowering(_overload(f"{name}.Tensor"), _overload(f"{name}.Scalar"))
    def lower(call: Call, x: Any, y: Any) -> Any:
        return pointwise(call, [x, y], _row(name))


SHIFTS = {
    "shift_left": (
        aten.bitwise_left_shift.Tensor, aten.bitwise_left_shift.Tensor_Scalar,
        aten.__lshift__.Tensor, aten.__lshift__.Scalar,
    ),
    "shift_right": (
        aten.bitwise_right_shift.Tensor, aten.bitwise_right_shift.Tensor_Scalar,
        aten.__rshift__.Tensor, aten.__rshift__.Scalar,
    ),
}  # fmt: skip


MOST_SHIFT = 64


def _enter_shift(name: str) -> None:
    @lowering(*SHIFTS[name])
    def lower(call: Call, x: Any, y: Any) -> Any:
        if dtype_kind(promoted([x, y])) != "i":
            return call.refuse("a shift of other than integers")
        if not isinstance(y, Tensor) and not 0 <= y < MOST_SHIFT:
            return call.refuse("a shift by a number that no integer has as many bits as")
        return pointwise(call, [x, y], _row(name))


for _name, _entry in UNARY.items():
    _enter_unary(_name, *_entry)
for _name, _entry in BINARY.items():
    _enter_binary(_name, *_entry)
for _name in COMPARISONS:
    _enter_comparison(_name)
for _name in BITWISE:
    _enter_bitwise(_name)
for _name in SHIFTS:
    _enter_shift(_name)


@lowering(aten.add.Tensor, aten.add.Scalar)
def add(call: Call, x: Any, y: Any, alpha: Scalar = 1) -> Any:
    dtype = promoted([x, y])
    if dtype_kind(dtype) == "b":
        if alpha != 1:
            return call.refuse("add of bool with alpha")
        return pointwise(call, [x, y], _row("bitwise_or"), dtype)
    return _sum(call, "add", x, y, alpha, dtype)


def _sum(call: Call, name: str, x: Any, y: Any, alpha: Scalar, dtype: torch.dtype) -> Any:
    rounds = _on_cpu_alone(call, x, y)
    if alpha == 1:
        return pointwise(call, [x, y], _row(name), dtype, rounds=rounds)
    half = call.result.dtype
    if call.builder.device.type == "cpu" and half in HALVES and type(alpha) in (int, float):
        alpha = float(torch.tensor(alpha, dtype=half, device="cpu"))
    return pointwise(call, [x, y], _scaled(name, alpha, dtype), dtype, 2, rounds)


def _scaled(name: str, alpha: Scalar, dtype: torch.dtype) -> Function:
    """a + alpha * b, or a - alpha * b; of floats rounded once, as ATen does."""
    if dtype_kind(dtype) != "f":
        return lambda ops, a, b: ops.call(name, a, ops.mul(b, ops.constant(alpha, dtype)))
    factor = alpha if name == "add" else -alpha
    return lambda ops, a, b: ops.fma(b, ops.constant(factor, dtype), a)


@lowering(aten.sub.Tensor, aten.sub.Scalar)
def sub(call: Call, x: Any, y: Any, alpha: Scalar = 1) -> Any:
    return _sum(call, "sub", x, y, alpha, promoted([x, y]))


@lowering(aten.rsub.Scalar, aten.rsub.Tensor)
def rsub(call: Call, x: Any, y: Any, alpha: Scalar = 1) -> Any:
    return sub(call, y, x, alpha)


@lowering(aten.div.Tensor, aten.div.Scalar, aten.div.Tensor_mode, aten.div.Scalar_mode)
def div(call: Call, x: Any, y: Any, rounding_mode: str | None = None) -> Any:
    if rounding_mode is None:
        dtype = promoted([x, y], Kind.INT_TO_FLOAT)
        if _multiplies(call, x, y):
            return pointwise(call, [x, y], _by_reciprocal, dtype, 1)
        return pointwise(call, [x, y], _row("truediv"), dtype, 4)
    dtype = promoted([x, y])
    if dtype_kind(dtype) != "f":
        return _integer_division(call, x, y, rounding_mode, dtype)
    if rounding_mode == "floor":
        return pointwise(call, [x, y], _row("floordiv"), dtype, DEAR)
    cut = lambda ops, a, b: ops.trunc(ops.truediv(a, b))  # noqa: E731
    return pointwise(call, [x, y], cut, dtype, 4)


def _multiplies(call: Call, x: Any, y: Any) -> bool:
    """Whether eager multiplies with the reciprocal: on a GPU, where it divides by a number. Lists
    are divided by lists of numbers (`aten.div.Scalar`, see `dynamo/aot/foreach.py`)."""
    is_number = isinstance(x, Tensor) and not isinstance(y, Tensor)
    return is_number and call.builder.device.type != "cpu" and call.target is aten.div.Tensor


def _by_reciprocal(ops: Ops, x: Value, y: Value) -> Value:
    number = ops.recorded[y.position].imm
    if type(number) is not float:  # known at a call
        return ops.mul(x, ops.truediv(ops.constant(1.0, y.dtype), y))
    inverse = 1.0 / number if number else math.copysign(math.inf, number)  # in float64, as eager
    if y.dtype is not torch.float64:
        inverse = ctypes.c_float(inverse).value
    return ops.mul(x, ops.constant(inverse, y.dtype))


def _divides(number: Any, dtype: torch.dtype) -> bool:
    """Whether it is a number that integers can be divided by."""
    return isinstance(number, int) and number != 0 and fits(number, dtype)


def _integer_division(call: Call, x: Any, y: Any, mode: str, dtype: torch.dtype) -> Any:
    if dtype_kind(dtype) == "b" or not _divides(y, dtype):
        return call.refuse("integer division by a number that may be zero")
    row = _row("floordiv" if mode == "floor" else "truncdiv")
    return pointwise(call, [x, y], row, dtype, 4)


@lowering(aten.floor_divide.default, aten.floor_divide.Scalar)
def floor_divide(call: Call, x: Any, y: Any) -> Any:
    return div(call, x, y, "floor")


@lowering(aten.pow.Tensor_Scalar)
def pow_scalar(call: Call, x: Tensor, exponent: Scalar) -> Any:
    dtype = promoted([x, exponent])
    special: dict[float, Function] = {
        1.0: lambda ops, v: v,
        2.0: lambda ops, v: ops.mul(v, v),
        3.0: lambda ops, v: ops.mul(ops.mul(v, v), v),
    }
    if dtype_kind(dtype) == "f":
        special[0.5] = _row("sqrt")
        special[-0.5] = _row("rsqrt")
        special[-1.0] = lambda ops, v: ops.truediv(ops.constant(1.0, dtype), v)
        special[-2.0] = lambda ops, v: ops.truediv(ops.constant(1.0, dtype), ops.mul(v, v))
    if float(exponent) in special:
        return pointwise(call, [x], special[float(exponent)], dtype, 2)
    if dtype_kind(dtype) != "f":
        return call.refuse("power of integers")
    rounds = _on_cpu_alone(call, x, exponent)
    return pointwise(call, [x, exponent], _row("pow"), dtype, 2 * DEAR, rounds)


@lowering(aten.pow.Tensor_Tensor, aten.pow.Scalar)
def pow_tensor(call: Call, x: Any, exponent: Any) -> Any:
    dtype = promoted([x, exponent])
    if dtype_kind(dtype) != "f":
        return call.refuse("power of integers")
    rounds = _on_cpu_alone(call, x, exponent)
    return pointwise(call, [x, exponent], _row("pow"), dtype, 2 * DEAR, rounds)


@lowering(aten.abs.default)
def abs_(call: Call, x: Tensor) -> Any:
    if x.dtype is torch.bool:
        return pointwise(call, [x], lambda ops, v: v)
    return pointwise(call, [x], _row("abs"))


@lowering(aten.square.default)
def square(call: Call, x: Tensor) -> Any:
    return pointwise(call, [x], lambda ops, v: ops.mul(v, v))


@lowering(aten.reciprocal.default)
def reciprocal(call: Call, x: Tensor) -> Any:
    dtype = promoted([x], Kind.INT_TO_FLOAT)
    return pointwise(
        call, [x], lambda ops, v: ops.truediv(ops.constant(1.0, dtype), v), dtype, 4
    )


@lowering(aten.where.self, aten.where.ScalarOther, aten.where.ScalarSelf, aten.where.Scalar)
def where(call: Call, condition: Tensor, x: Any, y: Any) -> Any:
    why = unsupported([x, y])
    if why or condition.dtype is not torch.bool:
        return call.refuse(why or "a condition that is not bool")
    numbers = (value for value in (x, y) if not isinstance(value, Tensor))
    if not all(fits(value, call.result.dtype, ()) for value in numbers):
        return call.refuse("a number out of range, for which ATen raises")
    dtype = compute_dtype(call.result.dtype)

    def compute(ops: Ops, indices: Indices) -> Value:
        mask = condition.load(ops, broadcast(condition, indices))
        return ops.where(mask, load_as(ops, x, indices, dtype), load_as(ops, y, indices, dtype))

    tensors = [t for t in (condition, x, y) if isinstance(t, Tensor)]
    return call.builder.computed(call.layout, tensors, 1, compute)


@lowering(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def masked_fill(call: Call, x: Tensor, mask: Tensor, value: Any) -> Any:
    return where(call, mask, value, x)


@lowering(aten.logical_not.default)
def logical_not(call: Call, x: Tensor) -> Any:
    return pointwise(call, [x], lambda ops, v: ops.logical_not(_truth(ops, v)), _held(x))


def _enter_logical(name: str) -> None:
    @lowering(_overload(f"logical_{name}"))
    def lower(call: Call, x: Tensor, y: Tensor) -> Any:
        both = lambda ops, a, b: ops.call(f"bitwise_{name}", _truth(ops, a), _truth(ops, b))  # noqa: E731
        return pointwise(call, [x, y], both)


for _name in ("and", "or", "xor"):
    _enter_logical(_name)


def _truth(ops: Ops, value: Value) -> Value:
    return ops.to_dtype(value, torch.bool)


def _held(x: Tensor) -> torch.dtype:
    return compute_dtype(x.dtype)


@lowering(aten.bitwise_not.default)
def bitwise_not(call: Call, x: Tensor) -> Any:
    return pointwise(call, [x], _row("logical_not" if x.dtype is torch.bool else "bitwise_not"))


def _enter_test(name: str) -> None:
    @lowering(_overload(name))
    def lower(call: Call, x: Tensor) -> Any:
        if dtype_kind(x.dtype) != "f":
            return pointwise(call, [x], lambda ops, v: ops.constant(False, torch.bool))
        return pointwise(call, [x], _row(name))


for _name in ("isnan", "isinf"):
    _enter_test(_name)


@lowering(aten.signbit.default)
def signbit(call: Call, x: Tensor) -> Any:
    if dtype_kind(x.dtype) == "b":
        return pointwise(call, [x], lambda ops, v: ops.constant(False, torch.bool))
    if dtype_kind(x.dtype) == "i":
        zero = _held(x)
        return pointwise(call, [x], lambda ops, v: ops.lt(v, ops.constant(0, zero)))
    return pointwise(call, [x], _row("signbit"))
