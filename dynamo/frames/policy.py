"""When a frame is compiled: what happens when no entry of a code object fits a frame.

Existing entries stay valid for ever; at the recompile limit new values run eager, with one warning
that lists the reasons seen. A recompile is explained against the nearest entry (the fewest and
smallest differences; of equals the one used last).
"""

from __future__ import annotations

import builtins
import contextlib
import itertools
import re
import sys
import threading
import types
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from types import CodeType
from typing import Any, NoReturn

import torch
from torch.utils._device import DeviceContext

from dynamo import hook
from dynamo.backends.registry import lookup_backend
from dynamo.base import counters, events, logs, ranks
from dynamo.base.config import config
from dynamo.base.decisions import Stance, stance_now
from dynamo.base.defects import internal_error
from dynamo.base.errors import DynamoError, RecompileError, RecompileLimitExceeded
from dynamo.base.progress import progress
from dynamo.base.subclasses import outer_modes, without_torch_function
from dynamo.frames.choice import forward_code
from dynamo.frames.entries import function_modes
from dynamo.frames.worth import mentions_tensors
from dynamo.guards.changes import changed_facts, numbers_in
from dynamo.guards.explain import Difference, differences, distance
from dynamo.guards.kinds import const_equal
from dynamo.guards.records import name_of_part
from dynamo.guards.shape_code import Fact
from dynamo.guards.sources import Scope, is_buffer
from dynamo.options import CompileOptions
from dynamo.symbolic.core.lookup import builtins_of

COMPILE_NOTHING = ("force_eager", "eager_on_recompile")
SHOWN = 3  # reasons in the warning about a limit
WASTED = 4  # so many entries that died unused weigh as much as one that is kept
NAMES = vars(builtins)
BUILTINS = {name: value for name, value in NAMES.items()
            if type(value) in (type, types.BuiltinFunctionType)}


def builtins_are_replaced(
    now: dict[str, Any] = NAMES, *, classes: type = type, kind_of: type = type,
    function: type = types.FunctionType, known: dict[str, Any] = BUILTINS,
) -> bool:
    """True where something else than a class stands for a class among the built-in names, or
    something else than a Python function for a function, or classes are made in another way: the
    compiler itself needs them. (All that this function uses, it has got before.)"""
    for name, value in known.items():
        found = now.get(name)
        if found is not value:
            kind = kind_of(found)
            wanted = classes if kind_of(value) is classes else function
            if kind is not wanted or name == "__build_class__":  # graphs are of new classes
                return True
    return False


