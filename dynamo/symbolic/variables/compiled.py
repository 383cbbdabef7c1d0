"""Callables that `compile` and `disable` made, met inside of traced code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dynamo import hook
from dynamo.base.errors import Break
from dynamo.guards.sources import AttrSource, Source
from dynamo.symbolic.stack_values import OpaqueVar
from dynamo.symbolic.variables.base import Var
from dynamo.symbolic.variables.wrapping import wraps

if TYPE_CHECKING:
    from dynamo.symbolic.machine import SymbolicFrame
    from dynamo.symbolic.trace import Trace


class DisabledVar(OpaqueVar):
    """A function that must not be traced."""

    def call(self, tx: SymbolicFrame, args: list[Var], kwargs: dict[str, Var]) -> Var:
        name = getattr(self.value, "__qualname__", repr(self.value))
        raise Break("call_disabled", f"{name}: {self.value._disabled_because}")


@wraps(hook.Compiled)
def wrap_compiled(trace: Trace, value: Any, source: Source | None) -> Var:
    """A compiled function is traced as the function that it compiles."""
    assert source is not None
    if "_disabled_because" in value.__dict__:
        return DisabledVar(trace, value, source, Break("call_disabled"))
    trace.guard("ID", source, value)
    return trace.wrap(value.__wrapped__, AttrSource(source, "__wrapped__"))
