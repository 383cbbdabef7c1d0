"""The recorder of one backend: the present trace, what may enter it, and its end.

At most one recorder of a process has a trace: the first operation on another ends it, so that the
operations of all of them, and of all threads, have one order.
"""

from __future__ import annotations

from typing import Any

import torch

from dynamo.backends.registry import at_reset, lookup_backend
from dynamo.shapes.facts import Facts
from lazy.program import Programs, below
from lazy.record import LOCK, Unrecordable, dispatch
from lazy.report import REPORT, End, users_line
from lazy.tensor import Hooks, LazyTensor, wrap
from lazy.trace import Trace
from lazy.values import BASE, LazyError, Value, expose, facts_of, is_private

LONGEST = 10_000
# Looks after which the program may read or write the memory without our knowing.
ADDRESSES = frozenset(("numpy", "data_ptr", "untyped_storage", "storage", "dlpack"))

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

    def adopt(self, tensor: torch.Tensor, facts: Facts) -> Value:
        """The value of an ordinary tensor: its memory is read, and written, when the trace runs."""
        trace, address = self.trace, BASE.data_ptr(tensor)
        known = trace.adopted.get(id(tensor))
        if known is not None and known[2] == address and known[1].facts is facts:
            return known[1]
        value = trace.addresses.get((address, facts)) if address else None
        if value is None:
            value = Value(facts, tensor.data, borrowed=True)
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
        if look:
            if ACTIVE[0].trace.rules:
                REPORT.count("looks")
            ACTIVE[0].cut(f"{operator} looks at a value")
            return
        REPORT.fell_back(operator)
        ACTIVE[0].cut(f"{operator} runs in eager: {reason}")

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
                how = self.programs.run(trace, tuple(live), keep, place) if (
                    live or trace.writes) else "nobody wants its results"
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


def _lost(value: Value) -> Exception:
    error = LazyError(
        "this lazy tensor has no value: an operation of its trace has failed. "
        "Compute it again; lazy.explain() shows where the trace ended."
    )
    error.__cause__ = value.error
    return error


HOME: list[Recorder] = [Recorder()]
ACTIVE: list[Recorder] = [HOME[0]]


def _dispatch(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return dispatch(HOME[0], func, args, kwargs, False)


def _real(tensor: LazyTensor, reason: str) -> torch.Tensor:
    with LOCK:
        real = ACTIVE[0].real_of(tensor._lazy, reason)
        if reason in GIVEN:
            expose(real)
        return real


Hooks.dispatch = _dispatch
Hooks.real = _real
at_reset(lambda: ACTIVE[0].cut("dynamo.reset()"))
