"""Arithmetic of numpy arrays: operators and universal functions.

Numpy says in which dtype it computes (`ufunc.resolve_dtypes`); the graph converts, computes by
torch, and converts the result.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy
import torch

from dynamo.base.errors import Break
from dynamo.base.words import shown
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.table import first_rule, rule
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.numpy.array import TORCH_DTYPES, ArrayVar, DtypeVar
from dynamo.symbolic.numpy.array_calls import CPU, Call, ask, call, is_about_arrays, plain
from dynamo.symbolic.python.classes import ClassVar
from dynamo.symbolic.python.lists import TupleVar
from dynamo.symbolic.shapes.numbers import is_symbolic
from dynamo.symbolic.tensors.tensor import TensorVar

WHOLE = ("bool", "uint8", "int8", "int16", "int32", "int64")
FLOATS = ("float32", "float64")
ALL = (*WHOLE, *FLOATS)
# ufunc of numpy -> function of torch, and the dtypes that both compute alike in.
UFUNCS: dict[Any, tuple[Any, tuple[str, ...]]] = {
    **{getattr(numpy, name): (getattr(torch, name), ALL) for name in (
        "add", "subtract", "multiply", "maximum", "minimum", "logical_and", "logical_or",
        "logical_xor", "logical_not", "absolute", "less", "less_equal", "greater", "greater_equal",
        "not_equal", "negative", "square", "isfinite", "isinf", "isnan")},
    **{getattr(numpy, name): (getattr(torch, name), FLOATS) for name in (
        "true_divide", "sqrt", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin",
        "cos", "tan", "arcsin", "arccos", "arctan", "arctan2", "sinh", "cosh", "tanh", "arcsinh",
        "arccosh", "arctanh", "hypot", "floor", "ceil", "trunc", "fmax", "fmin", "reciprocal",
        "copysign", "signbit", "deg2rad", "logaddexp", "fmod")},
    numpy.equal: (torch.eq, ALL),
    **{getattr(numpy, name): (getattr(torch, name), WHOLE) for name in (
        "bitwise_and", "bitwise_or", "bitwise_xor")},
    numpy.invert: (torch.bitwise_not, WHOLE),
    numpy.rint: (torch.round, FLOATS),
    numpy.positive: (torch.clone, ALL),
    numpy.power: (torch.pow, ALL),
    numpy.floor_divide: (torch.floor_divide, ALL[1:]),
    numpy.remainder: (torch.remainder, ALL[1:]),
    numpy.matmul: (torch.matmul, ("int32", "int64", *FLOATS)),
}
OPERATORS: dict[Any, Any] = {
    operator.add: numpy.add, operator.sub: numpy.subtract, operator.mul: numpy.multiply,
    operator.truediv: numpy.true_divide, operator.floordiv: numpy.floor_divide,
    operator.mod: numpy.remainder, operator.pow: numpy.power, operator.matmul: numpy.matmul,
    operator.and_: numpy.bitwise_and, operator.or_: numpy.bitwise_or,
    operator.xor: numpy.bitwise_xor, operator.lt: numpy.less, operator.le: numpy.less_equal,
    operator.gt: numpy.greater, operator.ge: numpy.greater_equal, operator.eq: numpy.equal,
    operator.ne: numpy.not_equal, operator.neg: numpy.negative, operator.pos: numpy.positive,
    operator.invert: numpy.invert, abs: numpy.absolute,
}
INPLACE: dict[Any, Any] = {
    getattr(operator, "i" + real.__name__.strip("_")): (real, ufunc)
    for real, ufunc in OPERATORS.items() if hasattr(operator, "i" + real.__name__.strip("_"))
}
NEED_POSITIVE = (numpy.floor_divide, numpy.remainder)


def loop_of(ufunc: Any, values: tuple[Any, ...]) -> list[torch.dtype]:
    """The dtypes that numpy computes in, the result's last."""
    kinds: list[Any] = [type(value) if type(value) in (int, float) else numpy.asarray(value).dtype
                        for value in values]
    found = ask(ufunc.resolve_dtypes, (*kinds, None))
    if any(dtype not in TORCH_DTYPES or dtype.name not in ALL for dtype in found):
        raise Break("call_of_unknown_function", f"numpy's {ufunc.__name__} in {found}")
    for value, dtype in zip(values, found, strict=False):
        if type(value) is int and dtype.kind in "biu":
            low, high = (0, 1) if dtype.kind == "b" else (
                numpy.iinfo(dtype).min, numpy.iinfo(dtype).max)
            if not low <= value <= high:
                raise Break(
                    "call_of_unknown_function", f"numpy's {ufunc.__name__} with {shown(value)}")
    return [TORCH_DTYPES[dtype] for dtype in found]


