"""Arrays of numpy: a tensor that lies in the same memory.

An array from outside becomes a graph input (`torch.from_numpy`); one that is made in the trace is a
result of the graph, of which the new bytecode makes an array again. Kinds of arrays that torch does
not have, and those that are read-only or misaligned, are only passed on.
"""

from __future__ import annotations

import operator
import types
from collections.abc import Iterable
from typing import Any

import numpy
import torch

from dynamo.base.errors import Break
from dynamo.guards.sources import ArraySource, Source, as_tensor
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Evaluation, Frame
from dynamo.symbolic.core.stack_values import OpaqueVar
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.core.wrapping import wraps
from dynamo.symbolic.python.functions import BuiltinVar, MethodVar
from dynamo.symbolic.tensors.state import tensor_state
from dynamo.symbolic.tensors.tensor import TensorVar

# float16 and complex numbers are rounded in other places by numpy; torch computes with no unsigned
# integers but bytes.
DTYPES: dict[torch.dtype, Any] = {
    getattr(torch, name): numpy.dtype(name)
    for name in ("bool", "uint8", "int8", "int16", "int32", "int64", "float32", "float64")
}
TORCH_DTYPES = {dtype: name for name, dtype in DTYPES.items()}


class ArrayVar(Var):
    """An array, or one of numpy's numbers that only the running program knows.

    tensor: what lies in the same memory. scalar: True for a number.
    read_only: of one that numpy makes so.
    """

    def __init__(
        self, tensor: TensorVar, source: Source | None = None, scalar: bool = False,
        trace: Evaluation | None = None, read_only: bool = False,
    ) -> None:
        super().__init__(source)
        self.tensor, self.scalar, self._trace = tensor, scalar, trace
        self.read_only = read_only

    def describe(self) -> str:
        kind = "number" if self.scalar else "array"
        return self.tensor.describe().replace("a tensor", f"a numpy {kind}", 1)

    def python_type(self) -> type:
        if self.scalar:
            return self.dtype.type  # type: ignore[no-any-return]
        if self.source is not None and self._trace is not None:
            self._trace.guard("TYPE", self.source, numpy.ndarray)
        return numpy.ndarray

    @property
    def dtype(self) -> Any:
        return DTYPES[self.tensor.fake.dtype]

    def children(self) -> Iterable[Var]:
        return (self.tensor,)

    def truth(self, tx: Frame) -> bool:
        if not self.scalar and self.tensor.fake.numel() != 1:
            raise Break("truth_unknown", repr(self))
        return self.tensor.truth(tx)

    def get_attr(self, tx: Frame, name: str) -> Var:
        fake = self.tensor.fake
        if name in ("ndim", "itemsize", "nbytes"):
            return tx.trace.constant(getattr(fake, name))
        if name == "shape":
            return tx.trace.constant(tuple(fake.shape))
        if name == "size":
            return tx.trace.constant(fake.numel())
        if name == "dtype":
            return tx.trace.wrap(self.dtype, None)
        if name == "real":  # of numbers that are none of the complex ones: the array itself
            return self
        if name == "imag" and not self.scalar:
            return zeros_like(tx, self)
        if name == "T":
            return self.call_method(tx, "transpose", [], {})
        owner = numpy.generic if self.scalar and name in ("item", "tolist") else numpy.ndarray
        raw = owner.__dict__.get(name)
        if self.scalar is (owner is numpy.ndarray) or not isinstance(
                raw, types.MethodDescriptorType):
            raise Break("attribute_unknown", f"{name} of {self!r}")
        return MethodVar(BuiltinVar(raw), self)

    def call_method(
        self, tx: Frame, name: str, args: list[Var], kwargs: dict[str, Var]
    ) -> Var:
        method = numpy.ndarray.__dict__.get(name)
        if not callable(method) or name.startswith("_"):
            raise Break("attribute_unknown", f"{name} of {self!r}")
        return tx.trace.call_real(tx, method, [self, *args], kwargs)

    def call(self, tx: Frame, args: list[Var], kwargs: dict[str, Var]) -> Var:
        raise Break("call_of_unknown_value", repr(self))

    def length(self, tx: Frame) -> Var:
        if self.scalar or not self.tensor.fake.dim():
            raise Break("length_unknown", repr(self))
        return self.tensor.length(tx)

    def get_item(self, tx: Frame, key: Var) -> Var:
        return tx.trace.call(tx, operator.getitem, self, key)

    def set_item(self, tx: Frame, key: Var, value: Var) -> None:
        tx.trace.call(tx, operator.setitem, self, key, value)

    def iterate(self, tx: Frame) -> Var:
        count = self.tensor.fake.shape[0] if self.tensor.fake.dim() else None
        if type(count) is not int or self.scalar:
            raise Break("iteration_unknown", repr(self))
        items = [self.get_item(tx, ConstVar(index)) for index in range(count)]
        return tx.trace.make.iterator(items)


def zeros_like(tx: Frame, array: ArrayVar) -> ArrayVar:
    """What numpy gives for the imaginary part of real numbers: nobody may write into it."""
    made = tx.trace.call(tx, torch.zeros_like, array.tensor)
    assert isinstance(made, TensorVar)
    return ArrayVar(made, read_only=True)


class DtypeVar(ConstVar):
    """A dtype of numpy's own."""

    def get_attr(self, tx: Frame, name: str) -> Var:
        if name not in ("kind", "name", "itemsize", "char", "type"):
            raise Break("attribute_unknown", f"{name} of {self!r}")
        return tx.trace.constant(getattr(self.value, name))


@wraps(numpy.ndarray)
def wrap_array(trace: Evaluation, value: Any, source: Source | None) -> Var:
    """An existing array, unread."""
    try:
        if getattr(trace.context, "plain_arrays", False):
            raise TypeError("it lies in the memory of another input")
        if value.dtype not in TORCH_DTYPES or numpy.lib.NumpyVersion(numpy.__version__) < "2.0.0":
            raise TypeError(f"an array of {value.dtype}")
        real = as_tensor(value, numpy.ndarray)
    except (TypeError, ValueError) as error:
        text = f"ndarray: {error}"
        if source is None:
            raise Break("value_unknown", text) from error
        return OpaqueVar(trace, value, source, Break("value_unknown", text))
    assert source is not None
    tensor = TensorVar(None, None, ArraySource(source, numpy.ndarray), real=real, trace=trace)
    tensor_state(trace).arrays.append(tensor)
    return ArrayVar(tensor, source, trace=trace)


@wraps(*dict.fromkeys(map(type, TORCH_DTYPES)))
def wrap_dtype(trace: Evaluation, value: Any, source: Source | None) -> Var:
    """One of the dtypes above, which exist once."""
    if value is not numpy.dtype(value.type):
        raise Break("value_unknown", repr(value))
    return DtypeVar(value, source, trace)