@dataclass
class CodeRecord:
    """One code object in one region.

    changed: the numbers and sizes that had several values, with the first one; they are symbolic in
    later traces. fruitless: traces after which the frame ran as it is. first: the numbers and sizes
    of a first call that ran eager, see `set_stance`. stillborn: entries whose guards did not hold
    when they were made.
    """

    number: int
    changed: dict[Fact, int | float] = field(default_factory=dict)
    reasons: Counter[str] = field(default_factory=Counter)
    attempts: int = 0
    fruitless: int = 0
    stillborn: int = 0
    warned: bool = False
    first: dict[Fact, int | float] | None = None


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit that is reached. name: the setting; count: its value."""

    name: str
    count: int


@dataclass(frozen=True, slots=True)
class Miss:
    """Why no entry fits: the first difference to the nearest one, and the numbers and sizes that
    differ from those of any entry, with the value there."""

    nearest: Difference
    changed: dict[Fact, int | float]


Convert = Callable[[hook.FrameState, CompileOptions, str, Mapping[Fact, int | float]], Any]


_numbers = itertools.count()


class FramePolicy:
    """The callback of one region: decides whether a frame is compiled, and tells why.

    A lock makes threads that miss at the same time compile one after the other. throw: gives what
    a frame gives that meets the error with which compiling it ends, as of Ctrl-C. subject, held:
    whom `dynamo.frames.sharing` knows it by, and what has to live for that. twin: a weak reference
    to what `compile` gave for a module. compiled_for: the functions, or the
    objects whose methods they are, that share this policy, by identity, as they were compiled.
    """

    def __init__(
        self, options: CompileOptions, convert: Convert,
        throw: Callable[[hook.FrameState, BaseException], Any],
    ) -> None:
        self.options, self.convert = options, convert
        self.number = next(_numbers)
        self.lock = threading.RLock()
        self.records: dict[CodeType, CodeRecord] = {}
        self.warned: set[int] = set()
        self.changed_tables: dict[Fact, int | float] = {}
        self.subject: Any = None
        self.held: Any = None
        self.twin: Any = None
        self.compiled_for: dict[int, weakref.ref[Any]] = {}
        self.region = hook.Region(self.on_miss, self.on_defect, throw)

    def on_miss(self, frame: hook.FrameState) -> Any:
        """No entry fits: compile, or run the frame as it is."""
        try:
            with without_torch_function():
                return self.answer(frame)
        except (DynamoError, Warning):  # a warning that the program made an error
            raise
        except Exception as error:
            internal_error(frame.code, error, self.warned)
            return None

    def on_defect(self, frame: hook.FrameState, entry: hook.Entry) -> None:
        """The guards of a new entry don't hold. They count for the limit: who changes a value each
        time that it is compiled for would be compiled without end."""
        record = self.records[frame.code]
        record.stillborn += 1
        record.reasons["a value changed while it was compiled for"] += 1
        warnings.warn(
            f"{place_of(frame)}: guards fail on the values that they were made from; this call "
            "runs eager", RuntimeWarning, stacklevel=2)

    def answer(self, frame: hook.FrameState) -> Any:
        if builtins_are_replaced() or frame.builtins is not builtins_of(frame.globals):
            return None
        stance = stance_now()
        if config.disable or stance.name in COMPILE_NOTHING or in_modes_of_the_user():
            return None
        with self.lock:
            known = hook.entries(frame.code, self.region)
            record = self.records.setdefault(frame.code, CodeRecord(len(self.records)))
            if stance.name == "eager_then_compile" and self.waits(frame, record):
                return None
            limit = self.limit_reached(frame.code, len(known) + record.stillborn)
            quiet = stance.name == "default" and not config.error_on_recompile
            if limit and record.warned and quiet:
                return behind_limit(frame)
            if record.fruitless >= self.own_limit() and not mentions_tensors(frame):
                return None
            compile_id, why = f"{record.number}/{record.attempts}", "first call"
            if known:
                found = nearest_difference(known, frame, record.changed.keys())
                if isinstance(found, hook.Entry):
                    return found  # another thread has just compiled it
                nearest = in_words_of_user(found.nearest, frame)
                why = str(nearest)
                with self.compiling(frame, compile_id):
                    self.report(frame, record, nearest)
                known_before = record.changed
                record.changed = {**found.changed, **record.changed}
                for fact in found.changed:
                    if fact.what == "values":  # how often
                        record.changed[fact] = known_before.get(fact, 0) + 1
                        if not is_buffer(fact.source):
                            self.changed_tables[fact] = 1
            if limit:
                self.stop(frame, record, limit)
                return behind_limit(frame)
            record.attempts += 1
            with self.compiling(frame, compile_id), progress(self.place(frame), why):
                made = self.convert(
                    frame, self.options_now(stance, record), compile_id,
                    {**record.changed, **self.changed_tables})
            if made is None:
                record.fruitless += 1
            if stance.name == "fail_on_recompile" and isinstance(made, hook.Entry):
                self.refuse(frame, "it was not compiled for these arguments")
            if isinstance(made, hook.Entry):
                self.region.add(frame.code, made)  # now: the next thread must find it
            return made

    def compiling(
        self, frame: hook.FrameState, compile_id: str
    ) -> contextlib.AbstractContextManager[None]:
        """What is written inside of the block belongs to that compile of the frame."""
        return logs.compiling(logs.Compile(compile_id, self.number, title_of(frame)))

    def waits(self, frame: hook.FrameState, record: CodeRecord) -> bool:
        """True in the first call, which only tells its numbers and sizes: those that the second has
        changed are symbolic at once."""
        if record.attempts or name_of_part(frame.code) != frame.code.co_name:
            return False
        now = numbers_in(frame.locals)
        if record.first is None or self.is_in_first_call():
            record.first = now
            return True
        record.changed |= {fact: old for fact, old in record.first.items()
                           if fact in now and not const_equal(old, now[fact])}
        return False

    def is_in_first_call(self) -> bool:
        """True where one of the callers waits, as modules inside of a module."""
        waiting = {id(code) for code, record in self.records.items()  # new code may have no hash
                   if record.first is not None and not record.attempts}
        caller: types.FrameType | None = sys._getframe(1)
        while caller is not None and id(caller.f_code) not in waiting:
            caller = caller.f_back
        return caller is not None

    def options_now(self, stance: Stance, record: CodeRecord) -> CompileOptions:
        """The options, with the backend that a stance forces."""
        backend = stance.backend
        if stance.name == "aot_eager_then_compile" and record.attempts == 1:
            backend = lookup_backend("aot_eager")
        if backend is None:
            return self.options
        name = getattr(backend, "__name__", repr(backend))
        return replace(self.options, backend=backend, backend_name=name, mode=None, options={})

    def place(self, frame: hook.FrameState) -> str:
        """The function of the user, and what `name=` calls this call of `compile`."""
        name = self.options.name
        return place_of(frame) if name is None else f"{place_of(frame)} (compiled as {name!r})"

    def refuse(self, frame: hook.FrameState, reason: str) -> NoReturn:
        raise RecompileError(
            f"{self.place(frame)}: would be compiled, because {reason}. "
            "The stance 'fail_on_recompile' (set_stance) forbids it."
        )

    def add_compiled(self, model: Any, compiled: Any) -> None:
        """One more compiled function is of this policy."""
        living = {key: ref for key, ref in [*self.compiled_for.items()] if ref() is not None}
        self.compiled_for = {**living, id(model): weakref.ref(compiled)}

    def own_limit(self) -> int:
        """How many entries, and how many fruitless traces, one code object may have: so many for
        each function that lives, as closures made by one function may have nothing in common."""
        living = sum(ref() is not None for ref in [*self.compiled_for.values()])
        return (self.options.recompile_limit or config.recompile_limit) * max(living, 1)

    def limit_reached(self, code: CodeType, count: int) -> Limit | None:
        """The limit that forbids one more entry. Entries that died unused count, too: a function
        that is made anew in each iteration would be compiled for without end. There is none where
        other ranks would wait for what eager does not send."""
        if ranks.is_tied(self.number):
            return None
        own = self.own_limit()
        if count >= own or self.region.wasted(code) >= own * WASTED:
            return Limit("recompile_limit", own)
        total = config.accumulated_recompile_limit
        if hook.entry_count(code) >= total:
            return Limit("accumulated_recompile_limit", total)
        return None

    def report(self, frame: hook.FrameState, record: CodeRecord, nearest: Difference) -> None:
        """Tells why no entry fits; errors where the user forbids it."""
        place, reason = self.place(frame), str(nearest)
        record.reasons[reason] += 1
        logs.log("recompiles").emit(
            lambda: f"{place}: recompiled because {nearest.sentence()}",
            f"{record.number}/{record.attempts}",
        )
        counters.counters["recompiles"][reason] += 1
        line = nearest.line and (nearest.line.filename, nearest.line.lineno)
        events.record(events.Event("recompile", f"{record.number}/{record.attempts}", {
            "region": self.number, "place": place, "reason": reason, "line": line,
            "advice": nearest.advice}))
        if stance_now().name == "fail_on_recompile":
            self.refuse(frame, reason)
        if config.error_on_recompile:
            raise RecompileError(f"{place}: would be recompiled because {nearest.sentence()}")

    def stop(self, frame: hook.FrameState, record: CodeRecord, limit: Limit) -> None:
        """One message that new values run eager from now on."""
        seen = list(record.reasons)
        if self.region.wasted(frame.code) >= self.own_limit() * WASTED:
            seen.append("a function or class that it is compiled for died each time after one call")
        reasons = "; ".join(seen[:SHOWN]) or "other compiled functions share this code"
        if len(seen) > SHOWN:
            reasons += f"; and {len(seen) - SHOWN} more (DYNAMO_LOGS=recompiles shows all)"
        text = (
            f"{self.place(frame)}: reached the {limit.name.replace('_', ' ')} of {limit.count}; "
            f"new values run eager, compiled ones stay. Reasons seen: {reasons}. What to do: make "
            "the value that changes a tensor, mark the size dynamic, or raise "
            f"config.{limit.name}."
        )
        if config.fail_on_recompile_limit_hit:
            raise RecompileLimitExceeded(text)
        if not record.warned:
            record.warned = True
            logs.tell(text)

    def forget(self) -> None:
        """Drops everything compiled in this region."""
        for code in list(self.records):  # the end of an object may reset all
            hook.forget(code)
        self.records.clear()
        self.changed_tables.clear()
        self.number = next(_numbers)  # frames count from 0 again


def behind_limit(frame: hook.FrameState) -> Any:
    """How a frame runs that gets no further entry. Nothing new is compiled for what it calls: each
    function in it would be, for all the values that were too many here. Not so for the call of a
    module, which is code of all modules, and for a part behind a break, which may lie in a loop
    over layers: what these call has limits of its own."""
    code = frame.code
    is_part = name_of_part(code) != code.co_name
    return None if is_part or code is torch.nn.Module._call_impl.__code__ else hook.KNOWN_ONLY


def in_modes_of_the_user() -> bool:
    """Dispatch modes may do anything with each operation: frames inside of them run as they are,
    and so do those inside of function modes beside a default device, and those that carry tangents,
    whose saved tensors go through a function of the program, or whose operations torch.jit.trace
    records. The kernel of an operator runs as it is where that is asked
    for the sizes of its result: no graph can be recorded below functionalization."""
    if torch._C._dispatch_tls_is_dispatch_key_excluded(torch._C.DispatchKey.Functionalize):
        return True
    if torch._C._len_torch_dispatch_stack() or torch.autograd.forward_ad._current_level >= 0:
        return True
    if torch._C._get_tracing_state() is not None:
        return True
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(False)
    if hooks is not None and not str(hooks[0].__module__).startswith("torch."):
        return True
    return not all(isinstance(mode, DeviceContext) for mode in function_modes()) and (
        not outer_modes())


def title_of(frame: hook.FrameState) -> str:
    """What a person calls a frame: of a module that was compiled, its forward."""
    if frame.code is torch.nn.Module._call_impl.__code__:
        return f"{type(frame.locals['self']).__qualname__}.forward"
    return name_of_part(frame.code)


def place_of(frame: hook.FrameState) -> str:
    """The function of the user that a frame runs: of a module that was compiled, its forward."""
    code = frame.code
    if code is torch.nn.Module._call_impl.__code__:
        module = type(frame.locals["self"])
        code = forward_code(module) or code
        return f"{code.co_filename}:{code.co_firstlineno} {module.__qualname__}.forward"
    name = code.co_name
    behind = "" if name_of_part(code) == name else ", the part behind a graph break"
    return f"{code.co_filename}:{code.co_firstlineno} {name}{behind}"


def in_words_of_user(difference: Difference, frame: hook.FrameState) -> Difference:
    """What is said of the call of a compiled module names the parameters of its forward."""
    if frame.code is not torch.nn.Module._call_impl.__code__:
        return difference
    code = forward_code(type(frame.locals["self"]))
    names = () if code is None else code.co_varnames[1:code.co_argcount]
    text = difference.text
    for number, name in enumerate(names):
        text = text.replace(f"args[{number}]", name)
    return replace(difference, text=re.sub(r"\bkwargs\['(\w+)'\]", r"\1", text))


def nearest_difference(
    entries: Iterable[hook.Entry], frame: hook.FrameState, known: Set[Fact] = frozenset()
) -> Miss | hook.Entry:
    """Why no entry fits; an entry that has no difference in this frame, where there is one. known:
    the numbers and sizes that are known to change."""
    scope = Scope(frame.locals, frame.globals, frame.builtins, frame.cells)
    found: list[list[Difference]] = []
    changed: dict[Fact, int | float] = {}
    for entry in entries:
        guards = entry.keepalive.guards
        different = differences(guards, scope, known)
        if not different:
            return entry
        found.append(different)
        changed = {**changed_facts(guards, scope), **changed}
    return Miss(min(found, key=distance)[0], changed)
