"""`warnings` whose filters the traced program changes, and locks and thread numbers on the way.

The Python code of `warnings` is traced; here is what it calls in C, and what a warning of the
program does under filters that were written in the trace.
"""

from __future__ import annotations

import dataclasses
import functools
import reprlib
import sys
import threading
import warnings
from typing import Any

from dynamo import hook
from dynamo.base.errors import Break
from dynamo.guards.records import UserLine
from dynamo.guards.sources import ModuleSource
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.table import NONE, rule
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.python.classes import ClassVar
from dynamo.symbolic.python.functions import MethodVar
from dynamo.symbolic.python.lists import ListVar, TupleVar
from dynamo.symbolic.python.objects import ObjectVar
from dynamo.symbolic.python.raising import make_exception

NAMES = ("filters", "showwarning", "_showwarnmsg_impl")
SHOW = "_showwarnmsg"
ORIGINAL_SHOW = vars(warnings)[SHOW]
RECURSION = (reprlib.__file__, dataclasses.__file__)
RLOCK = type(threading.RLock())


@rule(warnings._filters_mutated)  # type: ignore[attr-defined]
def filters_mutated(tx: Frame) -> Var:
    tx.trace.effects.output(hook.Disabled(warnings._filters_mutated))  # type: ignore[attr-defined]
    return NONE


def module_of(tx: Frame) -> Var:
    return tx.trace.wrap(warnings, ModuleSource("warnings"))


def are_whole(tx: Frame) -> bool:
    """False where the program has put another module in place of `warnings`, which shows what is
    warned of, or has deleted a part of it, which then is that of C."""
    read = tx.trace.effects.written_global
    if sys.modules.get("warnings") is not warnings or read(warnings.__dict__, SHOW)[0]:
        return False
    written = {name: read(warnings.__dict__, name) for name in NAMES}
    return vars(warnings).get(SHOW) is ORIGINAL_SHOW and all(
        value is not None if is_written else name in vars(warnings)
        for name, (is_written, value) in written.items()
    )


def are_changed(tx: Frame) -> bool:
    """True where the trace has written a part of `warnings`, or the list of filters."""
    effects = tx.trace.effects
    if any(effects.written_global(warnings.__dict__, name)[0] for name in NAMES):
        return True
    known = tx.trace.objects.var_of(warnings.filters)
    return known is not None and any(known is target for target in effects.targets_since({}))


def action(tx: Frame, kind: type[Warning]) -> str:
    """What the first filter that fits says; Break where one looks at the text or the place."""
    found = module_of(tx).get_attr(tx, "filters")
    for row in found.items if isinstance(found, ListVar) else ():
        parts = row.items if isinstance(row, TupleVar) else []
        if len(parts) != 5 or not isinstance(parts[2], ClassVar):
            raise Break("call_of_unknown_function", f"warnings.warn under {row!r}")
        if issubclass(kind, parts[2].cls):
            if [part.as_constant() for part in (parts[1], parts[3], parts[4])] != [None, None, 0]:
                raise Break("call_of_unknown_function", f"warnings.warn under {row!r}")
            return str(parts[0].as_constant())
    return "default"


def record(tx: Frame, text: str, kind: type[Warning], place: UserLine) -> Var | None:
    """Appends to the list of `catch_warnings(record=True)`; None where there is none."""
    show = module_of(tx).get_attr(tx, "_showwarnmsg_impl")
    plain = module_of(tx).get_attr(tx, "showwarning")
    if getattr(plain, "real", None) is not warnings._showwarning_orig:  # type: ignore[attr-defined]
        return None
    if not isinstance(show, MethodVar) or not isinstance(show.receiver, ListVar):
        return None
    message = make_exception(tx.trace, kind, text)
    made: list[Var] = [message, tx.trace.wrap(kind, None), ConstVar(place.filename),
                       ConstVar(place.lineno)]
    log = tx.trace.wrap(warnings.WarningMessage, None)
    return show.call(tx, [tx.call(log, made, {})], {})


@rule(threading.get_ident)
def thread_number(tx: Frame) -> Var | None:
    """Only for the key with which a `repr` looks out for recursion."""
    return ConstVar(0) if tx.code.co_filename in RECURSION else None


def register_lock(name: str) -> None:
    function = getattr(RLOCK, name)

    @rule(function)
    def handle(tx: Frame, lock: Var, *args: Var) -> Var | None:
        """A lock that exists is taken and given back behind the graph, in program order."""
        if not isinstance(lock, ObjectVar) or lock.real is None or (args and name != "__exit__"):
            return None
        takes = name in ("acquire", "__enter__")
        taken = tx.trace.effects.taken
        if not takes and not taken[id(lock.real)]:  # it may be an error, which is raised here
            raise Break("call_of_unknown_function", f"{name} of a lock that is not taken here")
        taken[id(lock.real)] += 1 if takes else -1
        tx.trace.guard("ID", lock.source, lock.real)
        values: list[Any] = [None, None, None] if name == "__exit__" else []
        call = functools.partial(function, lock.real, *values)
        tx.trace.effects.output(hook.Disabled(call))
        return ConstVar(True) if takes else NONE


for _name in ("acquire", "release", "__enter__", "__exit__"):
    register_lock(_name)
