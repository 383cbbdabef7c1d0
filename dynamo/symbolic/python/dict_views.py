"""What looks at a dict: mappingproxy and the views that `keys`, `values` and `items` give."""

from __future__ import annotations

import collections
import enum
import inspect
import types
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from dynamo.base.errors import Break
from dynamo.base.instances import is_class
from dynamo.guards.sources import DictSource, ItemSource, ObjectSource, Source, StateSource
from dynamo.guards.states import state_of
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.type_methods import NativeVar
from dynamo.symbolic.core.unguarded import COPY_OF_PROXY
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.core.wrapping import wraps
from dynamo.symbolic.python.binders import is_settled
from dynamo.symbolic.python.dict_iterators import DictIteratorVar
from dynamo.symbolic.python.equality import is_or_equals
from dynamo.symbolic.python.lists import TupleVar

if TYPE_CHECKING:
    from dynamo.symbolic.python.dicts import DictVar


class MappingProxyVar(Var):
    """`types.MappingProxyType` over a dict: read only."""

    methods_by_name = True

    def get_attr(self, tx: Frame, name: str) -> Var:
        return tx.trace.attributes.get_builtin_attr(tx, self, name)

    def __init__(self, mapping: Var, source: Source | None = None) -> None:
        super().__init__(source)
        self.mapping = mapping

    def python_type(self) -> type:
        return types.MappingProxyType

    def children(self) -> Iterable[Var]:
        return (self.mapping,)

    def truth(self, tx: Frame) -> bool:
        return self.mapping.truth(tx)

    def length(self, tx: Frame) -> Var:
        return self.mapping.length(tx)

    def contains(self, tx: Frame, item: Var) -> Var:
        return self.mapping.contains(tx, item)

    def get_item(self, tx: Frame, key: Var) -> Var:
        return self.mapping.get_item(tx, key)

    def iterate(self, tx: Frame) -> Var:
        return self.mapping.iterate(tx)

    def call_method(
        self, tx: Frame, name: str, args: list[Var], kwargs: dict[str, Var]
    ) -> Var:
        if name not in ("get", "keys", "values", "items", "copy", "__contains__", "__getitem__"):
            return super().call_method(tx, name, args, kwargs)
        return self.mapping.call_method(tx, name, args, kwargs)


VIEW_TYPES = {
    (kind is collections.OrderedDict, part): type(getattr(kind(), part)())
    for kind in (dict, collections.OrderedDict) for part in ("keys", "values", "items")
}


class DictViewVar(NativeVar):
    """`d.keys()`, `d.values()` or `d.items()` (`part`)."""

    def __init__(self, mapping: DictVar, part: str, source: Source | None = None) -> None:
        super().__init__(source)
        self.mapping, self.part = mapping, part

    def describe(self) -> str:
        return f"the {self.part} of {self.mapping!r}"

    def python_type(self) -> type:
        return VIEW_TYPES[issubclass(self.mapping.kind, collections.OrderedDict), self.part]

    def children(self) -> Iterable[Var]:
        return (self.mapping,)

    def truth(self, tx: Frame) -> bool:
        return self.mapping.truth(tx)

    def length(self, tx: Frame) -> Var:
        return self.mapping.length(tx)

    def unpack(self, tx: Frame) -> list[Var]:
        entries = list(self.mapping.entries.values())
        if self.part == "keys":
            return [key for key, _ in entries]
        if self.part == "values":
            return [value for _, value in entries]
        return [TupleVar([key, value]) for key, value in entries]

    def iterate(self, tx: Frame) -> Var:
        return DictIteratorVar(self.mapping, self.part)

    def contains(self, tx: Frame, item: Var) -> Var:
        if self.part == "keys":
            return self.mapping.contains(tx, item)
        if self.part == "items" and type(item) is TupleVar:
            if len(item.items) != 2:
                return ConstVar(False)
            found = self.mapping.lookup(tx, item.items[0])
            return ConstVar(found is not None and is_or_equals(tx, found, item.items[1]))
        return ConstVar(any(is_or_equals(tx, other, item) for other in self.unpack(tx)))

    def get_attr(self, tx: Frame, name: str) -> Var:
        if name == "mapping":
            return MappingProxyVar(self.mapping)
        return tx.trace.attributes.get_builtin_attr(tx, self, name)


@wraps(types.MappingProxyType)
def wrap_proxy(trace: Any, value: Any, source: Source | None) -> Var:
    """A read-only view. Those of classes are guarded; those of signatures do not change."""
    root = None if source is None else source.root()
    if source is None:
        raise Break("value_unknown", "mappingproxy")
    settled = isinstance(root, ObjectSource) and (
        isinstance(source, DictSource)
        or isinstance(root.value, enum.EnumType | inspect.Signature))
    if not settled:
        (mapping,) = state_of(value)
        if issubclass(type(mapping), dict) and dict.__contains__(mapping, "__doc__"):
            # The names of a class, which the trace may change.
            raise Break("value_unknown", "mappingproxy")
        trace.guard("TYPE", source, types.MappingProxyType)
        return MappingProxyVar(trace.wrap(mapping, ItemSource(StateSource(source), 0)), source)
    owner = root.value if isinstance(root, ObjectSource) else None
    if isinstance(source, DictSource) and is_class(owner) and not is_settled(owner):
        trace.guard("DICT_KEYS", source, tuple(value))
        for name in value:
            if not name.startswith("__"):
                trace.guard("ID", ItemSource(source, name), value[name])
    copy = dict(value)
    return MappingProxyVar(trace.wrap(copy, ObjectSource(copy, COPY_OF_PROXY)), source)
