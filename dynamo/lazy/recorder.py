"""The recorder of one backend: the present trace, what may enter it, and its end.

At most one recorder of a process has a trace: the first operation on another ends it, so that the
operations of all of them, and of all threads, have one order.
"""

from __future__ import annotations

from typing import Any

import torch

from dynamo.backends.registry import at_reset, lookup_backend
from dynamo.lazy import _C, draws, replay
from dynamo.lazy.program import COMPILED, HIT, Programs, below, in_dtype, rerun
from dynamo.lazy.record import LOCK, Unrecordable, dispatch
from dynamo.lazy.report import REPORT, End, users_line
from dynamo.lazy.tensor import Hooks, LazyTensor, wrap
from dynamo.lazy.trace import Trace
from dynamo.lazy.values import BASE, EXPOSED, LazyError, Value, expose, facts_of, is_private
from dynamo.lazy.weights import may_be_weight
from dynamo.shapes.facts import Facts

LONGEST = 10_000
# Looks after which the program may read or write the memory without our knowing.
ADDRESSES = frozenset(("numpy", "data_ptr", "untyped_storage", "storage", "dlpack"))

UNWANTED = "nothing wants its results"
GIVEN = frozenset(("numpy", "dlpack"))


class Recorder:
    """devices: the kind of device whose operations are recorded; None is all. longest: a trace of
    so many operations ends."""

    def __init__(
        self, backend: Any = "inductor", device: str | None = None, longest: int = LONGEST,
        options: dict[str, Any] | None = None,
    ) -> None:
        self.device, self.longest = device, longest
        self.programs = Programs(lookup_backend(backend), options or {})
        self.trace = Trace()
        self.script = _C.script()

    def takes(self, kind: str) -> bool:
        """Whether operations on that kind of device are recorded."""
        return self.device is None or kind == self.device

    def dispatch(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Records a call of our own."""
        return dispatch(self, func, args, kwargs, False)

    # -- what enters a trace -----------------------------------------------------------------

    def activate(self) -> None:
        """Ends the trace of any other recorder."""
        if ACTIVE[0] is not self:
            ACTIVE[0].cut("operations of another backend follow")
            ACTIVE[0] = self
            _C.start(self.script, False)

    def adopt(self, tensor: torch.Tensor, facts: Facts) -> Value:
        """The value of an ordinary tensor: its memory is read, and written, when the trace runs."""
        trace, address = self.trace, BASE.data_ptr(tensor)
        known = trace.adopted.get(id(tensor))
        if known is not None and known[2] == address and known[1].facts is facts:
            return known[1]
        value = trace.addresses.get((address, facts)) if address else None
        if value is None:
            value = Value(facts, _C.data(tensor), borrowed=True)
            value.ordinary = tensor if may_be_weight(tensor) else None
            trace.addresses[address, facts] = value
            trace.storages.add(BASE.untyped_storage(tensor)._cdata)
        trace.adopted[id(tensor)] = tensor, value, address
        return value

    def copy(self, tensor: torch.Tensor) -> LazyTensor:
        """A known value of our own."""
        REPORT.count("copies")
        with below():
            made = tensor.detach().clone()
        return wrap(Value(facts_of(made), made))

    def enter(self, value: Value, inside: bool) -> None:
        """Makes a known value an input of the trace. Errors: Unrecordable, LazyError."""
        real = value.real
        if real is None:
            raise _lost(value)
        if (value.borrowed and not inside) or not is_private(real):
            raise Unrecordable("others see its memory")
        self.trace.add_input(value)

    def reads(self, tensor: torch.Tensor) -> bool:
        """Whether the trace has an ordinary tensor of that memory."""
        storages = self.trace.storages
        return bool(storages) and BASE.untyped_storage(tensor)._cdata in storages

    # -- the end of a trace --------------------------------------------------------------------

    def before_eager(self, operator: str, reason: str, look: bool) -> None:
        """Ends the trace before an operator that runs in eager."""
        why = f"{operator} looks at a value" if look else f"{operator} runs in eager: {reason}"
        if look:
            if ACTIVE[0].trace.rules:
                REPORT.count("looks")
        else:
            REPORT.fell_back(operator)
        if ACTIVE[0].trace.rules:
            _C.note_cut((why, look))
        ACTIVE[0].cut(why)

    def real_of(self, value: Value, reason: str) -> torch.Tensor:
        """The tensor that a value is. Errors: LazyError."""
        active = ACTIVE[0]
        if value.real is None or active.trace.writes or reason in ADDRESSES:
            if active.trace.rules:
                REPORT.count("looks")
            active.cut(f"{reason} looks at a value")
        if value.real is None:
            raise _lost(value)
        return value.real

    def cut(self, reason: str) -> None:
        """Runs the trace, and begins a new one. Errors: those of the program's operators."""
        with LOCK:
            try:
                if ACTIVE[0] is not self or not _C.on() or not self._cut_followed(reason):
                    self._cut_recorded(reason)
            finally:
                if ACTIVE[0] is self:
                    _C.start(self.script if MODES else None, False)
                    arm()

    def _cut_recorded(self, reason: str) -> None:
        trace, self.trace = self.trace, Trace()
        if not trace.rules:
            return
        live = trace.live()
        borrowed = {
            place for place, value in zip(trace.places, trace.inputs, strict=True)
            if value.borrowed
        }  # fmt: skip
        place = users_line()
        REPORT.count("traces")
        REPORT.count("operations", len(trace.rules))

        def keep(number: int, tensor: torch.Tensor) -> None:
            value = live.get(number)
            if value is not None:
                _settle(value, tensor)
                value.borrowed = trace.roots[number] in borrowed

        how = "failed"
        try:
            if live or trace.writes:
                with in_dtype(trace.dtype):
                    how = self.programs.run(trace, tuple(live), keep, place)
            else:
                how = UNWANTED
            if how in (HIT, COMPILED) and ACTIVE[0] is self and _C.length() > 0:
                _C.attach(replay.ended(trace, self.programs.programs[trace.key()]),
                          tuple(trace.places), len(trace.slots))  # fmt: skip
        except Exception as error:
            for value in live.values():
                if value.real is None:
                    value.error = error
            raise
        finally:
            for value in live.values():
                value.trace = None
            for value in trace.inputs:
                value.trace = None
            REPORT.ends.append(End(place, reason, how, len(trace.rules)))

    # -- a trace that is followed without Python (`lazy.replay`) ---------------------------------

    def _cut_followed(self, reason: str) -> bool:
        """Runs what was followed. False where Python has its trace now, and has to run it."""
        if not _C.length():
            return True
        found = _C.look()
        if found is None:
            self.resume()
            return False
        end: replay.Ended = found[0]
        live: dict[int, list[LazyTensor]] = {}
        for number, tensor in found[1]:
            live.setdefault(number, []).append(tensor)
        wanted = bool(live) or end.writes
        variant = end.program.find(tuple(live)) if wanted else None
        if wanted and variant is None:
            self.resume()
            return False
        values = {number: Value(end.made[number]) for number in live}
        how = HIT if wanted else UNWANTED
        place = users_line()
        try:
            if variant is not None and not self._rerun(end, variant, found[2], values):
                self.resume()
                return False
        except Exception as error:
            how = "failed"
            for value in values.values():
                if value.real is None:
                    value.error = error
            self._hand_out(live, values, End(place, reason, how, end.operations))
            raise
        self._hand_out(live, values, End(place, reason, how, end.operations))
        return True

    def _rerun(
        self, end: replay.Ended, variant: Any, numbers: list[float], values: dict[int, Value]
    ) -> bool:
        """Runs the graph. False where it failed and has written nothing."""
        borrowed = {number for number in values if _is_borrowed(end.roots[number])}

        def keep(number: int, tensor: torch.Tensor) -> None:
            value = values.get(number)
            if value is not None:
                _settle(value, tensor)
                value.borrowed = number in borrowed

        with in_dtype(end.dtype):
            return rerun(variant, _C.inputs(variant.weights), numbers, keep, end.writes)

    def _hand_out(
        self, live: dict[int, list[LazyTensor]], values: dict[int, Value], how: End,
    ) -> None:
        """Gives the tensors of a followed trace their values."""
        for number, tensors in live.items():
            for tensor in tensors:
                tensor._lazy = values[number]
        REPORT.trace_followed(how)

    def resume(self) -> None:
        """Puts what was followed into a trace of Python's, which goes on from there."""
        payloads, inputs, live, numbers = _C.leave()
        trace = self.trace = Trace()
        supply = iter(inputs)
        made: list[Value] = []
        for payload in payloads:
            if payload is None:
                continue
            rule, operands, entering, writes_ordinary, trace.dtype = payload
            for _ in range(entering):
                value = self._input(*next(supply))
                trace.add_input(value)
            made += trace.add(rule, list(operands))
            trace.writes_ordinary |= writes_ordinary
        trace.numbers = numbers
        values = {value.index: value for value in made}
        for number, tensor in live:
            tensor._lazy = values[number]

    def _input(self, what: Any, real: Any) -> Value:
        """An input of a trace that was followed; what: a `Value`, an ordinary tensor, or None."""
        if isinstance(what, Value):
            return what
        facts = facts_of(real)
        if what is None:
            return Value(facts, real)
        value, address = Value(facts, real, borrowed=True), BASE.data_ptr(what)
        value.ordinary = what if may_be_weight(what) else None
        if address:
            self.trace.addresses.setdefault((address, facts), value)
        self.trace.adopted[id(what)] = what, value, address
        self.trace.storages.add(BASE.untyped_storage(what)._cdata)
        return value

    def forget(self) -> None:
        """Drops what was compiled and what is known of traces."""
        self.programs.programs.clear()
        self.programs.families.clear()
        self.script = _C.script()


def _settle(value: Value, tensor: torch.Tensor | None) -> None:
    """Gives a value its tensor, at the place in its memory that the program was told."""
    facts = value.facts
    if tensor is None:
        value.error = LazyError("the operator has made no tensor")
        return
    if tensor.shape != facts.size or tensor.dtype is not facts.dtype:
        raise LazyError(f"an operator made {tuple(tensor.shape)} where {facts} was expected")
    if tensor.stride() != facts.stride or tensor.storage_offset() != facts.offset:
        length = facts.nbytes // facts.dtype.itemsize
        memory = torch.empty(length, dtype=facts.dtype, device=facts.device)
        placed = memory.as_strided(facts.size, facts.stride, facts.offset)
        tensor = placed.copy_(tensor)
    value.real = tensor


def _is_borrowed(root: int) -> bool:
    """Whether that input of the followed trace is an ordinary tensor's memory; -1: no input."""
    if root < 0:
        return False
    owner = _C.owner(root)
    return owner.borrowed if isinstance(owner, Value) else owner is not False


def _lost(value: Value) -> Exception:
    error = LazyError(
        "this lazy tensor has no value: an operation of its trace has failed. "
        "Compute it again; lazy.explain() shows where the trace ended."
    )
    error.__cause__ = value.error
    return error


HOME: list[Recorder] = [Recorder()]
ACTIVE: list[Recorder] = [HOME[0]]
MODES: list[Any] = []  # the dispatch modes that are on; the last one's calls are followed
DEPTH = [0]  # calls that are being recorded, one within another


def arm() -> None:
    """From now on calls are followed, where nothing is recorded yet that is not known."""
    active = ACTIVE[0]
    if not MODES or DEPTH[0] or _C.on() or _C.length() > 0 or active.trace.slots:
        return
    home = ACTIVE[0] = HOME[0]
    if home.trace.slots:
        return
    if _C.steps_of(home.script) > replay.MOST_STEPS:
        home.script = _C.script()
    _C.start(home.script, True)


def enter(
    recorder: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], inside: bool
) -> Any:
    """Records a call of the program, which was not followed. Errors: those of the operator."""
    with LOCK:
        ours = _C.take()
        DEPTH[0] += 1
        try:
            _stop_following(ours)
            said = replay.SAID
            said.forget()
            result = dispatch(recorder, func, args, kwargs, inside)
            if ours and DEPTH[0] == 1:
                replay.tell(recorder.trace)
            return result
        finally:
            DEPTH[0] -= 1
            if not DEPTH[0] and not ours:
                _C.poison()
            arm()


