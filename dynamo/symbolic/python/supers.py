"""`super()`: attributes of an object from the classes behind one of its bases."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from dynamo.base.errors import Break
from dynamo.guards.sources import AttrSource, Source
from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.core.wrapping import sees_lookups, wraps

if TYPE_CHECKING:
    from dynamo.symbolic.python.classes import ClassVar


class SuperVar(Var):
    """`super(start, receiver)`: attributes from the classes after `start`."""

    def __init__(self, start: ClassVar, receiver: Var, cls: type) -> None:
        super().__init__()
        self.start_var, self.receiver, self.cls = start, receiver, cls
        self.start = start.cls

    def describe(self) -> str:
        return f"super({self.start.__name__}, ...)"

    def python_type(self) -> type:
        return super

    def children(self) -> Iterable[Var]:
        return (self.start_var, self.receiver)

    def get_attr(self, tx: Frame, name: str) -> Var:
        return tx.trace.attributes.get_super(tx, self, name)

    def call_method(
        self, tx: Frame, name: str, args: list[Var], kwargs: dict[str, Var]
    ) -> Var:
        return tx.call_attribute(self, name, args, kwargs)

    def set_attr(self, tx: Frame, name: str, value: Var) -> None:
        raise Break("attribute_store_unknown", f"{name} of super()")


@wraps(super)
def wrap_super(trace: Any, value: Any, source: Source | None) -> Var:
    """A super object that waits on the stack of a continuation."""
    if source is None or value.__self_class__ is None or sees_lookups(value.__thisclass__):
        raise Break("value_unknown", "super")
    trace.guard("TYPE", source, super)
    trace.guard("ID", AttrSource(source, "__self_class__"), value.__self_class__)
    receiver = trace.wrap(value.__self__, AttrSource(source, "__self__"))
    start = trace.wrap(value.__thisclass__, AttrSource(source, "__thisclass__"))
    return SuperVar(start, receiver, value.__self_class__)
