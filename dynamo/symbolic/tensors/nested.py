"""Nested tensors of the jagged layout in a trace: see `dynamo.base.ragged_sizes`.

They are wrapper subclasses (`wrappers.py`) with three things of their own: a ragged size is no
number, and a value of the graph where an operation takes it; their packed dimension is of many
sizes from the first call on; torch's own `__torch_function__` of the class is not traced.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Hashable, Iterable
from typing import Any

import torch
from torch import fx
from torch.nested._internal import nested_tensor
from torch.nested._internal.nested_int import NestedIntNode

from dynamo.base.autograd_apply import RUNS_PROGRAM
from dynamo.base.errors import Break
from dynamo.base.ragged_sizes import SEQUENCE_LENGTHS, Jagged, nested_key, ragged_size
from dynamo.guards.sources import EqualSource, SameNested, Source, facts_of_nested
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Evaluation, Frame
from dynamo.symbolic.core.table import first_rule, rule
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.core.wrapping import wraps
from dynamo.symbolic.python.functions import inline_polyfill, keywords_of
from dynamo.symbolic.shapes.numbers import hint_of
from dynamo.symbolic.tensors import nested_polyfills
from dynamo.symbolic.tensors.constant_objects import place_of
from dynamo.symbolic.tensors.overriding import Off
from dynamo.symbolic.tensors.state import tensor_state
from dynamo.symbolic.tensors.tensor import TensorVar
from dynamo.symbolic.tensors.torch_functions import is_graph_function, put_in_graph

# What the class does in `__torch_function__` and not in its dispatch, by the names of functions.
BY_NAME = frozenset(("scaled_dot_product_attention", "flatten", "rms_norm"))
PARTS = ("_lengths", *SEQUENCE_LENGTHS)
# Read of the fake as they are.
FACTS = frozenset("""shape dtype device ndim layout requires_grad is_cuda is_cpu is_sparse
    is_quantized is_meta is_nested itemsize""".split())


class NestedSizeVar(Var):
    """A ragged size, or a multiple of one. tensor: one that has it, at this axis."""

    def __init__(
        self, trace: Evaluation, number: torch.SymInt, tensor: TensorVar, axis: int
    ) -> None:
        super().__init__()
        self.trace, self.number, self.tensor, self.axis = trace, number, tensor, axis
        self.factor = nested_key(number)[1]
        self._node: fx.Node | None = None

    def describe(self) -> str:
        return "a ragged size"

    def python_type(self) -> type:
        return torch.SymInt

    def children(self) -> Iterable[Var]:
        return [self.tensor]

    def as_fake(self) -> Any:
        return self.number

    def as_proxy(self) -> fx.Node:
        if self._node is None or self._node._erased:
            self._node = self.trace.graph.operation(
                "call_function", ragged_part, (self.tensor.node, self.axis, self.factor), {},
                self.number)
        return self._node

    def truth(self, tx: Frame) -> bool:
        return True

    def hash_key(self, tx: Frame) -> Hashable:
        raise Break("hash_unknown", repr(self))

    def is_same(self, tx: Frame, other: Var) -> bool:
        if self is not other and isinstance(other, NestedSizeVar):  # each read makes an object
            raise Break("operator_unknown", f"is between {self!r} and {other!r}")
        return self is other


def ragged_part(value: Any, axis: int, factor: int) -> Any:
    """A ragged size, times a number."""
    return value._size[axis] * factor if factor != 1 else value._size[axis]


def nested_size(trace: Evaluation, number: torch.SymInt) -> Var:
    """The Var of a ragged size that an operation gave."""
    key = nested_key(number)[0]
    for var in reversed(tensor_state(trace).nested):
        if nested_key(ragged_size(var.fake))[0] == key:
            return NestedSizeVar(trace, number, var, var.fake._ragged_idx)
    raise Break("graph_result_unknown", "a ragged size of no tensor that is known")


@wraps(torch.SymInt)
def wrap_size(trace: Evaluation, value: Any, source: Source | None) -> Var:
    """A ragged size from outside, of which no guard tells whose it is."""
    raise Break("value_unknown", "a ragged size from outside")


def compare(function: Any, name: str) -> Callable[..., Var]:
    def handle(tx: Frame, a: Var, b: Var) -> Var:
        keys = [var.number if isinstance(var, NestedSizeVar) else None for var in (a, b)]
        if None not in keys:
            if len({var.tensor.fake.device for var in (a, b)}) > 1:  # type: ignore[attr-defined]
                raise Break("operator_unknown", f"{name} between ragged sizes of two devices")
            first, second = (_plain(key) for key in keys)
        else:
            first, second = (
                _plain(var.number) if isinstance(var, NestedSizeVar) else hint_of(var)
                for var in (a, b))
            if name not in ("eq", "ne") and type(first if keys[0] is None else second) is not int:
                raise Break("operator_unknown", f"{name} between {a!r} and {b!r}")
        try:
            return ConstVar(bool(function(first, second)))
        except ValueError as error:
            tx.trace.raise_exception(ValueError, *error.args)

    return handle


def _plain(number: Any) -> torch.SymInt:
    """A ragged size as programs have it."""
    which, factor = nested_key(number)
    return torch.SymInt(NestedIntNode(which, factor))  # type: ignore[arg-type]


for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    _function = getattr(operator, _name)
    first_rule(_function, Var, NestedSizeVar)(compare(_function, _name))
    first_rule(_function, NestedSizeVar)(compare(_function, _name))


@first_rule(operator.mul, NestedSizeVar)
def multiply(tx: Frame, a: NestedSizeVar, b: Var) -> Var | None:
    """By a number that is known."""
    if not (b.is_constant() and type(b.as_constant()) is int):
        return None
    return NestedSizeVar(tx.trace, a.number * b.as_constant(), a.tensor, a.axis)


@first_rule(operator.mul, Var, NestedSizeVar)
def multiply_by(tx: Frame, a: Var, b: NestedSizeVar) -> Var | None:
    return None if isinstance(a, NestedSizeVar | TensorVar) else multiply(tx, b, a)


# -- those from outside --------------------------------------------------------------------------


def guard_nested(trace: Evaluation, real: Any, source: Source) -> None:
    """Guards all that a graph assumes of one, its inner tensors aside."""
    trace.guard("TYPE", source, Jagged)
    trace.guard("CONST", EqualSource(source, SameNested(facts_of_nested(real))), True)


def know_ragged_size(trace: Evaluation, var: TensorVar, inner: dict[str, Any]) -> None:
    """The fake of its ragged source stands for its ragged size."""
    real: Any = var.real
    assert var.source is not None
    name = "_offsets" if real._lengths is None else "_lengths"
    trace.world.ragged_size(inner[name], ragged_size(real))
    place = place_of(real, var.source, name)
    part = trace.wrap(getattr(real, name), place)
    assert isinstance(part, TensorVar)
    tensor_state(trace).note_nested(var, part)


# -- what the class has of its own ---------------------------------------------------------------


def get_attr(tx: Frame, var: TensorVar, name: str) -> Var | None:
    """An attribute that is no inner tensor; None where all wrappers have it alike."""
    fake = var.fake
    if name in FACTS:
        return tx.trace.constant(getattr(fake, name))
    if name in ("_size", "_strides"):
        return tx.trace.constant(tuple(getattr(fake, name)))
    if name == "_ragged_idx" or name in PARTS and getattr(fake, name) is None:
        return ConstVar(getattr(fake, name))  # guarded where it came from
    if name == "_metadata_cache":
        raise Break("attribute_unknown", f"{name} of {var!r}")
    return None


@rule(Jagged.__torch_function__.__func__)  # type: ignore[attr-defined]
def own_answer(
    tx: Frame, cls: Var, func: Var, types: Var, args: Var | None = None, kwargs: Var | None = None
) -> Var:
    """What the class has of its own there runs as one operation of the graph."""
    given = [] if args is None else args.unpack(tx)
    none = kwargs is None or kwargs.is_constant() and kwargs.as_constant() is None
    named = {} if none or kwargs is None else keywords_of(tx, kwargs)
    known = getattr(func, "value", None) or getattr(func, "real", None)
    if getattr(known, "__name__", None) in BY_NAME and is_graph_function(known):
        return put_in_graph(tx, whole(known), given, named)
    if getattr(known, "__name__", None) == "unbind":
        return inline_polyfill(tx, nested_polyfills.unbind, given, named)
    with Off(tx.trace):
        return tx.call(func, given, named)


@functools.cache
def whole(function: Any) -> Callable[..., Any]:
    """The function as a graph calls it, which asks the class."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    call.__name__ = call.__qualname__ = f"nested_{function.__name__}"
    setattr(call, RUNS_PROGRAM, True)
    return call


def in_one_piece(function: Any) -> None:
    """A function of torch's that makes nested tensors: one operation, without the dummy that
    chooses the dispatch."""

    @rule([function])
    def make(tx: Frame, /, *args: Var, **kwargs: Var) -> Var:
        nested_tensor._nt_view_dummy()  # made outside of fakes
        return put_in_graph(tx, function, list(args), dict(kwargs))


for _maker in (nested_tensor.nested_view_from_values_offsets, nested_tensor.nested_from_padded,
               nested_tensor.nested_view_from_values_offsets_lengths):  # fmt: skip
    in_one_piece(_maker)
