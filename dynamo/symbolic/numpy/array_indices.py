"""Reading and writing parts of numpy arrays."""

from __future__ import annotations

import operator
from typing import Any

import numpy
import torch

from dynamo.base.errors import Break
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.table import first_rule, rule
from dynamo.symbolic.core.var import ObservedException, Var
from dynamo.symbolic.numpy.array import ArrayVar
from dynamo.symbolic.numpy.array_calls import Call, ask, call, plain, refusal, storage
from dynamo.symbolic.numpy.arrays import check_write
from dynamo.symbolic.tensors.tensor import TensorVar

FLOATS = (torch.float32, torch.float64)
INTS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def is_mask(key: Any) -> bool:
    return isinstance(key, TensorVar) and key.fake.dtype is torch.bool


def parts_of(key: Any) -> list[Any]:
    """The indices of a key, those of lists inside of it too."""
    found: list[Any] = []
    for part in key if isinstance(key, tuple | list) else [key]:
        found += parts_of(part) if isinstance(part, tuple | list) else [part]
    return found


def as_index(call: Call, key: Any) -> Any:
    """A key whose arrays of ints are of the dtype of indices (to torch, uint8 is a mask)."""
    if isinstance(key, tuple | list):
        return type(key)(as_index(call, part) for part in key)
    if isinstance(key, TensorVar) and not is_mask(key):
        return call.cast(key, torch.int64)
    return key


def get(call: Call, x: TensorVar, key: Any) -> Any:
    parts = parts_of(key)
    if any(is_mask(part) or type(part) in (bool, numpy.bool_) for part in parts):
        raise ValueError("a mask")
    return call(torch.Tensor.__getitem__, x, as_index(call, key))


@first_rule([numpy.ndarray.__getitem__, operator.getitem], ArrayVar, Var)
def getitem(tx: Frame, array: ArrayVar, key: Var) -> Var:
    if array.scalar:
        raise Break("index_unknown", repr(array))
    return call(tx, operator.getitem, get, (array, key), {})


@first_rule([numpy.ndarray.__setitem__, operator.setitem], ArrayVar, Var, Var)
def setitem(tx: Frame, array: ArrayVar, key: Var, value: Var) -> Var:
    """`array[key] = value`, of a number or an array."""
    check_write(array)
    target, index = plain(array), plain(key)
    if isinstance(value, ArrayVar):
        number, new = None, value.tensor
    else:
        number = new = value.as_constant()
        if not isinstance(number, int | float | numpy.generic):
            raise Break("index_unknown", f"{array!r}[..] = {value!r}")
    ask(operator.setitem, target[0], index[0], plain(value)[0])
    doing, x = Call(tx, target[0]), array.tensor
    parts = parts_of(index[1])
    lists = any(isinstance(part, TensorVar) for part in parts) or isinstance(index[1], list) or (
        isinstance(index[1], tuple) and any(isinstance(part, list) for part in index[1]))
    if any(type(part) in (bool, numpy.bool_) for part in parts) or lists and number is None:
        raise Break("index_unknown", f"{array!r}[{key!r}] = {value!r}")
    if number is not None:  # in the array's dtype, as numpy converts it
        number = target[0].dtype.type(number).item()
    try:
        if is_mask(index[1]):
            if tuple(index[1].fake.shape) != tuple(x.fake.shape):
                raise Break("index_unknown", "a mask of another shape")
            doing(torch.Tensor.masked_fill_, x, index[1], number)
            return ConstVar(None)
        if any(map(is_mask, parts)):
            raise Break("index_unknown", "a mask among indices")
        if number is None:
            new = doing.cast(new, x.fake.dtype)
            new = doing(torch.Tensor.clone, new) if storage(new) == storage(x) else new
        key_of = as_index(doing, index[1])
        doing(torch.Tensor.__setitem__, x, key_of, new if number is None else number)
    except ObservedException as error:
        raise refusal(operator.setitem, error.value) from error
    return ConstVar(None)


@rule(numpy.ndarray.fill, ArrayVar, Var)
def fill(tx: Frame, array: ArrayVar, value: Var) -> Var:
    setitem(tx, array, ConstVar(Ellipsis), value)
    return ConstVar(None)


def read(
    tx: Frame, array: ArrayVar, dtypes: Any, wanted: Any = torch.Tensor.item
) -> Var:
    """A value in Python: of one element, as `Tensor.item` gives it."""
    fake = array.tensor.fake
    if wanted is torch.Tensor.tolist and fake.dim() and fake.dtype in dtypes:
        return tx.trace.call(tx, wanted, array.tensor)
    if fake.numel() != 1 or fake.dim() and not array.scalar or fake.dtype not in dtypes:
        raise Break("item", f"{array!r} is read into Python")
    return tx.trace.call(tx, torch.Tensor.item, array.tensor)


def read_rule(function: Any, dtypes: Any) -> None:
    """The row of a function that reads an array; one that is made of constants is known."""

    @first_rule(function, ArrayVar)
    def evaluate(tx: Frame, array: ArrayVar, *args: Var) -> Var:
        known = tx.trace.world.constant_of(array.tensor.fake)
        if known is None or args or (function in (int, float) and known.dim()):
            wanted = torch.Tensor.tolist if function is numpy.ndarray.tolist else torch.Tensor.item
            return read(tx, array, () if args else dtypes, wanted)
        values = known.numpy()[()] if array.scalar else known.numpy()
        return tx.trace.constant(tx.trace.run_real(lambda: function(values)))


for _function, _dtypes in ((float, FLOATS), (int, INTS), (numpy.ndarray.item, (*FLOATS, *INTS)),
                           (numpy.generic.item, (*FLOATS, *INTS)),
                           (numpy.generic.tolist, (*FLOATS, *INTS)),
                           (numpy.ndarray.tolist, (*FLOATS, *INTS))):
    read_rule(_function, _dtypes)
