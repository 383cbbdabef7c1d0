"""Built-in iterators that existed before the frame: a loop goes on with one behind a graph break.

Their next item is looked at, and guarded, without taking it; the new code takes it. One item of
each iterator only: a trace that took more would hold for one number of items left. But modules: a
trace holds for one module anyway.

In: the real iterator. Out: its next items, and the effect that takes them.
"""

from __future__ import annotations

import gc
import operator
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from dynamo.base.errors import Break
from dynamo.guards.sources import ItemSource, Source, StateSource, UpcomingSource
from dynamo.guards.states import state_of, upcoming
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Evaluation, Frame
from dynamo.symbolic.core.stack_values import OpaqueVar
from dynamo.symbolic.core.var import ObservedException, Var
from dynamo.symbolic.python.lists import TupleVar
from dynamo.symbolic.tensors.modules import ModuleVar

OVER_CONSTANTS = frozenset(
    type(iter(kind)) for kind in ((), range(1), range(2**70), "a", "\u1234", b"a"))
OVER_LISTS: frozenset[type] = frozenset((type(iter([])), type(reversed([]))))
DICT_PARTS: tuple[Any, ...] = ({}, {}.values(), {}.items())
OVER_DICTS = frozenset(type(go(part)) for go in (iter, reversed) for part in DICT_PARTS)
CONSTANTS = frozenset((tuple, str, bytes))
CALLING = (map, filter)  # what the trace makes of their arguments' items is not made again
FEW = 100  # looking at the next item of a dict costs a look at all
Taker = Callable[["LoopIteratorVar", "Frame"], Var]


class LoopIteratorVar(OpaqueVar):
    """taken: how many items the trace has asked for. goes_on: True where it may ask for another.

    taker: who takes them: this iterator itself, or a place in another one.
    """

    def __init__(self, trace: Evaluation, value: Any, source: Source, reason: Break) -> None:
        super().__init__(trace, value, source, reason)
        self.taken, self.goes_on, self.ended = 0, True, False
        self.taker: Any = None

    def next_item(self, tx: Frame) -> Var:
        calls = type(self.value) in CALLING
        if not self.goes_on:
            raise replace(self.reason)
        self._reserve(self)
        if not calls:
            tx.trace.effects.consume(self, self.taken + 1)
        self.goes_on = False
        item = self._take(tx)
        self.goes_on = not calls and holds_module(item)
        return item

    def take_for(self, tx: Frame, outer: LoopIteratorVar, place: int) -> Var:
        """The next item, for an iterator that takes it from this one when it is advanced."""
        if type(self.value) in CALLING:
            raise replace(self.reason)
        self._reserve((outer, place))
        return self._take(tx)

    def _reserve(self, taker: Any) -> None:
        """Errors: Break where somebody else has taken items, and where there is none to take."""
        if self.ended or self.taker not in (None, taker) or self.python_type() not in TAKERS:
            raise replace(self.reason)
        self.taker = taker

    def _take(self, tx: Frame) -> Var:
        try:
            item = TAKERS[type(self.value)](self, tx)
        except ObservedException:
            self.ended = True
            raise
        self.taken += 1
        return item

    def part(self, index: int) -> tuple[Any, Source]:
        """A part of its state."""
        assert self.source is not None
        return state_of(self.value)[index], ItemSource(StateSource(self.source), index)

    def inner(self, index: int) -> LoopIteratorVar:
        """One of the iterators that this one takes its items from."""
        value, source = self.part(index)
        known = self._trace.objects.var_of(value)
        if known is None:
            known = LoopIteratorVar(self._trace, value, source, self.reason)
            self._trace.objects.remember(value, known)
        if not isinstance(known, LoopIteratorVar):
            raise replace(self.reason)
        return known


def holds_module(item: Var) -> bool:
    if isinstance(item, TupleVar):
        return any(map(holds_module, item.items))
    return isinstance(item, ModuleVar)


def _first(var: LoopIteratorVar, tx: Frame) -> Var:
    """The next item of an iterator over constants."""
    assert var.source is not None
    try:
        items = upcoming(var.value, var.taken)
        source = UpcomingSource(var.source, var.taken)
    except RuntimeError:  # a dict has changed its size
        raise replace(var.reason) from None
    tx.trace.guard("LENGTH", source, len(items))
    if not items:
        tx.trace.raise_exception(StopIteration)
    return tx.trace.wrap(items[0], ItemSource(source, 0))


def _from_list(var: LoopIteratorVar, tx: Frame) -> Var:
    """The list must not be one that this trace has changed."""
    real, source = var.part(0)
    for changed in tx.trace.effects.targets():
        if changed.source is None:
            continue
        if tx.trace.objects.var_of(real) is changed:
            raise replace(var.reason)
        tx.trace.guard("NOT_SAME", source, changed.source)
    return _first(var, tx)


def _reversed(var: LoopIteratorVar, tx: Frame) -> Var:
    """What is no list must be known not to change."""
    real, source = var.part(0)
    tx.trace.guard("TYPE", source, type(real))
    if type(real) not in CONSTANTS:
        raise replace(var.reason)
    return _first(var, tx)


def _from_dict(var: LoopIteratorVar, tx: Frame) -> Var:
    for changed in tx.trace.effects.targets():
        if changed.source is not None and issubclass(changed.python_type(), dict):
            raise replace(var.reason)
    owner = next((part for part in gc.get_referents(var.value) if isinstance(part, dict)), None)
    if owner is None or len(owner) > FEW:
        raise replace(var.reason)
    return _first(var, tx)


def _enumerated(var: LoopIteratorVar, tx: Frame) -> Var:
    count, source = var.part(1)
    item = var.inner(0).take_for(tx, var, 0)
    number = tx.trace.wrap(count, source)
    if var.taken:
        number = tx.trace.call(tx, operator.add, number, ConstVar(var.taken))
    return TupleVar([number, item])


def _zipped(var: LoopIteratorVar, tx: Frame) -> Var:
    """Where a strict one ends, the real ones find out who is to blame."""
    strict, source = var.part(-1)
    tx.trace.guard("CONST", source, strict)
    try:
        inner = _inner(var, 0, -1)
        return TupleVar([part.take_for(tx, var, place) for place, part in enumerate(inner)])
    except ObservedException:
        if strict:
            raise replace(var.reason) from None
        raise


def _mapped(var: LoopIteratorVar, tx: Frame) -> Var:
    function = tx.trace.wrap(*var.part(0))
    return tx.call(function, [inner.next_item(tx) for inner in _inner(var, 1, None)], {})


def _filtered(var: LoopIteratorVar, tx: Frame) -> Var:
    function = tx.trace.wrap(*var.part(0))
    item = var.inner(1).next_item(tx)
    plain = function.is_constant() and function.as_constant() is None
    outcome = item if plain else tx.call(function, [item], {})
    if not outcome.truth(tx):
        raise replace(var.reason)
    return item


def _inner(var: LoopIteratorVar, start: int, stop: int | None) -> list[LoopIteratorVar]:
    """The iterators among the parts."""
    assert var.source is not None
    count = len(state_of(var.value))
    var._trace.guard("LENGTH", StateSource(var.source), count)
    return [var.inner(index) for index in range(count)[start:stop]]


TAKERS: dict[type, Taker] = {
    **dict.fromkeys(OVER_CONSTANTS, _first), **dict.fromkeys(OVER_LISTS, _from_list),
    **dict.fromkeys(OVER_DICTS, _from_dict), reversed: _reversed, enumerate: _enumerated,
    zip: _zipped, map: _mapped, filter: _filtered,
}
