"""What a `contextvars.ContextVar` holds is guarded; setting it breaks the graph."""

from __future__ import annotations

import contextvars
from typing import TYPE_CHECKING, Any

from dynamo.base.errors import Break
from dynamo.guards.sources import AttrSource, CallSource, Source
from dynamo.symbolic.rules.table import rule
from dynamo.symbolic.variables.base import Var
from dynamo.symbolic.variables.objects import ObjectVar
from dynamo.symbolic.variables.wrapping import wraps

if TYPE_CHECKING:
    from dynamo.symbolic.machine import SymbolicFrame
    from dynamo.symbolic.trace import Trace


@wraps(contextvars.ContextVar)
def wrap_context_variable(trace: Trace, value: Any, source: Source | None) -> Var:
    return ObjectVar(contextvars.ContextVar, source, real=value, trace=trace)


@rule(contextvars.ContextVar.get)
def get(tx: SymbolicFrame, var: Var, *default: Var) -> Var:
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
