"""What a `contextvars.ContextVar` holds is guarded; setting it breaks the graph."""

from __future__ import annotations

import contextvars
from typing import Any

from dynamo.base.errors import Break
from dynamo.guards.sources import AttrSource, CallSource, Source
from dynamo.symbolic.core.frame import Evaluation, Frame
from dynamo.symbolic.core.table import rule
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.core.wrapping import wraps
from dynamo.symbolic.python.objects import ObjectVar


@wraps(contextvars.ContextVar)
def wrap_context_variable(trace: Evaluation, value: Any, source: Source | None) -> Var:
    return ObjectVar(contextvars.ContextVar, source, real=value, trace=trace)


@rule(contextvars.ContextVar.get)
def get(tx: Frame, var: Var, *default: Var) -> Var:
    """`variable.get()` of a variable that has a value."""
    if default or var.source is None or not isinstance(var, ObjectVar) or var.real is None:
        raise Break("call_of_unknown_function", f"get of {var!r}")
    real = var.real
    try:
        value = real.get()
    except LookupError:
        raise Break("call_of_unknown_function", f"get of {var!r}, which holds nothing") from None
    tx.trace.guard("ID", var.source, real)
    return tx.trace.wrap(value, CallSource(AttrSource(var.source, "get")))
