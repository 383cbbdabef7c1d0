"""Iterators over a dict: they see values that are stored meanwhile, and fail where keys come or go.

In: the dict's Var and which part is wanted ("keys", "values", "items"). Out: its items, one by one.
"""

from __future__ import annotations

import collections
from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING

from dynamo.base.errors import Break
from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.python.iterators import LiveIteratorVar
from dynamo.symbolic.python.lists import TupleVar

if TYPE_CHECKING:
    from dynamo.symbolic.python.dicts import DictVar

ITERATOR_TYPES: dict[str, type] = {
    part: type(iter(getattr({}, part)())) for part in ("keys", "values", "items")}
REVERSE_TYPES: dict[str, type] = {
    part: type(reversed(getattr({}, part)())) for part in ITERATOR_TYPES}

ORDERED_ITERATOR: type = type(iter(collections.OrderedDict()))


class DictIteratorVar(LiveIteratorVar):
    """keys: the hash keys of the entries when the iteration began, in its order."""

    def __init__(self, mapping: DictVar, part: str, backwards: bool = False) -> None:
        self.is_ordered = issubclass(mapping.kind, collections.OrderedDict)
        kind = (REVERSE_TYPES if backwards else ITERATOR_TYPES)[part]
        if self.is_ordered:
            kind = ORDERED_ITERATOR
        super().__init__(kind, mapping, lambda: len(mapping.entries), [])
        self.mapping, self.part, self.backwards = mapping, part, backwards
        self.keys = self._ordered_keys()
        self.removals = mapping.removals

    def _ordered_keys(self) -> list[Hashable]:
        keys = list(self.mapping.entries)
        return keys[::-1] if self.backwards else keys

    def children(self) -> Iterable[Var]:
        return (self.owner,)

    def count(self) -> int:
        return len(self.keys)

    def item(self, index: int) -> Var:
        if self.removals != self.mapping.removals:  # what came again stands behind
            raise Break("container_changed_in_loop", repr(self.owner))
        found = self.mapping.entries.get(self.keys[index])
        if found is None:
            raise Break("container_changed_in_loop", repr(self.owner))
        return TupleVar(found) if self.part == "items" else found[self.part == "values"]

    def stop(self, tx: Frame) -> Var:
        if not self.is_at_end() and self.expected >= 0 and not self.has_same_keys():
            raise Break("container_changed_in_loop", repr(self.owner))
        self.expected = -2  # exhausted
        return super().stop(tx)

    def has_same_keys(self) -> bool:
        return self.removals == self.mapping.removals and self._ordered_keys() == self.keys

    def next_item(self, tx: Frame) -> Var:
        if self.is_ordered and self.is_at_end():
            return self.stop(tx)
        if self.is_ordered and self.is_mutated():
            self.expected = -2
            tx.trace.raise_exception(RuntimeError, "OrderedDict mutated during iteration")
        return super().next_item(tx)

    def is_at_end(self) -> bool:
        """True for an exhausted iterator, and for one over an OrderedDict behind its last item,
        which looks at nothing any more."""
        return self.expected == -2 or (self.is_ordered and self.position >= self.count())

    def is_mutated(self) -> bool:
        """True where an OrderedDict has changed more than values."""
        return self.size() != self.expected or self.removals != self.mapping.removals
