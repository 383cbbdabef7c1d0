"""Fakes of tensors from outside, and the guards that make them good for other tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from dynamo.base.errors import Break, RestartTrace
from dynamo.base.subclasses import is_wrapper
from dynamo.guards.kinds import TensorFacts
from dynamo.guards.shape_code import Fact
from dynamo.guards.sources import Source, TableSource, table_values
from dynamo.shapes.marks import Mark
from dynamo.symbolic.core.frame import Evaluation
from dynamo.symbolic.shapes.sizes import (
    UNBACKED_KINDS,
    dynamic_dims,
    infer_strides,
    symbolic_size,
    symbolic_stride,
)
from dynamo.symbolic.shapes.symbols import Symbols
from dynamo.symbolic.tensors.state import tensor_state

if TYPE_CHECKING:
    from dynamo.symbolic.tensors.tensor import TensorVar


def make_fake(trace: Evaluation, var: TensorVar) -> Any:
    """The fake of a tensor from outside, and its guards."""
    symbols, real, source = trace.symbols, var.real, var.source
    assert isinstance(symbols, Symbols)
    assert real is not None and source is not None
    try:
        grad = real.grad if real.is_leaf else None
    except RuntimeError as error:  # a view whose base has been written in another mode
        raise Break("tensor_not_modelled", str(error)) from error
    if grad is not None and (grad.dtype, grad.shape) != (real.dtype, real.shape):
        raise Break("tensor_not_modelled", f"the gradient of {var!r} is of another kind")
    if is_wrapper(real):
        return var.wrapper_fake(trace, var)
    dims = dynamic_dims(symbols, real, source)
    go_symbolic(trace, dims)
    if not dims:
        fake = trace.world.from_real(real)
        tensor_state(trace).guard_tensor(var)
        learn_table(trace, var, fake)
        return fake
    symbols.tensors[source] = var
    sizes, strides = open_layout(trace, real, source, dims)
    return trace.world.make(real, sizes, strides)


def go_symbolic(trace: Evaluation, dims: Mapping[int, Mark]) -> None:
    """Errors: RestartTrace where the trace has no symbols so far."""
    if dims and not trace.world.is_symbolic:
        trace.context.symbolic = True
        raise RestartTrace(None)


def open_layout(
    trace: Evaluation, real: torch.Tensor, source: Source, dims: Mapping[int, Mark]
) -> tuple[list[Any], list[Any]]:
    """Sizes and strides of a tensor of which some are symbolic, with their guards."""
    symbols = trace.symbols
    assert isinstance(symbols, Symbols)
    sizes = [
        symbolic_size(symbols, Fact(source, "size", axis), size, dims[axis])
        if axis in dims else size
        for axis, size in enumerate(real.shape)
    ]
    extents = [
        torch.sym_max(size, 1) if axis in dims and dims[axis].kind in UNBACKED_KINDS else size
        for axis, size in enumerate(sizes)
    ]
    strides = infer_strides(
        tuple(real.shape), real.stride(), extents,
        lambda axis: symbolic_stride(symbols, source, axis, real.stride(axis)),
    )
    trace.guard("TENSOR", source, replace(
        TensorFacts.of(real),
        sizes=tuple(n if type(n) is int else -1 for n in sizes),
        strides=tuple(n if type(n) is int else -1 for n in strides),
    ))
    for axis, stride in enumerate(strides):
        if type(stride) is not int:
            name = symbols.name(Fact(source, "stride", axis), real.stride(axis))
            text = trace.world.text(stride)
            if text != name:
                symbols.assume(f"({name} == {text})")
    return sizes, strides


def learn_table(trace: Evaluation, var: TensorVar, fake: torch.Tensor) -> None:
    """Guards the values of a table that is to be known."""
    assert var.real is not None and var.source is not None
    if trace.context is None or not trace.context.wants_values(var.source, var.real):
        return
    with torch._C._DisableTorchDispatch():
        values, copy = table_values(var.real), var.real.clone()
    trace.guard("CONST", TableSource(var.source), values)
    trace.world.constants.learn(fake, copy)
    tensor_state(trace).tables.append(var)
