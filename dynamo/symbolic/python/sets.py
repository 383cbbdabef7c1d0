"""Sets: set, frozenset. The order of their items is that of a real set, see `set_twins`."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

from dynamo._C import fill_set, set_table
from dynamo.base.errors import Break
from dynamo.base.words import counted
from dynamo.guards.sources import ItemSource, ObjectSource, Source, StateSource
from dynamo.symbolic.core.constant import VALUE_TYPES, ConstVar
from dynamo.symbolic.core.frame import Evaluation, Frame
from dynamo.symbolic.core.identities import Identities
from dynamo.symbolic.core.lookup import name_in_c
from dynamo.symbolic.core.type_methods import NativeVar
from dynamo.symbolic.core.unguarded import Unguarded
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.core.wrapping import wraps
from dynamo.symbolic.python.hashing import hash_of_element
from dynamo.symbolic.python.iterators import LiveIteratorVar
from dynamo.symbolic.python.keys import NO_KEY, is_set_item, single_key
from dynamo.symbolic.python.set_twins import Operand, SetOperation, Step, Twin, items_of, known_hash


class SetVar(NativeVar):
    """Exactly `set`. entries: hash key -> item; steps: how a set from outside was changed."""

    kind: type = set

    def __init__(
        self, source: Source | None = None, *, real: Any = None, trace: Evaluation | None = None
    ) -> None:
        super().__init__(source)
        self._entries: dict[Hashable, Var] = {}
        self._added: dict[Hashable, Var] = {}  # to a set that is unread
        self._has_grown = False  # by these, before it was read
        self._twin = Twin(set(), singly=True) if real is None else None
        self._real = real
        self._trace = trace
        self.steps: list[Step] = []

    @classmethod
    def from_items(cls, tx: Frame, items: Iterable[Var]) -> SetVar:
        """A new set to which CPython adds the items one by one, in this order."""
        result = cls()
        for item in items:
            key = hash_of_element(tx, item)
            if key not in result._entries:
                result._entries[key] = item
                result.twin.add(key, item)
        return result

    @classmethod
    def from_twin(cls, entries: dict[Hashable, Var], twin: Twin) -> SetVar:
        """A new set that an operation has made. entries: its items; where the twin has them, those
        that it has kept of equal ones."""
        result = cls()
        result._entries, result._twin = twin.entries(entries), twin
        return result

    @property
    def twin(self) -> Twin:
        """The real set beside it; that of a set from outside is made when it is first needed."""
        if self._twin is None:
            items, count = items_of(self.entries), len(self._real)
            if items is None or self.source is None:
                self._twin = Twin(None)
            else:
                self._twin = Twin.of_table(self._real, items[:count], self)
                self._twin.items.update(items[count:])  # type: ignore[union-attr]
        return self._twin

    @property
    def entries(self) -> dict[Hashable, Var]:
        if self._trace is not None:
            trace, self._trace = self._trace, None
            if not all(map(is_set_item, self._real)):
                raise Break("value_unknown", "set of objects from outside")
            trace.guard("TYPE", self.source, type(self._real))
            trace.guard("SET_ITEMS", self.source, frozenset(self._real))
            for item in self._real:
                known = type(item) in VALUE_TYPES or type(item) is tuple
                var: Var = ConstVar(item) if known else trace.wrap(item, None)
                self._entries[trace.state(Identities).hash_of(var)] = var
            self._has_grown = bool(self._added)
            self._entries.update({k: v for k, v in self._added.items() if k not in self._entries})
            self._added.clear()
        return self._entries

    def add_unread(self, tx: Frame, item: Var) -> bool:
        """Adds a constant to a set from outside that was not read; False for other sets."""
        if self._trace is None or type(self._real) is not set or single_key(item) is NO_KEY:
            return False
        self.python_type()
        self._added.setdefault(hash_of_element(tx, item), item)
        tx.trace.effects.grow(set.update, self, [item])
        return True

    @property
    def is_unread(self) -> bool:
        """True while nothing of the real set has been looked at."""
        return self._trace is not None

    def describe(self) -> str:
        return "a set" if self._trace is not None else (
            f"a set of {counted(len(self._entries), 'item')}")

    def python_type(self) -> type:
        if self._trace is not None:
            self._trace.guard("TYPE", self.source, type(self._real))
        return self.kind

    def children(self) -> Iterable[Var]:
        return (*self._entries.values(), *self._added.values(),
                *(part for step in self.steps for part in step.parts()))

    def is_constant(self) -> bool:
        return all(item.is_constant() for item in self.entries.values())

    def as_constant(self) -> Any:
        twin = self.twin
        if twin.items is None:
            return self.kind(item.as_constant() for item in self.entries.values())
        values = [item.var.as_constant() for item in twin.items]
        return fill_set(self.kind, set_table(twin.items), values)

    # -- changing ---------------------------------------------------------------------------

    def change(self, tx: Frame, method: SetOperation, *operands: Operand) -> Twin:
        """Announces that the method is called; the caller changes entries and twin, which it
        gets."""
        twin = self.twin
        if self.source is not None:
            for operand in operands:
                operand.guard(tx.trace)
            self.steps.append(Step(method, tuple(operand.written() for operand in operands)))
        tx.trace.effects.change_contents(self)
        return twin

    def insert(self, tx: Frame, item: Var) -> None:
        key = hash_of_element(tx, item)
        self.change(tx, set.add, Operand("item", [item])).add(key, item)
        self.entries.setdefault(key, item)

    def remove(self, tx: Frame, key: Hashable) -> None:
        """Removes what is there."""
        item = self.entries[key]
        self.change(tx, set.discard, Operand("item", [item])).discard(key, item)
        del self.entries[key]
        if known_hash(key) is None:
            self.forget(item)

    def forget(self, item: Var) -> None:
        """An item of unknown hash that came and went, as one does that is being printed: the new
        code need not make it."""
        own = [step for step in self.steps if step.parts() == [item]]
        if any(step.method is set.add for step in own):
            self.steps = [step for step in self.steps if step not in own]

    def empty(self, tx: Frame) -> None:
        self.change(tx, set.clear).clear()
        self.entries.clear()

    def pop(self, tx: Frame) -> Var | None:
        """What `pop` gives; None where it is not known."""
        twin = self.twin
        if not twin.items or (len(twin.items) > 1 and self.source is not None):
            return None
        self.ordered(tx.trace)
        self.change(tx, set.pop)
        item = twin.pop()
        return self.entries.pop(item.key)

    def update(
        self, tx: Frame, method: SetOperation, operands: list[Operand],
        entries: dict[Hashable, Var],
    ) -> None:
        """The method changes the set. entries: those that it has then."""
        twin = self.change(tx, method, *[operand.unless(self.twin) for operand in operands])
        twin.update(method, operands)
        if not twin.singly:  # those that were added stand in the order in which they were
            entries = twin.entries(entries)
        self.entries.clear()
        self.entries.update(entries)

    # -- the order --------------------------------------------------------------------------

    def ordered(self, trace: Evaluation) -> list[Var]:
        """The items in the order in which CPython iterates over them, guarded.

        That of a set from outside which nothing changed is read from it; all others are what their
        twins say.
        """
        items = list(self.entries.values())
        if len(items) <= 1:
            return items
        if self._real is not None and not self.steps and not self._has_grown:
            self.guard_order(trace)
            return items  # which were read in this order
        twin = self.twin
        if twin.items is None:
            raise Break("set_order", repr(self))
        twin.guard(trace)
        return [item.var for item in twin.items]

    def guard_order(self, trace: Evaluation) -> None:
        values = list(self._real)
        if isinstance(self.source, ObjectSource):
            trace.state(Unguarded).ordered(values)
        elif self.source is None:
            raise Break("set_order", repr(self))
        elif all(("constant", value) in self._entries for value in values):
            trace.guard("CONST", ItemSource(StateSource(self.source), 0), values)
        elif type(self._real) is frozenset:
            trace.guard("ID", self.source, self._real)
        else:
            raise Break("set_order", repr(self))

    def guard_table(self, trace: Evaluation) -> None:
        """Guards all that decides the order of copies, and of what is made of them."""
        if isinstance(self.source, ObjectSource):
            trace.state(Unguarded).ordered(list(self._real))
        elif self.source is not None:
            state = StateSource(self.source)
            trace.guard("CONST", ItemSource(state, 0), list(self._real))
            trace.guard("CONST", ItemSource(state, 1), set_table(self._real))

    def settle(self, trace: Evaluation) -> None:
        """The new code will make the set: what the order depends on is guarded."""
        if self.source is None and self.twin.has_own_table():
            self.twin.guard(trace)

    # -- protocol ---------------------------------------------------------------------------

    def truth(self, tx: Frame) -> bool:
        if self._added:
            return True
        return bool(self.read("BOOL_TRUTH", bool(self._real)) if self.is_unread else self._entries)

    def length(self, tx: Frame) -> Var:
        if self.is_unread and not self._added:
            return ConstVar(self.read("LENGTH", len(self._real)))
        return ConstVar(len(self.entries))

    def read(self, kind: str, fact: Any) -> Any:
        """The one fact of the real set that is asked for, guarded."""
        assert self._trace is not None
        self._trace.guard("TYPE", self.source, type(self._real))
        self._trace.guard(kind, self.source, fact)
        return fact

    def find_key(self, tx: Frame, item: Var) -> Hashable:
        """The key to look an item up by; a set is looked for as a frozenset."""
        if type(item) is SetVar and item.python_type() is set:
            item = FrozensetVar.from_items(tx, list(item.entries.values()))
        return hash_of_element(tx, item)

    def contains(self, tx: Frame, item: Var) -> Var:
        self.python_type()
        key, name = self.find_key(tx, item), single_key(item)
        if self._trace is None or name is NO_KEY or not all(map(is_set_item, self._real)):
            return ConstVar(key in self.entries)
        if key in self._added:
            return ConstVar(True)
        found = name in self._real
        self.read("SET_HAS" if found else "SET_LACKS", name)
        return ConstVar(found)

    def unpack(self, tx: Frame) -> list[Var]:
        return self.ordered(tx.trace)

    def iterate(self, tx: Frame) -> Var:
        items = self.ordered(tx.trace)
        return LiveIteratorVar(type(iter(set())), self, lambda: len(self.entries), items)

    def hash_key(self, tx: Frame) -> Hashable:
        tx.trace.raise_exception(TypeError, f"unhashable type: '{name_in_c(self.python_type())}'")


class FrozensetVar(SetVar):
    """Exactly `frozenset`."""

    kind = frozenset

    def hash_key(self, tx: Frame) -> Hashable:
        if self.is_constant():
            return ("constant", self.as_constant())
        return ("frozenset", frozenset(self.entries))


def set_in(var: Var) -> SetVar | None:
    """The set that it is, or that an instance of a subclass holds."""
    content = getattr(var, "content", var)
    return content if isinstance(content, SetVar) else None


@wraps(set)
def wrap_set(trace: Evaluation, value: Any, source: Source | None) -> Var:
    """An existing set, unread."""
    return SetVar(source, real=value, trace=trace)


@wraps(frozenset)
def wrap_frozenset(trace: Evaluation, value: Any, source: Source | None) -> Var:
    """An existing frozenset, unread."""
    return FrozensetVar(source, real=value, trace=trace)
