"""What a process group says of itself: rank, size and names, which stay what they are.

A graph has them as constants. They are guarded by asking the group again, so that a trace which
another process keeps for itself is not taken where the rank is another.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

import torch.distributed

from dynamo.base.errors import Break
from dynamo.guards.sources import AttrSource, CallSource, ObjectSource, Source
from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.identities import identity_key
from dynamo.symbolic.core.table import late_rule, rule
from dynamo.symbolic.core.unguarded import Unguarded
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.python.cached import real_value
from dynamo.symbolic.python.functions import NamedMethodVar
from dynamo.symbolic.python.objects import ObjectVar

METHODS = ("rank", "size", "name")
PROPERTIES = ("group_name", "group_desc")


def register(kind: Any, name: str, function: Any, called: bool) -> None:
    """The rule of what a group answers by a method, or by a property."""

    @rule(function)
    def answer(tx: Frame, group: Var) -> Var:
        real = getattr(group, "real", None)
        if not isinstance(group, ObjectVar) or not isinstance(real, kind) or (
                group.written or group.source is None):
            raise Break("call_of_unknown_function", f"{name} of {group!r}")
        value = getattr(real, name)
        place: Source = AttrSource(group.source, name)
        if called:
            value, place = value(), CallSource(place)
        tx.trace.guard("CONST", place, value)
        return tx.trace.constant(value)


def register_all() -> None:
    kind: Any = torch.distributed.ProcessGroup
    for name in METHODS:
        method = getattr(kind, name)  # torch 2.11: pybind11's wrapper, which has no hash
        register(kind, name, getattr(method, "__func__", method), called=True)
    for name in PROPERTIES:
        register(kind, name, getattr(kind, name).fget, called=False)


def done_work(*outputs: torch.Tensor) -> Any:
    """The work of a collective that is done; outputs: what it has written, which its future has."""
    done: torch.futures.Future[Any] = torch.futures.Future()
    done.set_result(list(outputs))
    functions: Any = torch._C._distributed_c10d
    return functions._create_work_from_future(done)


class WorkVar(Var):
    """The work of a collective that is an operation of the graph: done, for the program.

    outputs: what the collective writes. Where it leaves the trace, it is an object of torch's.
    """

    def __init__(self, outputs: tuple[Var, ...]) -> None:
        super().__init__()
        self.outputs = outputs

    def describe(self) -> str:
        return "the work of a collective"

    def python_type(self) -> type:
        return torch.distributed.Work  # type: ignore[no-any-return]

    def truth(self, tx: Frame) -> bool:
        return True

    def children(self) -> Iterable[Var]:
        return self.outputs

    def hash_key(self, tx: Frame) -> Hashable:
        return identity_key(tx.trace, self)

    def call_method(
        self, tx: Frame, name: str, args: list[Var], kwargs: dict[str, Var]
    ) -> Var:
        if name in ("wait", "is_completed"):
            return tx.trace.constant(True)
        raise Break("call_of_unknown_function", f"{name} of {self!r}")

    def get_attr(self, tx: Frame, name: str) -> Var:
        if not hasattr(torch.distributed.Work, name):
            raise Break("attribute_unknown", f"{name} of {self!r}")
        return NamedMethodVar(self, name)


if torch.distributed.is_available():
    register_all()


@late_rule("device_mesh", "DeviceMesh.__getitem__")
def slice_mesh(tx: Frame, mesh: Var, names: Var) -> Var:
    """A part of a mesh that exists: it is made once, for this trace."""
    real, key = real_value(tx.trace, mesh), real_value(tx.trace, names)
    part = tx.trace.run_real(lambda: real[key])
    tx.trace.state(Unguarded).refuse("it keeps a part of a device mesh")
    return tx.trace.wrap(part, ObjectSource(part, "mesh[...]"))
