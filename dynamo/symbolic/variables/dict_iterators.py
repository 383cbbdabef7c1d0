"""Iterators over a dict: they see values that are stored meanwhile, and fail where keys come or go.

In: the dict's Var and which part is wanted ("keys", "values", "items"). Out: its items, one by one.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING

from dynamo.base.errors import Break
from dynamo.guards.states import DICT_PARTS
from dynamo.symbolic.variables.base import Var
from dynamo.symbolic.variables.iterators import LiveIteratorVar
from dynamo.symbolic.variables.lists import TupleVar

if TYPE_CHECKING:
    from dynamo.symbolic.machine import SymbolicFrame
    from dynamo.symbolic.variables.dicts import DictVar

ITERATOR_TYPES: dict[str, type] = {part: kind for kind, part in DICT_PARTS.items()}
REVERSE_TYPES: dict[str, type] = {
    part: type(reversed(getattr({}, part)())) for part in ITERATOR_TYPES}


class DictIteratorVar(LiveIteratorVar):
    """keys: the hash keys of the entries when the iteration began, in its order."""

    def __init__(self, mapping: DictVar, part: str, backwards: bool = False) -> None:
        kind = (REVERSE_TYPES if backwards else ITERATOR_TYPES)[part]
        super().__init__(kind, mapping, lambda: len(mapping.entries), [])
        self.mapping, self.part, self.backwards = mapping, part, backwards
        self.keys = self._ordered_keys()

    def _ordered_keys(self) -> list[Hashable]:
        keys = list(self.mapping.entries)
        return keys[::-1] if self.backwards else keys

    def children(self) -> Iterable[Var]:
        return (self.owner,)

    def count(self) -> int:
        return len(self.keys)

    def item(self, index: int) -> Var:
        found = self.mapping.entries.get(self.keys[index])
        if found is None:
            raise Break("container_changed_in_loop", repr(self.owner))
        return TupleVar(found) if self.part == "items" else found[self.part == "values"]

    def stop(self, tx: SymbolicFrame) -> Var:
        if self.expected >= 0 and not self.has_same_keys():
            raise Break("container_changed_in_loop", repr(self.owner))
        self.expected = -2  # exhausted
        return super().stop(tx)

    def has_same_keys(self) -> bool:
        return self._ordered_keys() == self.keys
