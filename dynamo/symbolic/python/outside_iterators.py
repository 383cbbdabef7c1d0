"""Iterators that existed before the frame: taken from symbolically where their state can be read.

In: the real iterator and its source. Out: its items; that they were taken is an effect, which moves
the real one as far. A generator that has not started runs as a call of its function; when it has
ended, the real one is closed, and one that was left in the middle breaks the graph where it began
(but those that go over a module's parameters and the like, which run no code of the program).
"""

from __future__ import annotations

import itertools
import types
from collections.abc import Callable, Hashable, Iterable
from typing import Any

import torch

from dynamo.base.errors import Break
from dynamo.guards.sources import ItemSource, Source, StateSource
from dynamo.guards.states import DICT_PARTS, STATES, state_of
from dynamo.symbolic.core.frame import Evaluation, Frame
from dynamo.symbolic.core.identities import identity_key
from dynamo.symbolic.core.var import ObservedException, Var
from dynamo.symbolic.core.wrapping import wraps
from dynamo.symbolic.python.dict_iterators import DictIteratorVar
from dynamo.symbolic.python.dicts import DictVar
from dynamo.symbolic.python.functions import inline_stand_in
from dynamo.symbolic.python.generators import GeneratorVar
from dynamo.symbolic.python.iterators import (
    CountVar,
    EnumerateVar,
    FilterVar,
    IteratorVar,
    MapVar,
    RangeIteratorVar,
    SequenceIteratorVar,
    ZipVar,
)
from dynamo.symbolic.python.lists import SequenceVar

OF_PARTS = (zip, map, filter)  # all their state lies in the iterators that they were made of
MOVES_PARTS = (itertools.chain, enumerate)  # the real one moves them, where it is moved
MODULE_CODE = torch.nn.Module.parameters.__code__.co_filename
TO_THE_END = -1


class OutsideIteratorVar(IteratorVar):
    """inner: the model that gives the items, made when the first one is asked for.

    taken: how often the real one is to be moved, but for what others do that it is a part of.
    begun_at: the step at which the first item was taken.
    """

    def __init__(self, trace: Evaluation, value: Any, source: Source) -> None:
        super().__init__(source)
        self._trace, self.value = trace, value
        self.kind = type(value)
        self.inner: Any = None
        self.ended = False
        self.taken = self.begun_at = 0

    def describe(self) -> str:
        return f"an object of class {self.kind.__qualname__}"

    def python_type(self) -> type:
        self._trace.guard("TYPE", self.source, self.kind)
        return self.kind

    def iterate(self, tx: Frame) -> Var:
        self.python_type()  # it may be kept in an iterator that is never used
        return self

    def children(self) -> Iterable[Var]:
        return () if self.inner is None else (self.inner,)

    def is_torn(self) -> bool:
        """True where the real one can't be brought to where the trace has left it."""
        return self.taken > 0 and not self.ended and self._runs_code()

    def _runs_code(self) -> bool:
        """True where moving the real one may run code of the program."""
        if self.kind is types.GeneratorType:
            return bool(self.value.gi_code.co_filename != MODULE_CODE)
        return self.kind in (map, filter)

    def next_item(self, tx: Frame) -> Var:
        return self._move(tx, lambda inner: inner.next_item(tx))

    def call_method(
        self, tx: Frame, name: str, args: list[Var], kwargs: dict[str, Var]
    ) -> Var:
        if self.kind is types.GeneratorType and name in ("send", "throw", "close"):
            return self._move(tx, lambda inner: inner.call_method(tx, name, args, kwargs))
        return super().call_method(tx, name, args, kwargs)

    def _move(self, tx: Frame, step: Callable[[Any], Var]) -> Var:
        if self.inner is None:
            self.python_type()
            self.inner, self.begun_at = self._model(tx), tx.step_at_start
        effects = tx.trace.effects
        if effects.quiet and self._runs_code():
            raise Break("opaque_iterator", repr(self))
        moves = not (self.ended or effects.quiet or self.kind in OF_PARTS)
        whole = self.kind in MOVES_PARTS
        effects.quiet += whole
        try:
            return step(self.inner)
        except ObservedException:
            self.ended = True
            raise
        finally:
            effects.quiet -= whole
            self.ended = self.ended or getattr(self.inner, "finished", False)
            if moves:
                self.taken += 1
                closes = self.ended and self.kind is types.GeneratorType
                effects.consume(self, TO_THE_END if closes else self.taken)

    def _model(self, tx: Frame) -> IteratorVar:
        assert self.source is not None
        try:
            state = state_of(self.value)
        except TypeError as error:
            raise Break("opaque_iterator", f"{self!r}: {error}") from error
        return MODELS[self.kind](tx, State(tx.trace, state, StateSource(self.source)), self.kind)

    def hash_key(self, tx: Frame) -> Hashable:
        return identity_key(tx.trace, self)


