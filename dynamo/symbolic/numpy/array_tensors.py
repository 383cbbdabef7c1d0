"""From tensors to numpy arrays and back; both lie in the same memory unless a copy is asked for."""

from __future__ import annotations

from typing import Any

import numpy
import torch

from dynamo.base.errors import Break
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.table import first_rule, rule
from dynamo.symbolic.core.var import ObservedException, Var
from dynamo.symbolic.numpy.array import DTYPES, ArrayVar
from dynamo.symbolic.numpy.array_calls import Call, ask, call, hint_of, plain, refusal, shadow_of
from dynamo.symbolic.numpy.arrays import UFUNCS, apply_ufunc
from dynamo.symbolic.tensors.tensor import TensorVar


def as_array(tx: Frame, var: TensorVar) -> ArrayVar:
    """`var.numpy()`. A Break for what has none."""
    fake = var.fake
    if fake.dtype not in DTYPES or fake.device.type != "cpu" or fake.layout is not torch.strided:
        raise Break("call_of_unknown_function", f"numpy() of {var!r}")
    if fake.requires_grad or fake.is_neg() or fake.is_conj():
        raise Break("call_of_unknown_function", f"numpy() of {var!r}, which requires grad")
    if torch._C._functorch.get_dynamic_layer_stack_depth():
        raise Break("call_of_unknown_function", "numpy() inside of a transform")
    detached = tx.trace.call(tx, torch.Tensor.detach, var)
    assert isinstance(detached, TensorVar)
    return ArrayVar(detached)


@rule(torch.Tensor.numpy, TensorVar)
def numpy_(tx: Frame, var: TensorVar) -> Var:
    return as_array(tx, var)


@first_rule(numpy.asarray, TensorVar)
def asarray_of_tensor(tx: Frame, var: TensorVar) -> Var:
    return as_array(tx, var)


def wrapped_rule(ufunc: Any) -> None:
    """The row of a ufunc of one tensor: numpy computes on its array and makes a tensor again."""

    @first_rule(ufunc, TensorVar)
    def evaluate(tx: Frame, var: TensorVar, /, *args: Var, **kwargs: Var) -> Var | None:
        if args or kwargs or var.cls is not torch.Tensor or 0 in map(hint_of, var.fake.shape):
            return None  # (an empty array's strides are its own)
        result = apply_ufunc(tx, ufunc, ufunc, (as_array(tx, var),))
        assert isinstance(result, ArrayVar)
        if result.tensor.fake.dtype is torch.bool:  # as torch.Tensor.__array_wrap__ does
            return tx.trace.call(tx, torch.Tensor.to, result.tensor, ConstVar(torch.uint8))
        return result.tensor


for _ufunc in UFUNCS:
    if _ufunc.nin == 1:
        wrapped_rule(_ufunc)


def array_rule(function: Any) -> None:
    """The row of a function that gives the array itself, or a copy of it."""

    @first_rule(function, ArrayVar)
    def evaluate(tx: Frame, array: ArrayVar, /, *args: Var, **kwargs: Var) -> Var:
        shadow, values = shadow_of(array), [plain(arg)[0] for arg in args]
        keywords = {name: plain(arg)[0] for name, arg in kwargs.items()}
        if ask(function, shadow, *values, **keywords) is shadow:
            return array
        return call(tx, function, copied, (array, *args), kwargs)


def copied(call: Call, x: TensorVar, dtype: Any = None) -> Any:
    return call(torch.Tensor.clone, call.cast(x, call.dtype))


for _name in ("asarray", "ascontiguousarray", "array"):
    array_rule(getattr(numpy, _name))


def tensor_rule(function: Any, copies: bool) -> None:
    """The row of a function that makes a tensor of an array."""

    @first_rule(function, ArrayVar)
    def evaluate(tx: Frame, array: ArrayVar, /, **kwargs: Var) -> Var:
        if array.scalar or not kwargs.keys() <= {"dtype"}:
            raise Break("call_of_unknown_function", f"{function.__name__} of {array!r}, {kwargs}")
        keywords = {name: plain(arg)[0] for name, arg in kwargs.items()}
        expected = ask(function, shadow_of(array), **keywords)
        doing, x = Call(tx, None), array.tensor
        try:
            made = doing.cast(x, expected.dtype)
            made = doing(torch.Tensor.clone if copies and made is x else torch.Tensor.detach, made)
        except ObservedException as error:
            raise refusal(function, error.value) from error
        strides = tuple(map(hint_of, made.fake.stride()))
        if expected.device.type != "cpu" or strides != expected.stride():
            raise Break("call_of_unknown_function", f"{function.__name__} of {array!r}")
        return made  # type: ignore[no-any-return]


for _name in ("from_numpy", "as_tensor", "tensor"):
    tensor_rule(getattr(torch, _name), _name == "tensor")
