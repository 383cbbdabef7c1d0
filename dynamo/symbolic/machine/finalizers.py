"""Values that tell when they die: generators (`finally` runs then), objects with `__del__` and
those to which a weak reference exists.

A continuation is given such values by a frame that no longer holds them: where the traced program
lets go of one, the trace ends, and the new code lets go of it before the rest runs.

In: the locals of a continuation. Out: `ObservedLocals.dropped`, asked before each instruction.
"""

from __future__ import annotations

import gc
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch

from dynamo.guards.sources import Source, TypeSource
from dynamo.hook import Compiled
from dynamo.symbolic.core.lookup import find_in_mro, is_local, is_own_method
from dynamo.symbolic.core.stack_values import UnreadVar
from dynamo.symbolic.core.trace_result import BreakExit
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.machine.protocols import RunningTrace

MOST_LOOKED_AT = 1000  # objects behind one value
LENDING = (
    ("_ctypes", "Structure"), ("_cffi_backend", "_CDataBase"), ("mmap", "mmap"),
    ("_xxsubinterpreters", "InterpreterID"), ("_xxinterpchannels", "ChannelID"),
)
NOT_WATCHED = (torch.Tensor, torch.nn.Module)  # torch itself refers to them weakly
STATES = "torch.distributed."  # what torch keeps of a module that is spread, by weak references
NOT_LOOKED_INTO = (type, types.ModuleType, types.CodeType, types.FrameType, str, bytes, int, float)


def is_observed(var: Var, real_values: Mapping[Var, Any]) -> bool:
    """True for a real value that tells when it dies, and for what holds one."""
    return any(
        part.source is not None and _holds(_real_value(part, real_values), _telling)
        for part in _parts(var)
    )


def holds_local_class(var: Var, real_values: Mapping[Var, Any]) -> bool:
    """True for a class that a function has made, and for what holds one, like its instances: the
    garbage collector alone ends such a class, which `__subclasses__()` of its bases tells."""
    return any(
        part.source is not None and _holds(_real_value(part, real_values), _of_local_class)
        for part in _parts(var)
    )


def _parts(var: Var) -> Iterator[Var]:
    seen: set[Var] = set()
    work = [var]
    while work and len(seen) < MOST_LOOKED_AT:
        part = work.pop()
        if part not in seen:
            seen.add(part)
            yield part
            work.extend(part.children())


def _real_value(var: Var, real_values: Mapping[Var, Any]) -> Any:
    return var.value if isinstance(var, UnreadVar) else real_values.get(var)


def _holds(value: Any, test_of: Callable[[type], Callable[[Any], bool]]) -> bool:
    """asked: gives for a class, once, what tells whether one of its instances is looked for."""
    seen: dict[int, Any] = {}
    kinds: dict[int, tuple[type, Callable[[Any], bool], bool]] = {}
    work = [value]
    while work and len(seen) < MOST_LOOKED_AT:
        part = work.pop()
        kind = type(part)
        known = kinds.get(id(kind))  # by identity: a metaclass may have a hash of its own
        if known is None:
            closed = issubclass(kind, NOT_LOOKED_INTO)
            known = kinds[id(kind)] = (kind, test_of(kind), closed)
        if known[1](part):
            return True
        if known[2] or id(part) in seen:
            continue
        seen[id(part)] = part
        work.extend(_inside(part))
    return False


def _inside(value: Any) -> Iterable[Any]:
    """What lies in an object that the program can reach."""
    if type(value) is types.FunctionType:
        return value.__closure__ or ()
    if type(value) is Compiled:  # its entries, which are referred to weakly, tell nobody
        return [part for name, part in value.__dict__.items() if name != "_policy"]
    return gc.get_referents(value)


def _never(value: Any) -> bool:
    return False


def _always(value: Any) -> bool:
    return True