class State:
    """The parts of an iterator's state with their sources."""

    def __init__(self, trace: Evaluation, parts: tuple[Any, ...], source: Source) -> None:
        self.trace, self.parts, self.source = trace, parts, source

    def var(self, index: int) -> Any:
        return self.trace.wrap(self.parts[index], ItemSource(self.source, index))

    def constant(self, index: int, kind: str = "CONST") -> Any:
        """The guarded part itself."""
        self.trace.guard(kind, ItemSource(self.source, index), self.parts[index])
        return self.parts[index]

    def iterators(self, start: int, stop: int) -> list[Var]:
        self.trace.guard("LENGTH", self.source, len(self.parts))
        return [self.var(index) for index in range(start, stop)]


def _sequence(tx: Frame, state: State, kind: type) -> IteratorVar:
    sequence = state.var(0)
    if state.parts[1] or not isinstance(sequence, SequenceVar):
        raise Break("opaque_iterator", f"{sequence!r} at {state.parts[1]}")
    state.constant(1)
    return SequenceIteratorVar(sequence)


def _range(tx: Frame, state: State, kind: type) -> IteratorVar:
    return RangeIteratorVar(state.constant(0))


def _dict(tx: Frame, state: State, kind: type) -> IteratorVar:
    mapping = state.var(0)
    if not isinstance(mapping, DictVar):
        raise Break("opaque_iterator", repr(mapping))
    return DictIteratorVar(mapping, DICT_PARTS[kind])


def _zip(tx: Frame, state: State, kind: type) -> IteratorVar:
    last = len(state.parts) - 1
    return ZipVar(state.iterators(0, last), state.constant(last))


def _map(tx: Frame, state: State, kind: type) -> IteratorVar:
    return MapVar(state.var(0), state.iterators(1, len(state.parts)))


def _filter(tx: Frame, state: State, kind: type) -> IteratorVar:
    function = None if state.parts[0] is None else state.var(0)
    if function is None:
        state.constant(0)
    return FilterVar(function, state.var(1))


def _enumerate(tx: Frame, state: State, kind: type) -> IteratorVar:
    return EnumerateVar(state.var(0), state.constant(1))


def _count(tx: Frame, state: State, kind: type) -> IteratorVar:
    return CountVar(state.var(0), state.var(1))


def _chain(tx: Frame, state: State, kind: type) -> IteratorVar:
    made = tx.trace.call(tx, itertools.chain.from_iterable, state.var(0))
    assert isinstance(made, GeneratorVar)
    return made


def _generator(tx: Frame, state: State, kind: type) -> IteratorVar:
    code, module_globals = state.constant(0, "ID"), state.constant(1, "ID")
    function = types.FunctionType(code, module_globals, code.co_name)
    arguments = [state.var(index) for index in range(2, len(state.parts))]
    names = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    positional, named = arguments[: code.co_argcount], arguments[code.co_argcount :]
    made = inline_stand_in(tx, function, positional, dict(zip(names, named, strict=True)))
    assert isinstance(made, GeneratorVar)
    return made


MODELS: dict[type, Callable[[Any, State, type], IteratorVar]] = {
    types.GeneratorType: _generator,
    type(iter([])): _sequence,
    type(iter(())): _sequence,
    type(iter(range(0))): _range,
    **dict.fromkeys(DICT_PARTS, _dict),
    zip: _zip,
    map: _map,
    filter: _filter,
    enumerate: _enumerate,
    itertools.chain: _chain,
    itertools.count: _count,
}
assert MODELS.keys() <= STATES.keys()


@wraps(*MODELS)
def wrap_iterator(trace: Evaluation, value: Any, source: Source | None) -> Var:
    """An existing iterator, unread."""
    if source is None:
        raise Break("value_unknown", type(value).__qualname__)
    return OutsideIteratorVar(trace, value, source)
