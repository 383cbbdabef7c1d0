"""`threading.local`: what its attributes are depends on the thread, of which guards read the dict.

An instance made in the trace is not modelled. In a thread that has not used it yet, looking makes
the dict, and runs `__init__`, as reading an attribute does in eager.
"""

from __future__ import annotations

import threading
from typing import Any

from dynamo.base.errors import Break
from dynamo.base.instances import thread_dict
from dynamo.guards.sources import Source, ThreadDictSource
from dynamo.symbolic.core.frame import Evaluation, Frame
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.core.wrapping import wraps_if
from dynamo.symbolic.python.objects import InstanceDictVar, ObjectVar, note_owner, runs_program


class ThreadLocalVar(ObjectVar):
    """An existing `threading.local`, or an instance of a subclass."""

    def real_dict(self, tx: Frame) -> dict[str, Any] | None:
        found = thread_dict(self.real)
        if any(map(runs_program, map(type, dict.__iter__(found)))):
            raise Break("attribute_unknown", f"the dict of {self!r}: a key in it has __eq__")
        note_owner(tx.trace, found, self)
        return found

    def dict_place(self) -> Source:
        assert self.source is not None
        return ThreadDictSource(self.source)

    def get_attr(self, tx: Frame, name: str) -> Var:
        if name == "__dict__":
            self.real_dict(tx)  # that it is met as a dict by itself breaks the graph
            return InstanceDictVar(self)
        return super().get_attr(tx, name)


@wraps_if(5, lambda value: issubclass(type(value), threading.local))
def wrap_thread_local(trace: Evaluation, value: Any, source: Source | None) -> Var:
    """An existing one."""
    return ThreadLocalVar(type(value), source, real=value, trace=trace)
