"""`threading.local`: what its attributes are depends on the thread, of which guards read the dict.
And the number of the thread.

An instance made in the trace is not modelled. In a thread that has not used it yet, looking makes
the dict, and runs `__init__`, as reading an attribute does in eager.
"""

from __future__ import annotations

import threading
from typing import Any

from dynamo.base.errors import Break
from dynamo.base.instances import thread_dict
from dynamo.guards.sources import CallSource, ObjectSource, Source, ThreadDictSource
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Evaluation, Frame
from dynamo.symbolic.core.table import rule
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


def in_main_thread() -> bool:
    """Whether this is the main thread."""
    return threading.get_ident() == threading.main_thread().ident


@rule(threading.get_ident)
def number_of_thread(tx: Frame) -> Var:
    """Of the main thread. Others come and go: each would have its own graphs."""
    is_main = in_main_thread()
    tx.trace.guard("CONST", CallSource(ObjectSource(in_main_thread, "in_main_thread")), is_main)
    if not is_main:
        raise Break("call_of_unknown_function", "threading.get_ident(), not in the main thread")
    number = threading.get_ident()  # of another process it is another one
    place = CallSource(ObjectSource(threading.get_ident, "threading.get_ident"))
    tx.trace.guard("CONST", place, number)
    return ConstVar(number)