def _stop_following(ours: bool) -> None:
    """Python takes the trace over, or runs it, where it has ended here before."""
    if not _C.on():
        return
    why = _C.expected_cut() if ours else None
    if why is None:
        ACTIVE[0].resume()
        return
    if why[1]:
        REPORT.count("looks")
    ACTIVE[0].cut(why[0])


def set_modes(change: Any, of: Any) -> None:
    """A mode begins (`MODES.append`) or ends (`MODES.remove`)."""
    with LOCK:
        if _C.on():
            ACTIVE[0].resume()
        change(of)
        _C.set_mode(MODES[-1] if MODES else None)
        arm()


def _dispatch(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return enter(HOME[0], func, args, kwargs, False)


def _real(tensor: LazyTensor, reason: str) -> torch.Tensor:
    with LOCK:
        if _C.on():
            value = vars(tensor).get("_lazy")
            if value is None or value.real is None or _C.writes()[0] or reason in ADDRESSES:
                if _C.length():
                    REPORT.count("looks")
                ACTIVE[0].cut(f"{reason} looks at a value")
        real = ACTIVE[0].real_of(tensor._lazy, reason)
        if reason in GIVEN:
            expose(real)
        return real


def _hand_over() -> None:
    """The program changes what a lazy tensor is."""
    with LOCK:
        if _C.on():
            ACTIVE[0].resume()
        _C.poison()


Hooks.dispatch = _dispatch
Hooks.real = _real
Hooks.settle = _hand_over
_C.setup(LazyTensor, torch.nn.Parameter, EXPOSED, wrap, draws.known)
at_reset(lambda: ACTIVE[0].cut("dynamo.reset()"))