def check_values(ufunc: Any, loop: list[torch.dtype], args: tuple[Any, ...]) -> None:
    """Where the values decide: divisions of ints by what may be 0, powers of ints."""
    second = args[1] if len(args) > 1 else None
    known = int(second) if type(second) is int or isinstance(second, numpy.integer) else -1
    whole = not loop[-1].is_floating_point
    if whole and ufunc in NEED_POSITIVE and known <= 0:
        raise Break("call_of_unknown_function", f"numpy's {ufunc.__name__} by {second!r}")
    if whole and ufunc is numpy.power:
        if known < 0:
            raise Break("call_of_unknown_function", f"numpy's power by {second!r}")


def computed(ufunc: Any, shadows: tuple[Any, ...]) -> Callable[..., Any]:
    """What computes a ufunc of these shadows by torch."""
    function, dtypes = UFUNCS[ufunc]
    loop = loop_of(ufunc, shadows)
    if any(str(dtype).removeprefix("torch.") not in dtypes for dtype in loop[:-1]):
        raise Break("call_of_unknown_function", f"numpy's {ufunc.__name__} in {loop}")

    def compute(call: Call, *args: Any) -> Any:
        check_values(ufunc, loop, args)
        values = [prepared(call, arg, dtype) for arg, dtype in zip(args, loop, strict=False)]
        if not isinstance(values[0], TensorVar):  # not all of torch's take a number
            values[0] = call(torch.full, (), values[0], dtype=loop[0], device=CPU)
        takes = len(values) < 2 or function in TAKE_NUMBERS
        if not takes and not isinstance(values[1], TensorVar):
            values[1] = call(torch.full, (), values[1], dtype=loop[1], device=CPU)
        result = call(function, *values)
        if ufunc is numpy.remainder and loop[-1].is_floating_point:  # a zero has the divisor's sign
            signed = call(torch.copysign, result, values[1])
            result = call(torch.where, call(torch.eq, result, 0), signed, result)
        return call.cast(result, loop[-1])

    return compute


TAKE_NUMBERS = (
    torch.add, torch.subtract, torch.multiply, torch.true_divide, torch.eq, torch.less,
    torch.less_equal, torch.greater, torch.greater_equal, torch.not_equal, torch.pow,
    torch.floor_divide, torch.remainder,
)


def prepared(call: Call, arg: Any, dtype: torch.dtype) -> Any:
    """An operand in the dtype that numpy computes in."""
    if isinstance(arg, TensorVar):
        return call.cast(arg, dtype)
    if isinstance(arg, numpy.generic | int | float):
        return number(arg, dtype)
    if isinstance(arg, Var):  # a symbolic number
        return arg
    raise TypeError(f"{arg!r} is no number")


def number(value: Any, dtype: torch.dtype) -> int | float | bool:
    kind = bool if dtype is torch.bool else float if dtype.is_floating_point else int
    return kind(value)  # type: ignore[no-any-return]


def apply_ufunc(
    tx: Frame, real: Any, ufunc: Any, args: tuple[Var, ...]
) -> Var:
    """`real(*args)`, which is the ufunc or its operator."""
    narrow = WHOLE if ufunc in (*NEED_POSITIVE, numpy.power) else WHOLE[:-1]
    if any(isinstance(arg, ArrayVar) and arg.dtype.name in narrow for arg in args):
        args = tuple(ConstVar(arg.as_constant()) if is_symbolic(arg) else arg for arg in args)
    shadows = tuple(plain(arg)[0] for arg in args)
    if any(isinstance(shadow, list | tuple | str | type(None)) for shadow in shadows):
        raise Break("operator_unknown", f"numpy's {ufunc.__name__} of {args}")
    return call(tx, real, computed(ufunc, shadows), args, {})


def write(tx: Frame, target: ArrayVar, value: Var) -> Var:
    """Writes a result, which lies in memory of its own, into an array."""
    assert isinstance(value, ArrayVar)
    tx.trace.call(tx, torch.Tensor.copy_, target.tensor, value.tensor)
    return target


def check_write(target: ArrayVar) -> None:
    fake = target.tensor.fake
    if target.scalar or target.read_only or fake.dim() and 0 in fake.stride():
        raise Break("operator_unknown", f"writing into {target!r}")


