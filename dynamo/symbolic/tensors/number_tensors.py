"""`torch.tensor(x)` of floats that are open, of tensors of one element, and of numpy's numbers.

In: a number, or a flat list of numbers with an open float or a tensor among them; lists in lists
with a number of numpy. Out: the tensor; None where torch itself has to see the numbers, which fixes
them. (Open ints: `dynamo/shapes/creation.py`.)
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy
import torch

from dynamo.base.errors import Break
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.lookup import module_of
from dynamo.symbolic.core.table import first_rule
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.python.classes import DTYPES, ClassVar
from dynamo.symbolic.python.lists import ListVar, TupleVar
from dynamo.symbolic.python.operators import is_scalar
from dynamo.symbolic.shapes.numbers import hint_of, is_guardable, is_number, is_symbolic, text_of
from dynamo.symbolic.tensors.tensor import TensorVar

# The largest number of each: torch.full refuses a larger one, of which torch.tensor makes infinity.
LARGEST = {dtype: torch.finfo(dtype).max for dtype in (torch.float32, torch.float64)}
NAMES = {"dtype", "device"}
ARRAY_FLOATS = {"float16", "float32", "longdouble"}


def _constant_dtype(kwargs: Mapping[str, Var]) -> torch.dtype | None:
    """The argument, for which torch takes classes of numbers, too (`dtype=int`)."""
    var = kwargs.get("dtype", ConstVar(None))
    if isinstance(var, ClassVar) and var.cls in DTYPES:
        return DTYPES[var.cls]
    return var.as_constant()  # type: ignore[no-any-return]


@first_rule([torch.tensor, torch.as_tensor], (ListVar, TupleVar, ConstVar))
def tensor_of_floats(tx: Frame, /, data: Var, *rest: Var, **kwargs: Var) -> Var | None:
    """A tensor of no dimension for each number, stacked where there was a list."""
    if rest:
        return None
    flat = isinstance(data, ListVar | TupleVar)
    numbers = data.unpack(tx) if flat else [data]
    if not any(is_symbolic(var) and type(hint_of(var)) is float for var in numbers):
        return None
    if not all(map(is_number, numbers)) or not set(kwargs) <= NAMES:
        return None
    given = _constant_dtype(kwargs)
    dtype = torch.get_default_dtype() if given is None else given
    if dtype not in LARGEST or not all(is_small(tx, var, LARGEST[dtype]) for var in numbers):
        return None
    call = tx.trace.call
    options = {**kwargs, "dtype": ConstVar(dtype)}
    made = [call(tx, torch.full, TupleVar([]), var, **options) for var in numbers]
    return call(tx, torch.stack, ListVar(made)) if flat else made[0]


@first_rule([torch.tensor, torch.as_tensor], (ListVar, TupleVar))
def tensor_of_tensors(tx: Frame, /, data: Var, *rest: Var, **kwargs: Var) -> Var | None:
    """Tensors of one element each, stacked: eager would read them into Python."""
    items = data.unpack(tx)
    if rest or not set(kwargs) <= NAMES or not any(isinstance(var, TensorVar) for var in items):
        return None
    found = [_dtype_of_element(var) for var in items]
    given = _constant_dtype(kwargs)
    dtype = _promoted(found) if given is None else given
    if dtype is None or not all(kind is not None and _is_exact(kind, dtype) for kind in found):
        return None
    call = tx.trace.call
    device = kwargs.get("device", ConstVar(None))
    if device.is_constant() and device.as_constant() is None:
        blank = call(tx, torch.tensor, ConstVar(0))  # where the default device is said to be
        assert isinstance(blank, TensorVar)
        device = ConstVar(blank.fake.device)
    options = {"dtype": ConstVar(dtype), "device": device}
    made = []
    for var, kind in zip(items, found, strict=True):
        if not isinstance(var, TensorVar):
            made.append(call(tx, torch.tensor, var, **options))
            continue
        value = call(tx, torch.Tensor.reshape, var, TupleVar([]))
        if dtype.is_floating_point and kind in WHOLE:  # a number of Python becomes a double first
            value = call(tx, torch.Tensor.to, value, ConstVar(torch.float64))
        made.append(call(tx, torch.Tensor.to, value, **options))
    return call(tx, torch.stack, ListVar(made))


WHOLE = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def _dtype_of_element(var: Var) -> torch.dtype | None:
    """What torch.tensor takes a number, or a tensor of one, for; None for all else."""
    if isinstance(var, TensorVar):
        fake = var.fake
        plain = var.cls is torch.Tensor and fake.layout is torch.strided and not fake.requires_grad
        one = plain and all(type(size) is int and size == 1 for size in fake.shape)
        real = fake.dtype in WHOLE or fake.dtype.is_floating_point
        return fake.dtype if one and real else None  # type: ignore[no-any-return]
    if not var.is_constant() or is_symbolic(var):
        return None
    kinds = {bool: torch.bool, int: torch.int64, float: torch.get_default_dtype()}
    return kinds.get(type(var.as_constant()))


def _promoted(found: list[torch.dtype | None]) -> torch.dtype | None:
    kinds = [dtype for dtype in found if dtype is not None]
    return functools.reduce(torch.promote_types, kinds) if len(kinds) == len(found) else None


def _is_exact(kind: torch.dtype, dtype: torch.dtype) -> bool:
    """Whether torch.tensor converts any value as `to` does, without an error."""
    return dtype.is_floating_point or kind == dtype or kind in WHOLE and dtype == torch.int64


@first_rule([torch.tensor, torch.as_tensor], (ListVar, TupleVar))
def tensor_of_array_floats(
    tx: Frame, /, data: Var, *rest: Var, **kwargs: Var
) -> Var | None:
    """Floats of numpy (but float64, a float) are no whole numbers, which torch says itself."""
    dtype = _constant_dtype(kwargs)
    if isinstance(dtype, torch.dtype) and not (dtype.is_floating_point or dtype.is_complex):
        for kind in {item.python_type() for item in data.unpack(tx)}:
            if module_of(kind) == "numpy" and kind.__name__ in ARRAY_FLOATS:
                raise Break("argument_mismatch", f"{kind.__name__} as {dtype}")
    return None


def _register(function: Any) -> None:
    @first_rule(function, (ListVar, TupleVar, ConstVar))
    def of_numpy_numbers(tx: Frame, /, data: Var, *rest: Var, **kwargs: Var) -> Var | None:
        """With the dtype of numpy's number, which is a number of Python in the graph."""
        if rest or kwargs.get("dtype", ConstVar(None)).python_type() is not type(None):
            return None
        leaves = leaves_of(tx, data)
        if not any(is_scalar(leaf) and leaf.python_type() is not numpy.int64 for leaf in leaves):
            return None
        if not all(is_symbolic(leaf) or leaf.is_constant() for leaf in leaves):
            raise Break("argument_mismatch", repr(data))
        values = [hint_of(leaf) if is_symbolic(leaf) else leaf.as_constant() for leaf in leaves]
        dtype = ConstVar(tx.trace.run_real(lambda: torch.tensor(values).dtype))
        return tx.trace.call(tx, function, data, **(kwargs | {"dtype": dtype}))


for _function in (torch.tensor, torch.as_tensor, torch.asarray):
    _register(_function)


def leaves_of(tx: Frame, data: Var) -> list[Var]:
    if not isinstance(data, ListVar | TupleVar):
        return [data]
    return [leaf for item in data.unpack(tx) for leaf in leaves_of(tx, item)]


def is_small(tx: Frame, number: Var, most: float) -> bool:
    """Whether a number is no larger; guarded."""
    if not abs(hint_of(number)) <= most or not is_guardable(number):
        return False
    bound = f"(abs({text_of(number)}) <= {most!r})"
    return not is_symbolic(number) or tx.trace.symbols.decide(bound)
