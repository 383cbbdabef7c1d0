"""Mappings: dict, OrderedDict, defaultdict.

A dict from a source answers single lookups of constant keys one by one (and guards only those);
its whole key list is guarded when something depends on it.
"""

from __future__ import annotations

import collections
from collections.abc import Hashable, Iterable
from typing import Any, cast

from dynamo.base.errors import Break
from dynamo.base.words import counted
from dynamo.guards.sources import (
    AttrSource,
    DictKeySource,
    DictSource,
    DictValueSource,
    ItemSource,
    Source,
    order_of,
)
from dynamo.symbolic.core.constant import ConstVar, may_be_address
from dynamo.symbolic.core.frame import Evaluation, Frame
from dynamo.symbolic.core.identities import Identities
from dynamo.symbolic.core.lookup import is_own_dict, is_whole, name_in_c
from dynamo.symbolic.core.stack_values import OpaqueVar
from dynamo.symbolic.core.type_methods import NativeVar
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.core.wrapping import wraps
from dynamo.symbolic.python.dict_iterators import DictIteratorVar
from dynamo.symbolic.python.hashing import hash_of_key
from dynamo.symbolic.python.keys import (
    NO_KEY,
    compares_silently,
    hashes_itself,
    is_plain_key,
    single_key,
)


class DictVar(NativeVar):
    """Exactly `dict`, `OrderedDict` or `defaultdict` (`kind`).

    entries: hash key -> (key Var, value Var), in order.
    """

    def __init__(
        self,
        kind: type = dict,
        source: Source | None = None,
        *,
        factory: Var | None = None,
        real: Any = None,
        trace: Evaluation | None = None,
    ) -> None:
        super().__init__(source)
        self.kind = kind
        self.factory = factory
        self._entries: dict[Hashable, tuple[Var, Var]] = {}
        self._real = real
        self._trace = trace
        self._seen: dict[Any, Var | None] = {}
        self._stored: dict[Hashable, tuple[Var, Var]] = {}  # beside the entries of an unread dict
        self.attributes: dict[str, Var] = {}
        self.removals = 0  # how often a key has gone, or another place in an OrderedDict
        self.steps: list[tuple[Any, Var | None]] = []  # see `note_step`
        self.is_numbered = False  # its keys are numbers that nothing reads: their count is guarded

    @classmethod
    def from_pairs(
        cls, tx: Frame, pairs: Iterable[tuple[Var, Var]], kind: type = dict
    ) -> DictVar:
        """A new dict; later pairs win, first positions stay."""
        result = cls(kind)
        for key, value in pairs:
            result.insert(hash_of_key(tx, key, kind), key, value)
        return result

    @classmethod
    def from_names(cls, items: dict[str, Var], kind: type = dict) -> DictVar:
        """A new dict with string keys."""
        result = cls(kind)
        for name, value in items.items():
            result._entries["constant", name] = (ConstVar(name), value)
        return result

    # -- reading ----------------------------------------------------------------------------

    @property
    def entries(self) -> dict[Hashable, tuple[Var, Var]]:
        if self._trace is not None:
            self._read()
        return self._entries

    @property
    def is_unread(self) -> bool:
        """True while the key list of the real dict has not been looked at."""
        return self._trace is not None

    def is_empty(self) -> bool:
        """True where the dict has no entry; a real one that has some is not read for it."""
        return not self.real_size() and not self.entries if self.is_unread else not self.entries

    def _read(self) -> None:
        trace, source = self._trace, self.source
        assert trace is not None and source is not None
        if not self._is_silent() or any(map(hashes_itself, set(map(type, dict.keys(self._real))))):
            raise Break("hash_unknown", repr(self))
        if self.kind is collections.OrderedDict and not is_whole(self._real):
            raise Break("value_unknown", f"the order of {self!r} that dict methods have changed")
        trace.guard("TYPE", source, type(self._real))
        if self.is_numbered:
            trace.guard("LENGTH", source, self.real_size())
        else:
            trace.guard("DICT_KEYS", source, tuple(self.kind.keys(self._real)))  # type: ignore[attr-defined]
        self._trace = None
        order = order_of(self._real).keys(self._real)
        places = {id(key): index for index, key in enumerate(order)}
        for key, value in list(self.kind.items(self._real)):  # type: ignore[attr-defined]
            if self.is_numbered:
                key_var: Var = NumberedKeyVar()
                value_source: Source = DictValueSource(source, places[id(key)])
                hash_key: Hashable = ("identity", key_var)
            elif is_plain_key(key):
                if may_be_address(key):
                    trace.state(Identities).note_key("address")
                key_var = ConstVar(key)
                value_source = ItemSource(source, key)
                hash_key = ("constant", key)
            else:
                key_var = trace.wrap(key, DictKeySource(source, places[id(key)]))
                value_source = DictValueSource(source, places[id(key)])
                hash_key = trace.state(Identities).hash_of(key_var)
            self._entries[hash_key] = (key_var, trace.wrap(value, value_source))
        for hash_key, (key_var, stored) in self._stored.items():
            self.insert(hash_key, key_var, stored)

    def lookup(self, tx: Frame, key: Var, kind: type = dict) -> Var | None:
        """The value under a key, None when absent; reads only that key of an unread dict. kind: see
        `hash_of_key`."""
        self.python_type()  # the key may have no hash
        hash_key = hash_of_key(tx, key, kind)
        name = single_key(key)
        if self._trace is None or name is NO_KEY or not self._is_silent():
            entry = self.entries.get(hash_key)
            return None if entry is None else entry[1]
        source = self.source
        assert source is not None
        if name not in self._seen:
            self._trace.guard("TYPE", source, type(self._real))
            if dict.__contains__(self._real, name):
                self._trace.guard("DICT_HAS", source, name)
                value = dict.__getitem__(self._real, name)
                self._seen[name] = self._trace.wrap(value, ItemSource(source, name))
            else:
                self._trace.guard("DICT_LACKS", source, name)
                self._seen[name] = None
        return self._seen[name]

    def real_size(self) -> int:
        """The number of entries from outside, whatever a subclass says of its length."""
        return 0 if self._real is None else dict.__len__(self._real)

    def _is_silent(self) -> bool:
        """True where looking up a plain key runs no `__eq__` of the program."""
        return all(map(compares_silently, set(map(type, dict.keys(self._real)))))

    def values(self) -> list[Var]:
        return [value for _, value in self.entries.values()]

    def keys(self) -> list[Var]:
        return [key for key, _ in self.entries.values()]

    # -- writing ----------------------------------------------------------------------------

    def insert(self, hash_key: Hashable, key: Var, value: Var) -> None:
        """Sets an entry without announcing it (new dicts, and after `change`)."""
        old = self._entries.get(hash_key)
        if old is None:
            self.note_step(dict.__setitem__, key)
        self._entries[hash_key] = (key if old is None else old[0], value)

    def note_step(self, method: Any, key: Var | None = None) -> None:
        """Notes that a key comes or goes by this method of dict. The real dict goes through the
        same steps: a real iterator over it stands at a place of its table, gone keys included."""
        if self._real is not None:
            self.steps.append((method, key))
        self.removals += method is not dict.__setitem__

    def change(self, tx: Frame) -> dict[Hashable, tuple[Var, Var]]:
        """The entries, to be mutated now."""
        if is_own_dict(self._real):
            raise Break("call_of_unknown_function", f"a change of {self!r}, its own __dict__")
        entries = self.entries
        tx.trace.effects.change_contents(self)
        return entries

    def set_item(self, tx: Frame, key: Var, value: Var) -> None:
        hash_key = hash_of_key(tx, key, self.python_type())
        name = single_key(key)
        if name is NO_KEY or type(self._real) not in STORED_SINGLY or not self.is_unread or (
            self.is_numbered or not self._is_silent()
        ):
            self.change(tx)
            self.insert(hash_key, key, value)
            return
        self.python_type()
        self._seen[name] = value
        self._stored[hash_key] = (key, value)
        tx.trace.effects.store_item(self, name, key, value)

    def del_item(self, tx: Frame, key: Var) -> None:
        hash_key = hash_of_key(tx, key, self.python_type())
        if hash_key not in self.entries:
            tx.trace.raise_exception(KeyError, key)
        self.note_step(dict.__delitem__, self.change(tx).pop(hash_key)[0])

    # -- protocol ---------------------------------------------------------------------------

    def describe(self) -> str:
        return "a dict" if self._trace is not None else (
            f"a dict of {counted(len(self._entries), 'entry')}")

    def python_type(self) -> type:
        if self._trace is not None:
            self._trace.guard("TYPE", self.source, type(self._real))
        return self.kind

    def children(self) -> Iterable[Var]:
        for key, value in self._entries.values():
            yield key
            yield value
        yield from (value for value in self._seen.values() if value is not None)
        yield from (key for _, key in self.steps if key is not None)
        yield from self.attributes.values()
        if self.factory is not None:
            yield self.factory

    def as_proxy(self) -> Any:
        return {key.as_constant(): value.as_proxy() for key, value in self.entries.values()}

    def as_fake(self) -> Any:
        return {key.as_constant(): value.as_fake() for key, value in self.entries.values()}

    def truth(self, tx: Frame) -> bool:
        if self._trace is not None:
            # Emptiness alone matters: do not guard the keys of a filled dict.
            if not self.real_size() or type(self._real) is not self.kind:
                return bool(self.entries)
            self._trace.guard("TYPE", self.source, type(self._real))
            self._trace.guard("BOOL_TRUTH", self.source, True)
            return True
        return bool(self.entries)

    def length(self, tx: Frame) -> Var:
        if self._trace is None or self._stored:
            return ConstVar(len(self.entries))
        self._trace.guard("TYPE", self.source, type(self._real))
        self._trace.guard("LENGTH", self.source, self.real_size())
        return ConstVar(self.real_size())

    def get_item(self, tx: Frame, key: Var) -> Var:
        found = self.lookup(tx, key)
        if found is not None:
            return found
        if self.kind is collections.defaultdict and self.factory is not None:
            value = tx.call(self.factory, [], {})
            self.set_item(tx, key, value)
            return value
        tx.trace.raise_exception(KeyError, key)

    def contains(self, tx: Frame, item: Var) -> Var:
        return ConstVar(self.lookup(tx, item) is not None)

    def iterate(self, tx: Frame) -> Var:
        return DictIteratorVar(self, "keys")

    def unpack(self, tx: Frame) -> list[Var]:
        return self.keys()

    def get_attr(self, tx: Frame, name: str) -> Var:
        if name == "default_factory" and self.python_type() is collections.defaultdict:
            return self.factory if self.factory is not None else ConstVar(None)
        if self.kind is collections.OrderedDict and not hasattr(self.kind, name):
            return self.own_attr(tx, name)
        return tx.trace.attributes.get_builtin_attr(tx, self, name)

    def own_attr(self, tx: Frame, name: str) -> Var:
        """An attribute that an OrderedDict was given."""
        if name in self.attributes:
            return self.attributes[name]
        own = {} if self._real is None else self._real.__dict__
        self.python_type()
        if name not in own:
            if self.source is not None:
                tx.trace.guard("LACKS_ATTR", self.source, name)
            message = f"'{name_in_c(self.kind)}' object has no attribute '{name}'"
            tx.trace.raise_exception(AttributeError, message)
        assert self.source is not None
        self.attributes[name] = tx.trace.wrap(own[name], AttrSource(self.source, name))
        return self.attributes[name]

    def has_attrs(self, tx: Frame) -> bool:
        """True for an OrderedDict that was given attributes."""
        own = {} if self._real is None else self._real.__dict__
        if self.source is not None:
            tx.trace.guard("DICT_KEYS", DictSource(self.source), tuple(own))
        return bool(own or self.attributes)

    def set_attr(self, tx: Frame, name: str, value: Var) -> None:
        if self.kind is not collections.OrderedDict or hasattr(self.kind, name):
            super().set_attr(tx, name, value)
        self.python_type()
        tx.trace.effects.store_attr(self, name, value)
        self.attributes[name] = value

    def hash_key(self, tx: Frame) -> Hashable:
        tx.trace.raise_exception(TypeError, f"unhashable type: '{name_in_c(self.python_type())}'")