def ufunc_rule(ufunc: Any) -> None:
    """The row of a ufunc that is called by name."""

    @rule(ufunc)
    def evaluate(tx: Frame, /, *args: Var, **kwargs: Var) -> Var | None:
        out = kwargs.pop("out", None)
        if not is_about_arrays(args) or len(args) != ufunc.nin or kwargs:
            return None
        if out is None or out.is_constant() and out.as_constant() is None:
            return apply_ufunc(tx, ufunc, ufunc, args)
        if not isinstance(out, ArrayVar):
            return None
        return into(tx, ufunc, ufunc, args, out)


def into(tx: Frame, real: Any, ufunc: Any, args: tuple[Var, ...], out: ArrayVar) -> Var:
    """`ufunc(*args, out=out)`."""
    check_write(out)
    shadows = [plain(arg)[0] for arg in args]
    ask(ufunc, *shadows, out=plain(out)[0])
    result = apply_ufunc(tx, real, ufunc, args)
    assert isinstance(result, ArrayVar)
    if tuple(result.tensor.fake.shape) != tuple(out.tensor.fake.shape) and ufunc is numpy.matmul:
        raise Break("operator_unknown", "matmul into another shape")
    return write(tx, out, result)


def operator_rule(real: Any, ufunc: Any) -> None:
    """The rows of an operator."""
    kinds = [(ArrayVar,)] if ufunc.nin == 1 else [(ArrayVar, Var), (Var, ArrayVar)]
    for kind in kinds:

        @first_rule(real, *kind)
        def evaluate(tx: Frame, *args: Var) -> Var:
            if any(var.python_type() is type(None) for var in args):
                raise Break("operator_unknown", f"numpy's {ufunc.__name__} of None")
            return apply_ufunc(tx, real, ufunc, args)


def inplace_rule(name: Any, real: Any, ufunc: Any) -> None:
    """The rows of `a += b`."""

    @first_rule(name, Var, ArrayVar)
    def reflected(tx: Frame, a: Var, b: ArrayVar) -> Var:
        return apply_ufunc(tx, real, ufunc, (a, b))

    @first_rule(name, ArrayVar, Var)
    def evaluate(tx: Frame, a: ArrayVar, b: Var) -> Var:
        if a.scalar:
            return apply_ufunc(tx, real, ufunc, (a, b))
        if ufunc is numpy.matmul:
            raise Break("operator_unknown", "a @= b of arrays")
        return into(tx, real, ufunc, (a, b), a)


for _ufunc in UFUNCS:
    ufunc_rule(_ufunc)
for _real, _ufunc in OPERATORS.items():
    operator_rule(_real, _ufunc)
for _name, (_real, _ufunc) in INPLACE.items():
    inplace_rule(_name, _real, _ufunc)


@first_rule([operator.lshift, operator.rshift, operator.ilshift, operator.irshift, round,
             bool, complex, str, repr, format, hash, operator.index, bytes],
            ArrayVar)
def refuse(tx: Frame, *args: Var) -> Var:
    raise Break("item", f"{args[0]!r} is read into Python")


@first_rule([operator.lshift, operator.rshift, operator.ilshift, operator.irshift],
            Var, ArrayVar)
def refuse_reflected(tx: Frame, *args: Var) -> Var:
    raise Break("operator_unknown", f"an operator between {args}")


def divide_both(tx: Frame, a: Var, b: Var) -> Var:
    """`divmod(a, b)`."""
    return TupleVar([apply_ufunc(tx, ufunc, ufunc, (a, b))
                     for ufunc in (numpy.floor_divide, numpy.remainder)])


first_rule(divmod, ArrayVar, Var)(divide_both)
first_rule(divmod, Var, ArrayVar)(divide_both)


def dtype_of(var: Var) -> Any:
    """The dtype that a value names; None for none."""
    constant = var.as_constant() if var.is_constant() else None
    value = var.cls if isinstance(var, ClassVar) else constant
    return None if value is None else ask(numpy.dtype, value)


def compare_dtypes(real: Any) -> None:
    for kinds in ((DtypeVar, Var), (Var, DtypeVar)):

        @first_rule(real, *kinds)
        def evaluate(tx: Frame, a: Var, b: Var) -> Var:
            pair = [dtype_of(a), dtype_of(b)]
            if any(dtype is None for dtype in pair):
                raise Break("operator_unknown", f"{a!r} == {b!r}")
            return ConstVar(bool(real(*pair)))


for _real in (operator.eq, operator.ne):
    compare_dtypes(_real)