def _telling(kind: type) -> Callable[[Any], bool]:
    """What tells whether an instance tells its end."""
    if issubclass(kind, NOT_LOOKED_INTO):
        return _never
    if _tells(kind):
        return _always
    if issubclass(kind, NOT_WATCHED) or find_in_mro(kind, "__weakref__") is None:
        return _never
    if str(find_in_mro(kind, "__module__")).startswith(STATES):
        return _never
    return _is_watched


def _of_local_class(kind: type) -> Callable[[Any], bool]:
    if issubclass(kind, type):
        return _is_ending_class
    return _always if _is_ending_class(kind) else _never


def _is_ending_class(cls: type) -> bool:
    """The class of a sharded module, which `fully_shard` makes, is kept by torch."""
    return is_local(cls) and not str(find_in_mro(cls, "__module__")).startswith(STATES)


def _tells(kind: type) -> bool:
    return (
        kind is types.GeneratorType
        or find_in_mro(kind, "__del__") is not None
        or issubclass(kind, _lending())
    )


def _lending() -> tuple[type, ...]:
    """Classes of C whose objects own what others use without holding them: memory that is read by
    its address, a lock on another's, interpreters and channels."""
    found: list[type] = [memoryview]
    for module, name in LENDING:
        if module in sys.modules:
            found += getattr(sys.modules[module], name, memoryview).__mro__[:-1]
    return tuple(found)


def _is_watched(value: Any) -> bool:
    """True where a weak reference to an instance of a class of the program exists."""
    return weakref.getweakrefcount(value) > 0


def guard_let_go(
    trace: RunningTrace, start: Mapping[Source, Any], before: BreakExit, after: BreakExit
) -> None:
    """Assumes of the real values that a break lets go of that they still tell nothing at a later
    call. (Of what lies inside of them nothing is assumed.)

    start: the locals that the trace began with; before: the exit with the unneeded locals.
    """
    real = trace.objects.real_values()
    alive = {
        id(_real_value(var, real)) for state in after.frames
        for var in (*state.locals.values(), *state.stack)
    }
    known = {guard.source for guard in trace.guards if guard.kind in TELLING_CLASS}
    held = dict(start)
    for state in before.frames:
        held |= {v.source: _real_value(v, real) for v in state.locals.values() if v.source}
    for source, value in held.items():
        gone = source not in known and (value is None or id(value) not in alive)
        kind = type(value)
        if not gone or _tells(kind):
            continue
        meta = type(kind)
        # What looks at a class asks its own class's functions, those of an instance never.
        if find_in_mro(meta, "__getattr__") or is_own_method(find_in_mro(meta, "__getattribute__")):
            trace.guard("TYPE", source, kind)
        else:
            trace.guard("LACKS_ATTR", TypeSource(source), "__del__")


# Guards after which the class of a value is the same one.
TELLING_CLASS = frozenset({"TYPE", "ID", "CONST", "TENSOR"})


class ObservedLocals:
    """Those among the locals that a trace begins with."""

    def __init__(self, locals_: Mapping[str, Var]) -> None:
        self._unread: dict[int, tuple[Any, list[weakref.ref[Var]]]] = {}
        for var in locals_.values():
            if isinstance(var, UnreadVar) and is_observed(var, {}):
                places = self._unread.setdefault(id(var.value), (var.value, []))[1]
                places.append(weakref.ref(var))

    def __bool__(self) -> bool:
        return bool(self._unread)

    def had(self, value: Any) -> bool:
        """True for one of them, whether the program holds it still or not."""
        return id(value) in self._unread

    def dropped(self, trace: RunningTrace) -> bool:
        """True where the program has let go of one since the last call."""
        gone = [key for key in self._unread if self._is_gone(trace, key)]
        for key in gone:
            del self._unread[key]
        return bool(gone)

    def _is_gone(self, trace: RunningTrace, key: int) -> bool:
        value, places = self._unread[key]
        if any(place() is not None for place in places):
            return False
        return trace.objects.is_unused(value)