# Dicts that get a single entry without a look at the others.
STORED_SINGLY = (dict, collections.defaultdict)


class NumberedKeyVar(Var):
    """A key that is not known, and unlike all others."""

    def hash_key(self, tx: Frame) -> Hashable:
        return ("identity", self)


NAMES_OF_MODULES = ("__builtins__", "__spec__")


@wraps(dict, collections.OrderedDict)
def wrap_dict(trace: Evaluation, value: Any, source: Source | None) -> Var:
    """An existing dict, unread; that of an object which the trace has looked at stays its own."""
    owner = trace.objects.owners.get(id(value))
    if owner is not None:
        return owner.dict_from(trace, source)
    if any(name in value for name in NAMES_OF_MODULES):  # code reads and stores these by name, too
        reason = Break("value_unknown", "dict of a module's names")
        return OpaqueVar(trace, value, cast(Source, source), reason)
    return DictVar(type(value), source, real=value, trace=trace)


@wraps(collections.defaultdict)
def wrap_defaultdict(trace: Evaluation, value: Any, source: Source | None) -> Var:
    """An existing defaultdict, unread except for its factory."""
    assert source is not None
    factory: Var | None = trace.wrap(value.default_factory, AttrSource(source, "default_factory"))
    if isinstance(factory, ConstVar) and factory.value is None:
        factory = None
    return DictVar(type(value), source, factory=factory, real=value, trace=trace)
