"""A call of numpy on arrays of the program: how it is put into the graph.

In: a function of numpy, its arguments as Vars, and a function that computes the same by torch.
Numpy itself is asked first, on *shadows*: real arrays of ones that are like the program's in dtype,
sizes and strides. It says what kind of result there is (array or number, dtype, sizes, strides,
whether it lies in an argument's memory) and what it refuses. What torch computes must come out
alike: where it does not, and where numpy raises or warns, the graph breaks, and numpy is called.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy
import torch

from dynamo.base.errors import Break
from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.var import ObservedException, Var
from dynamo.symbolic.numpy.array import DTYPES, TORCH_DTYPES, ArrayVar, DtypeVar
from dynamo.symbolic.python.classes import ClassVar
from dynamo.symbolic.python.lists import ListVar, TupleVar
from dynamo.symbolic.python.ranges import SliceVar
from dynamo.symbolic.shapes.numbers import is_symbolic
from dynamo.symbolic.tensors.tensor import TensorVar

LARGEST = 1 << 24  # elements of a shadow
CLASSES = (int, float, bool)
CPU = torch.device("cpu")  # where arrays are, whatever torch's default device is


class Call:
    """One call while it is put into the graph.

    expected: what numpy gives for the shadows. dtype: torch's dtype of it.
    """

    def __init__(self, tx: Frame, expected: Any) -> None:
        self.tx, self.expected = tx, expected

    @property
    def dtype(self) -> torch.dtype:
        found = TORCH_DTYPES.get(getattr(self.expected, "dtype", None))
        if found is None:
            raise Break("value_unknown", f"an array of {getattr(self.expected, 'dtype', '?')}")
        return found

    def __call__(self, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """A function of torch, of TensorVars and plain values."""
        keywords = {name: self.var(arg) for name, arg in kwargs.items()}
        return self.tx.trace.call_real(self.tx, function, list(map(self.var, args)), keywords)

    def var(self, value: Any) -> Var:
        if isinstance(value, Var):
            return value
        if isinstance(value, list):
            return ListVar([self.var(item) for item in value])
        if isinstance(value, tuple):
            return TupleVar([self.var(item) for item in value])
        if isinstance(value, slice):
            return SliceVar(self.var(value.start), self.var(value.stop), self.var(value.step))
        return self.tx.trace.constant(value.item() if isinstance(value, numpy.generic) else value)

    def cast(self, value: Any, dtype: torch.dtype) -> Any:
        """A TensorVar in a dtype; a plain number as it is."""
        if not isinstance(value, TensorVar) or value.fake.dtype is dtype:
            return value
        return self(torch.Tensor.to, value, dtype)


def is_about_arrays(args: tuple[Var, ...]) -> bool:
    """True where an array is among the arguments, or in a list among them."""
    return any(
        isinstance(arg, ArrayVar) or
        isinstance(arg, ListVar | TupleVar) and is_about_arrays(tuple(arg.items)) for arg in args)


def hint_of(number: Any) -> int:
    """A size in this call."""
    if type(number) is int:
        return number
    hint = number.node.hint
    if hint is None:
        raise Break("unknown_number", str(number))
    return int(hint)


def is_unbacked(number: Any) -> bool:
    """True for a size that only the run knows."""
    return type(number) is not int and number.node.hint is None


def shadow_of(var: ArrayVar) -> Any:
    """An array (or number) of ones like this one."""
    fake = var.tensor.fake
    sizes, strides = tuple(map(hint_of, fake.shape)), tuple(map(hint_of, fake.stride()))
    extent = 0 if 0 in sizes else 1 + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))
    if max(extent, math.prod(sizes)) > LARGEST:
        raise Break("value_unknown", f"an array of more than {LARGEST} elements")
    memory = numpy.ones(extent, var.dtype)
    if var.scalar:
        return memory[0]
    steps = [stride * var.dtype.itemsize for stride in strides]
    return numpy.lib.stride_tricks.as_strided(memory, sizes, steps, writeable=not var.read_only)


def plain(var: Var) -> tuple[Any, Any]:
    """An argument for numpy's call on shadows, and for torch's."""
    if isinstance(var, ArrayVar):
        return shadow_of(var), var.tensor
    if isinstance(var, TensorVar):
        raise Break("operator_unknown", f"numpy with {var!r}")
    if is_symbolic(var):
        return var.hint, var  # type: ignore[attr-defined]
    if isinstance(var, ClassVar) and (var.cls in CLASSES or issubclass(var.cls, numpy.generic)):
        return var.cls, var.cls
    if isinstance(var, DtypeVar):
        return var.value, var.value
    if isinstance(var, ListVar | TupleVar) and var.python_type() in (list, tuple):
        pairs = [plain(item) for item in var.items]
        kind = var.python_type()
        return kind(a for a, _ in pairs), kind(b for _, b in pairs)
    if isinstance(var, SliceVar):
        parts = [plain(part) for part in (var.start, var.stop, var.step)]
        return slice(*(a for a, _ in parts)), slice(*(b for _, b in parts))
    value = var.as_constant()
    return value, value


def ask(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """What numpy gives for shadows; a Break where it raises or warns."""
    if set(numpy.geterr().values()) - {"warn", "ignore"}:
        raise Break("call_of_unknown_function", "numpy's errors are to be raised")
    try:
        with numpy.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("error")
            return function(*args, **kwargs)
    except Exception as error:
        name = getattr(function, "__name__", repr(function))
        raise Break("call_of_unknown_function", f"numpy's {name}: {error}") from error


def call(
    tx: Frame, function: Any, compute: Callable[..., Any], args: tuple[Var, ...],
    kwargs: dict[str, Var],
) -> Var:
    """`function(*args, **kwargs)`, computed by `compute(call, *args, **kwargs)`."""
    if torch.is_autocast_enabled("cpu"):
        raise Break("call_of_unknown_function", "numpy inside of autocast")
    pairs = [plain(arg) for arg in args]
    keywords = {name: plain(arg) for name, arg in kwargs.items()}
    expected = ask(function, *(a for a, _ in pairs), **{k: a for k, (a, _) in keywords.items()})
    doing = Call(tx, expected)
    try:
        result = compute(doing, *(b for _, b in pairs), **{k: b for k, (_, b) in keywords.items()})
    except ObservedException as error:
        raise refusal(function, error.value) from error
    except (TypeError, ValueError, AttributeError) as error:  # unknown to `compute`
        raise refusal(function, error) from error
    shadows = [a for a, _ in [*pairs, *keywords.values()]]
    return settle(doing, expected, result, shadows, args)


def refusal(function: Any, error: Any) -> Break:
    name = getattr(function, "__name__", repr(function))
    return Break("call_of_unknown_function", f"numpy's {name} of such arguments: {error!r}")


def settle(
    call: Call, expected: Any, result: Any, shadows: list[Any], args: tuple[Var, ...]
) -> Var:
    """The array or number that a tensor stands for; a Break where numpy's is another."""
    if isinstance(expected, list | tuple):
        items = result.items if isinstance(result, ListVar | TupleVar) else result
        if len(items) != len(expected):
            raise Break("call_of_unknown_function", f"{expected!r} of numpy")
        made = [settle(call, e, r, shadows, args) for e, r in zip(expected, items, strict=True)]
        return (ListVar if isinstance(expected, list) else TupleVar)(made)
    scalar = isinstance(expected, numpy.generic)
    if not isinstance(result, TensorVar) or not (scalar or type(expected) is numpy.ndarray):
        raise Break("call_of_unknown_function", f"a result of {type(expected)}")
    if DTYPES.get(result.fake.dtype) != expected.dtype:
        raise Break("call_of_unknown_function", f"numpy gives {expected.dtype}, not {result!r}")
    shared = not scalar and any(map(lambda s: shares(expected, s), shadows))
    if not shared and any(map(lambda arg: shares_storage(result, arg), args)):
        result = call(torch.Tensor.clone, result)
    elif shared and not any(map(lambda arg: shares_storage(result, arg), args)):
        raise Break("call_of_unknown_function", "numpy gives a view where torch gives a copy")
    if not scalar:
        result = laid_out(call, expected, result, shared)
    return ArrayVar(result, scalar=scalar)


