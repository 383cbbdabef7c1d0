"""Calls of functions about which the user has decided (`allow_in_graph` and its relatives), or of
which it is known what they answer.

In: a real callable and Vars. Out: the result, or None where nothing was decided.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import torch

from dynamo.base.decisions import decisions, is_constant
from dynamo.base.errors import Break
from dynamo.guards.sources import ObjectSource
from dynamo.symbolic.core import table
from dynamo.symbolic.core.constant import VALUE_TYPES, ConstVar
from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.graph import storage_of
from dynamo.symbolic.core.known_libraries import answers_by_type
from dynamo.symbolic.core.lookup import full_name
from dynamo.symbolic.core.unguarded import Unguarded
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.python.cached import real_value
from dynamo.symbolic.python.lists import TupleVar


def is_decided(function: Any) -> bool:
    """True where a call of the function is not what its code says."""
    return (
        is_constant(function) or answers_by_type(function)
        or decisions.has("not_in_graph", function) or decisions.has("substitute", function)
    )


def call_decided(
    tx: Frame, function: Any, args: list[Var], kwargs: dict[str, Var]
) -> Var | None:
    """The call as the user has decided, None where they have not."""
    if decisions.has("not_in_graph", function):
        raise Break("call_disabled", getattr(function, "__qualname__", repr(function)))
    if is_constant(function):
        return call_once(tx, function, args, kwargs)
    if answers_by_type(function):
        return answer_for_type(tx, function, *args, *kwargs.values())
    substitute = decisions.get("substitute", function)
    if substitute is None:
        return None
    if substitute.fold:
        folded = table.fold(tx, function, args, kwargs)
        if folded is not None:
            return folded
    var = tx.trace.wrap(substitute.function, ObjectSource(substitute.function, "substitute"))
    return var.call(tx, args, kwargs)


def call_once(
    tx: Frame, function: Any, args: list[Var], kwargs: dict[str, Var]
) -> Var:
    """The result of the real call now; tensors of the program are given as they are."""
    values = [real_or_tensor(tx, arg) for arg in args]
    keywords = {name: real_or_tensor(tx, arg) for name, arg in kwargs.items()}
    return _wrap_result(tx, function, lambda: function(*values, **keywords))


def real_or_tensor(tx: Frame, var: Var) -> Any:
    """A real argument; of a tensor that exists, with what it holds before the graph runs."""
    if type(var) is TupleVar and not var.is_constant():
        return tuple(real_or_tensor(tx, item) for item in var.items)
    real = getattr(var, "real", None) if var.is_tensor else None
    if real is None:
        return real_value(tx.trace, var)
    storage = storage_of(var.as_fake())  # which guards its metadata
    written = (fake for node in tx.trace.graph.graph.nodes for fake in node.meta.get("changed", ()))
    if any(storage_of(fake) == storage for fake in written):
        why = f"a call made while tracing, with {var!r}, which the graph changes"
        raise Break("call_of_unknown_function", why)
    return real


def answer_for_type(tx: Frame, function: Any, value: Var) -> Var:
    """What the function answers to any value of this class."""
    cls = value.python_type()
    if cls is numpy.ndarray:
        return _wrap_result(tx, function, lambda: function(numpy.empty(0)))
    if cls not in (torch.Tensor, torch.nn.Parameter):
        raise Break("call_of_unknown_function", f"{full_name(function)}({value!r})")
    return _wrap_result(tx, function, lambda: function(cls(torch.empty(0))))


def _wrap_result(tx: Frame, function: Any, call: Callable[[], Any]) -> Var:
    result = tx.trace.run_real(call)
    tx.trace.state(Unguarded).refuse(f"it keeps what {full_name(function)} gave")
    if type(result) in VALUE_TYPES:
        return ConstVar(result)
    return tx.trace.wrap(result, ObjectSource(result, f"{function.__name__}()"))
