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
from dynamo.symbolic.python.objects import ObjectVar


class ThreadLocalVar(ObjectVar):
    """An existing `threading.local`, or an instance of a subclass."""

    def real_dict(self, tx: Frame) -> dict[str, Any] | None:
        return thread_dict(self.real)

    def dict_place(self) -> Source:
        assert self.source is not None
        return ThreadDictSource(self.source)

    def dict_from(self, trace: Evaluation, source: Source | None) -> Var:
        raise Break("attribute_unknown", f"__dict__ of {self!r}, which every thread has its own of")

    def get_attr(self, tx: Frame, name: str) -> Var:
        if name == "__dict__":
            return self.dict_from(tx.trace, None)
        return super().get_attr(tx, name)


@wraps_if(5, lambda value: issubclass(type(value), threading.local))
def wrap_thread_local(trace: Evaluation, value: Any, source: Source | None) -> Var:
    """An existing one."""
    return ThreadLocalVar(type(value), source, real=value, trace=trace)
