"""What looks at a dict: mappingproxy and the views that `keys`, `values` and `items` give."""

from __future__ import annotations

import types
from collections.abc import Iterable
from typing import TYPE_CHECKING

from dynamo.guards.sources import Source
from dynamo.symbolic.variables.base import Var
from dynamo.symbolic.variables.constant import ConstVar
from dynamo.symbolic.variables.dict_iterators import DictIteratorVar
from dynamo.symbolic.variables.lists import TupleVar

if TYPE_CHECKING:
    from dynamo.symbolic.machine import SymbolicFrame
    from dynamo.symbolic.variables.dicts import DictVar


class MappingProxyVar(Var):
    """`types.MappingProxyType` over a dict: read only."""

    methods_by_name = True

    def get_attr(self, tx: SymbolicFrame, name: str) -> Var:
        return tx.trace.get_builtin_attr(tx, self, name)

    def __init__(self, mapping: Var, source: Source | None = None) -> None:
        super().__init__(source)
        self.mapping = mapping

    def python_type(self) -> type:
        return types.MappingProxyType

    def children(self) -> Iterable[Var]:
        return (self.mapping,)

    def truth(self, tx: SymbolicFrame) -> bool:
        return self.mapping.truth(tx)

    def length(self, tx: SymbolicFrame) -> Var:
        return self.mapping.length(tx)

    def contains(self, tx: SymbolicFrame, item: Var) -> Var:
        return self.mapping.contains(tx, item)

    def get_item(self, tx: SymbolicFrame, key: Var) -> Var:
        return self.mapping.get_item(tx, key)

    def iterate(self, tx: SymbolicFrame) -> Var:
        return self.mapping.iterate(tx)

    def call_method(
        self, tx: SymbolicFrame, name: str, args: list[Var], kwargs: dict[str, Var]
    ) -> Var:
        if name not in ("get", "keys", "values", "items", "copy", "__contains__", "__getitem__"):
            return super().call_method(tx, name, args, kwargs)
        return self.mapping.call_method(tx, name, args, kwargs)


VIEW_TYPES = {"keys": type({}.keys()), "values": type({}.values()), "items": type({}.items())}


class DictViewVar(Var):
    """`d.keys()`, `d.values()` or `d.items()` (`part`)."""

    def __init__(self, mapping: DictVar, part: str) -> None:
        super().__init__()
        self.mapping, self.part = mapping, part

    def describe(self) -> str:
        return f"the {self.part} of {self.mapping!r}"

    def python_type(self) -> type:
        return VIEW_TYPES[self.part]

    def children(self) -> Iterable[Var]:
        return (self.mapping,)

    def truth(self, tx: SymbolicFrame) -> bool:
        return self.mapping.truth(tx)

    def length(self, tx: SymbolicFrame) -> Var:
        return self.mapping.length(tx)

    def unpack(self, tx: SymbolicFrame) -> list[Var]:
        entries = list(self.mapping.entries.values())
        if self.part == "keys":
            return [key for key, _ in entries]
        if self.part == "values":
            return [value for _, value in entries]
        return [TupleVar([key, value]) for key, value in entries]

    def iterate(self, tx: SymbolicFrame) -> Var:
        return DictIteratorVar(self.mapping, self.part)

    def contains(self, tx: SymbolicFrame, item: Var) -> Var:
        if self.part == "keys":
            return self.mapping.contains(tx, item)
        if self.part == "items" and type(item) is TupleVar:
            if len(item.items) != 2:
                return ConstVar(False)
            found = self.mapping.lookup(tx, item.items[0])
            return ConstVar(found is not None and tx.trace.is_or_equals(tx, found, item.items[1]))
        return ConstVar(any(tx.trace.is_or_equals(tx, other, item) for other in self.unpack(tx)))

    def get_attr(self, tx: SymbolicFrame, name: str) -> Var:
        if name == "mapping":
            return MappingProxyVar(self.mapping)
        return tx.trace.get_builtin_attr(tx, self, name)

    def call_method(
        self, tx: SymbolicFrame, name: str, args: list[Var], kwargs: dict[str, Var]
    ) -> Var:
        return tx.trace.call_type_method(tx, self, name, args, kwargs)
