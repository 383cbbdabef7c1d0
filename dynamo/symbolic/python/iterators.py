"""Iterators as values: their state lives in the Var and moves with each `next_item`.

Those made in the trace have no source. An iterator that existed before the frame counts what was
taken from it (an effect: the real one is advanced as far).
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable

from dynamo.base.errors import Break
from dynamo.base.words import shown
from dynamo.guards.sources import Source
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.type_methods import call_type_method
from dynamo.symbolic.core.var import ObservedException, Var
from dynamo.symbolic.python.lists import DequeVar, SequenceVar, TupleVar
from dynamo.symbolic.python.ranges import break_where_long


class IteratorVar(Var):
    """Base of iterators: `iter(self)` is itself."""

    kind: type = object

    def __init__(self, source: Source | None = None) -> None:
        super().__init__(source)

    def python_type(self) -> type:
        return self.kind

    def truth(self, tx: Frame) -> bool:
        self.python_type()
        return True

    def iterate(self, tx: Frame) -> Var:
        return self

    def stop(self, tx: Frame) -> Var:
        """Raises StopIteration in the traced program."""
        tx.trace.raise_exception(StopIteration)

    def get_attr(self, tx: Frame, name: str) -> Var:
        return tx.trace.attributes.get_builtin_attr(tx, self, name)

    def call_method(
        self, tx: Frame, name: str, args: list[Var], kwargs: dict[str, Var]
    ) -> Var:
        if name == "__next__" and not args and not kwargs:
            return self.next_item(tx)
        if name == "__iter__" and not args and not kwargs:
            return self
        return call_type_method(tx, self, name, args, kwargs)


class SequenceIteratorVar(IteratorVar):
    """Iterator over a list or tuple: sees what is appended meanwhile, as the real one does.

    position: index of the next item; None once exhausted (stays exhausted). text: the str or bytes
    of which the sequence holds the items.
    """

    def __init__(self, sequence: SequenceVar, text: ConstVar | None = None) -> None:
        super().__init__()
        self.sequence, self.text = sequence, text
        self.position: int | None = 0
        self.kind = type(iter([] if sequence.kind is list else ()))
        if text is not None:
            self.kind = type(iter(text.value))

    def describe(self) -> str:
        return f"an iterator of {self.sequence!r}"

    def children(self) -> Iterable[Var]:
        return (self.sequence,)

    def next_item(self, tx: Frame) -> Var:
        position = self.position
        if position is None or position >= len(self.sequence.items):
            self.position = None
            return self.stop(tx)
        tx.trace.effects.tick()
        self.position = position + 1
        return self.sequence.items[position]

    def remaining(self) -> list[Var]:
        """The items that are still to come."""
        return [] if self.position is None else self.sequence.items[self.position :]


class DequeIteratorVar(SequenceIteratorVar):
    """Iterator over a deque, which fails once items have come or gone."""

    def __init__(self, sequence: DequeVar) -> None:
        sequence.items  # noqa: B018 (it is read now)
        super().__init__(sequence)
        self.deque, self.changes = sequence, sequence.changes
        self.kind = type(iter(collections.deque()))

    def next_item(self, tx: Frame) -> Var:
        if self.changes != self.deque.changes:
            self.position = None
            tx.trace.raise_exception(RuntimeError, "deque mutated during iteration")
        return super().next_item(tx)


class ReverseIteratorVar(IteratorVar):
    """`reversed` of a list, tuple or text: looks where it stands, whatever was put there meanwhile.

    position: index of the next item; -1 once exhausted (stays exhausted).
    """

    def __init__(self, sequence: SequenceVar) -> None:
        super().__init__()
        self.sequence = sequence
        self.position = len(sequence.items) - 1
        self.kind = type(reversed([])) if sequence.kind is list else reversed

    def describe(self) -> str:
        return f"a reverse iterator of {self.sequence!r}"

    def children(self) -> Iterable[Var]:
        return (self.sequence,)

    def next_item(self, tx: Frame) -> Var:
        position = self.position
        if not 0 <= position < len(self.sequence.items):
            self.position = -1
            return self.stop(tx)
        tx.trace.effects.tick()
        self.position = position - 1
        return self.sequence.items[position]


class ReverseDequeIteratorVar(ReverseIteratorVar):
    """`reversed` of a deque, which fails once items have come or gone."""

    def __init__(self, sequence: DequeVar) -> None:
        super().__init__(sequence)
        self.deque, self.changes = sequence, sequence.changes
        self.kind = type(reversed(collections.deque()))

    def next_item(self, tx: Frame) -> Var:
        if self.position >= 0 and self.changes != self.deque.changes:
            self.position = -1
            tx.trace.raise_exception(RuntimeError, "deque mutated during iteration")
        return super().next_item(tx)


class RangeIteratorVar(IteratorVar):
    """Iterator over a range."""

    def __init__(self, rest: range) -> None:
        super().__init__()
        self.rest = rest
        self.kind = type(iter(rest))

    def describe(self) -> str:
        return f"an iterator of {shown(self.rest)}"

    def next_item(self, tx: Frame) -> Var:
        if not self.rest:
            return self.stop(tx)
        tx.trace.effects.tick()
        item = self.rest[0]
        self.rest = self.rest[1:]
        return ConstVar(item)

    def remaining_items(self, tx: Frame) -> list[Var]:
        break_where_long(self.rest)
        return super().remaining_items(tx)


class IndexIteratorVar(IteratorVar):
    """`iter(x)` of an object with `__getitem__` only."""

    kind = type(iter(type("_Sequence", (), {"__getitem__": lambda self, index: index})()))

    def __init__(self, sequence: Var) -> None:
        super().__init__()
        self.sequence = sequence
        self.position: int | None = 0

    def children(self) -> Iterable[Var]:
        return (self.sequence,)

    def next_item(self, tx: Frame) -> Var:
        if self.position is None:
            return self.stop(tx)
        try:
            item = self.sequence.get_item(tx, ConstVar(self.position))
        except ObservedException as error:
            if not issubclass(error.value.python_type(), IndexError | StopIteration):
                raise
            self.position = None
            return self.stop(tx)
        tx.trace.effects.tick()
        self.advance()
        return item

    def advance(self) -> None:
        if self.position is not None:  # else asking for the item has gone to the end
            self.position += 1


class ReverseIndexIteratorVar(IndexIteratorVar):
    """`reversed(x)` of an object with `__len__` and `__getitem__`."""

    kind = reversed

    def __init__(self, sequence: Var, length: int) -> None:
        super().__init__(sequence)
        self.position = length - 1 if length else None

    def advance(self) -> None:
        self.position = self.position - 1 if self.position else None


class EnumerateVar(IteratorVar):
    """`enumerate(iterable, start)`."""

    kind = enumerate

    def __init__(self, iterator: Var, count: int) -> None:
        super().__init__()
        self.iterator, self.count = iterator, count

    def children(self) -> Iterable[Var]:
        return (self.iterator,)

    def next_item(self, tx: Frame) -> Var:
        item = self.iterator.next_item(tx)
        tx.trace.effects.tick()
        self.count += 1
        return TupleVar([ConstVar(self.count - 1), item])


class ZipVar(IteratorVar):
    """`zip(*iterables, strict=...)`."""

    kind = zip

    def __init__(self, iterators: list[Var], strict: bool) -> None:
        super().__init__()
        self.iterators, self.strict = iterators, strict

    def children(self) -> Iterable[Var]:
        return self.iterators

    def next_item(self, tx: Frame) -> Var:
        if not self.iterators:
            return self.stop(tx)
        items: list[Var] = []
        for index, iterator in enumerate(self.iterators):
            try:
                items.append(iterator.next_item(tx))
            except ObservedException as error:
                if self.strict and issubclass(error.value.python_type(), StopIteration):
                    self._check_ends(tx, index)
                raise
        return TupleVar(items)

    def _check_ends(self, tx: Frame, index: int) -> None:
        if index > 0:
            plural = " " if index == 1 else "s 1-"
            tx.trace.raise_exception(
                ValueError, f"zip() argument {index + 1} is shorter than argument{plural}{index}"
            )
        for later in range(1, len(self.iterators)):
            try:
                self.iterators[later].next_item(tx)
            except ObservedException as error:
                if issubclass(error.value.python_type(), StopIteration):
                    continue
                raise
            plural = " " if later == 1 else "s 1-"
            tx.trace.raise_exception(
                ValueError, f"zip() argument {later + 1} is longer than argument{plural}{later}"
            )


class MapVar(IteratorVar):
    """`map(function, *iterables)`."""

    kind = map

    def __init__(self, function: Var, iterators: list[Var]) -> None:
        super().__init__()
        self.function, self.iterators = function, iterators

    def children(self) -> Iterable[Var]:
        return (self.function, *self.iterators)

    def next_item(self, tx: Frame) -> Var:
        items = [iterator.next_item(tx) for iterator in self.iterators]
        return tx.call(self.function, items, {})


class FilterVar(IteratorVar):
    """`filter(function, iterable)`; function None filters by truth."""

    kind = filter

    def __init__(self, function: Var | None, iterator: Var) -> None:
        super().__init__()
        self.function, self.iterator = function, iterator

    def children(self) -> Iterable[Var]:
        return (self.iterator,) if self.function is None else (self.function, self.iterator)

    def next_item(self, tx: Frame) -> Var:
        while True:
            item = self.iterator.next_item(tx)
            outcome = item if self.function is None else tx.call(self.function, [item], {})
            if outcome.truth(tx):
                return item


class LiveIteratorVar(IteratorVar):
    """Iterator over a set or dict: an error when the container changes size meanwhile.

    size: gives the number of items now; items: those that were there at the start.
    """

    def __init__(self, kind: type, owner: Var, size: Callable[[], int], items: list[Var]) -> None:
        super().__init__()
        self.kind = kind
        self.owner, self.size = owner, size
        self.items, self.position, self.expected = items, 0, size()

    def children(self) -> Iterable[Var]:
        return (self.owner, *self.items[self.position :])

    def count(self) -> int:
        """The number of items at the start."""
        return len(self.items)

    def item(self, index: int) -> Var:
        return self.items[index]

    def next_item(self, tx: Frame) -> Var:
        if self.position > self.count():
            return self.stop(tx)
        if self.size() != self.expected:
            self.expected = -1
            word = {"dict": "dictionary", "set": "Set"}.get(self.owner.python_type().__name__)
            if word is None:
                raise Break("container_changed_in_loop", repr(self.owner))
            tx.trace.raise_exception(RuntimeError, f"{word} changed size during iteration")
        tx.trace.effects.tick()
        if self.position == self.count():
            self.position += 1
            return self.stop(tx)
        self.position += 1
        return self.item(self.position - 1)

    def remaining(self) -> list[Var]:
        """The items that are still to come."""
        return [self.item(index) for index in range(self.position, self.count())]