def shares(array: Any, shadow: Any) -> bool:
    if isinstance(shadow, list | tuple):
        return any(map(lambda item: shares(array, item), shadow))
    return isinstance(shadow, numpy.ndarray) and numpy.may_share_memory(array, shadow)


def storage(var: TensorVar) -> Any:
    fake = var.fake
    return fake.storage_key if hasattr(fake, "storage_key") else fake.untyped_storage()._cdata


def shares_storage(result: TensorVar, arg: Any) -> bool:
    if isinstance(arg, ListVar | TupleVar):
        return any(map(lambda item: shares_storage(result, item), arg.items))
    tensor = arg.tensor if isinstance(arg, ArrayVar) else arg
    return isinstance(tensor, TensorVar) and storage(tensor) == storage(result)


def laid_out(call: Call, expected: Any, result: TensorVar, shared: bool) -> TensorVar:
    """The tensor with numpy's strides; later views depend on them."""
    if not expected.flags.writeable:
        raise Break("call_of_unknown_function", "a read-only array")
    if any(is_unbacked(size) for size in result.fake.shape):
        if result.fake.dim() != expected.ndim or not expected.flags.c_contiguous:
            raise Break("call_of_unknown_function", f"numpy gives {expected.shape}, not {result!r}")
        return call(torch.Tensor.contiguous, result)
    if tuple(map(hint_of, result.fake.shape)) != expected.shape:
        raise Break("call_of_unknown_function", f"numpy gives {expected.shape}, not {result!r}")
    if not same_strides(expected, result) and not shared:
        order = sorted(range(expected.ndim), key=lambda axis: -abs(expected.strides[axis]))
        result = call(torch.Tensor.permute, result, tuple(order))
        result = call(torch.Tensor.contiguous, result)
        result = call(torch.Tensor.permute, result, tuple(map(order.index, range(len(order)))))
    if not same_strides(expected, result):
        raise Break("call_of_unknown_function", f"strides of numpy: {expected.strides}")
    return result


def same_strides(expected: Any, result: TensorVar) -> bool:
    if not expected.size:
        return True
    strides = [hint_of(stride) * expected.itemsize for stride in result.fake.stride()]
    return all(size == 1 or theirs == mine for size, theirs, mine in
               zip(expected.shape, expected.strides, strides, strict=True))
