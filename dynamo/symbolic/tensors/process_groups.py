"""What a process group says of itself: rank, size and names, which stay what they are.

A graph has them as constants. They are guarded by asking the group again, so that a trace which
another process keeps for itself is not taken where the rank is another.
"""

from __future__ import annotations

from typing import Any

import torch.distributed

from dynamo.base.errors import Break
from dynamo.guards.sources import AttrSource, CallSource, ObjectSource, Source
from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.table import late_rule, rule
from dynamo.symbolic.core.unguarded import Unguarded
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.python.cached import real_value
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


def work_done(tx: Frame) -> Var:
    """The work of a collective that is done, an object of torch's."""
    def make() -> Any:
        done: torch.futures.Future[Any] = torch.futures.Future()
        done.set_result([])
        functions: Any = torch._C._distributed_c10d
        return functions._create_work_from_future(done)

    work = tx.trace.run_real(make)
    tx.trace.state(Unguarded).refuse("it keeps the work of a collective")
    return tx.trace.wrap(work, ObjectSource(work, "work"))


def register_work() -> None:
    kind: Any = torch.distributed.Work
    for name in ("wait", "is_completed"):
        method = getattr(kind, name)

        @rule(getattr(method, "__func__", method))
        def answer(tx: Frame, work: Var, *args: Var, **kwargs: Var) -> Var:
            real = getattr(work, "real", None)
            if not isinstance(real, kind) or not isinstance(work.source, ObjectSource):
                raise Break("call_of_unknown_function", f"a method of {work!r}")
            return tx.trace.constant(True)


if torch.distributed.is_available():
    register_all()
    register_work()


@late_rule("device_mesh", "DeviceMesh.__getitem__")
def slice_mesh(tx: Frame, mesh: Var, names: Var) -> Var:
    """A part of a mesh that exists: it is made once, for this trace."""
    real, key = real_value(tx.trace, mesh), real_value(tx.trace, names)
    part = tx.trace.run_real(lambda: real[key])
    tx.trace.state(Unguarded).refuse("it keeps a part of a device mesh")
    return tx.trace.wrap(part, ObjectSource(part, "mesh[...]"))
