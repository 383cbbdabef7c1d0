"""A real set beside each modelled one: made by the same steps, it has the order that CPython's has.

The order of a set's items depends on their hashes, on the size of its table, and on what came and
went before; a copy has another order than its original. So nothing here computes an order: `Twin`
does to a real set of proxies what the program does to its own, and is read.

In: keys of items as `hash_key` gives them. Out: items in order; tables with which the new code
makes sets (`fill_set`); the steps that it replays on a set from outside.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Hashable, Iterable
from typing import Any, NamedTuple, Protocol

from dynamo._C import fill_set, set_table
from dynamo.symbolic.core.frame import Evaluation
from dynamo.symbolic.core.unguarded import Unguarded
from dynamo.symbolic.core.var import Var

SetOperation = Callable[..., Any]


class Item:
    """A proxy of an item: it has the hash of the real one, and equals what that equals."""

    __slots__ = ("key", "hash", "var")

    def __init__(self, key: Hashable, hash_: int, var: Var) -> None:
        self.key = key
        self.hash = hash_
        self.var = var

    def __hash__(self) -> int:
        return self.hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Item) and self.key == other.key


def item_of(key: Hashable, var: Var) -> Item | None:
    """None where the hash is not known while tracing, as that of an object yet to be made."""
    found = known_hash(key)
    return None if found is None else Item(key, found, var)


def items_of(entries: dict[Hashable, Var]) -> list[Item] | None:
    """Proxies of all, None where one is not known."""
    items = [item_of(key, var) for key, var in entries.items()]
    return None if None in items else items  # type: ignore[return-value]


def known_hash(key: Any) -> int | None:
    """The hash of what has this key, None where it is not known while tracing."""
    kind, parts = key[0], key[1:]
    if kind == "constant":
        return hash(parts[0])
    if kind == "identity":
        real = getattr(parts[0], "real", None)
        return hash(real) if isinstance(real, types.FunctionType) else None
    if kind not in HASHED_BY_PARTS:
        return None
    parts = parts[0] if kind == "frozenset" else parts[kind == "dataclass":]
    hashes = [(part, found) for part in parts if (found := known_hash(part)) is not None]
    if len(hashes) < len(parts):
        return None
    return hash(HASHED_BY_PARTS[kind](Item(part, found, part) for part, found in hashes))


# Kinds of keys whose hash is that of their parts.
HASHED_BY_PARTS: dict[str, Any] = {"tuple": tuple, "dataclass": tuple, "frozenset": frozenset}


def values_of(items: Iterable[Item]) -> list[Any]:
    """The constants among the items, keys for the others: for the check whether hashes last."""
    keys: list[Any] = [item.key for item in items]
    return [key[1] if key[0] == "constant" else key for key in keys]


class OutsideSet(Protocol):
    """A set from outside, on whose table the order of another one hangs."""

    def guard_table(self, trace: Evaluation) -> None: ...


class Operand(NamedTuple):
    """What a method of a set is given.

    kind: "item", "list", "dict", "set", or "self". values: in its order. real: an object that
    CPython's sets treat as the program's, None where it is not known. rests_on: see `Twin`. table:
    of the set, when the step is written down.
    """

    kind: str
    values: list[Var]
    real: Any = None
    rests_on: tuple[OutsideSet, ...] = ()
    table: bytes = b""

    def guard(self, trace: Evaluation) -> None:
        """The new code gives this to a method of a set from outside."""
        if self.kind == "set" and self.real is not None:
            guard_order(trace, self.real, self.rests_on)

    def unless(self, own: Twin) -> Operand:
        """The operand of a step that changes the set `own`, which may be given itself."""
        is_own = self.real is not None and self.real is own.items
        return Operand("self", []) if is_own else self

    def written(self) -> Operand:
        """The operand as it is now, for a step."""
        if self.kind != "set" or self.real is None:
            return Operand("list" if self.kind == "set" else self.kind, self.values)
        return Operand("set", [item.var for item in self.real], table=set_table(self.real))


class Step(NamedTuple):
    """A method of set and what it is given."""

    method: SetOperation
    operands: tuple[Operand, ...]

    def parts(self) -> list[Var]:
        return [value for operand in self.operands for value in operand.values]


class Twin:
    """items: the real set, None where a hash is not known. singly: items were only added, one by
    one, to an empty set, so that adding them again gives the same table. rests_on: the sets from
    outside whose tables decided about this one's."""

    __slots__ = ("items", "singly", "rests_on")

    def __init__(
        self, items: set[Item] | None, singly: bool = False, rests_on: tuple[OutsideSet, ...] = ()
    ) -> None:
        self.items = items
        self.singly = singly
        self.rests_on = rests_on

    @classmethod
    def of_table(cls, real: Any, items: list[Item], outside: OutsideSet) -> Twin:
        """That of a real set with these items, in its order."""
        return cls(fill_set(set, set_table(real), items), rests_on=(outside,))

    def entries(self, known: dict[Hashable, Var]) -> dict[Hashable, Var]:
        """The items by their keys; `known` where the twin does not know them."""
        return known if self.items is None else {item.key: item.var for item in self.items}

    def has_own_table(self) -> bool:
        """True where adding the items one by one may give another table."""
        if self.singly or self.items is None:
            return False
        return len(self.items) > 1 or set_table(self.items) != set_table(set(self.items))

    def add(self, key: Hashable, var: Var) -> None:
        item = None if self.items is None else item_of(key, var)
        if item is None or self.items is None:
            self.items = None
        else:
            self.items.add(item)

    def discard(self, key: Hashable, var: Var) -> None:
        self.singly = False
        item = None if self.items is None else item_of(key, var)
        if item is None or self.items is None:
            self.items = None
        else:
            self.items.discard(item)

    def clear(self) -> None:
        """What comes from here on depends on nothing before."""
        self.items, self.singly, self.rests_on = set(), True, ()

    def pop(self) -> Item:
        assert self.items is not None
        self.singly = False
        return self.items.pop()

    def made_by(self, function: SetOperation, *operands: Operand) -> Twin:
        """The twin of what the function makes of the sets."""
        rests_on = (*self.rests_on, *(each for operand in operands for each in operand.rests_on))
        reals = [operand.real for operand in operands]
        if self.items is None or any(real is None for real in reals):
            return Twin(None)
        return Twin(function(self.items, *reals), rests_on=tuple(dict.fromkeys(rests_on)))

    def update(self, method: SetOperation, operands: list[Operand]) -> None:
        """The method changes the set."""
        only_adds = method is set.update and all(operand.kind == "list" for operand in operands)
        made = self.made_by(lambda items, *reals: method(items, *reals) or items, *operands)
        self.items, self.rests_on = made.items, made.rests_on
        self.singly = self.singly and only_adds

    def guard(self, trace: Evaluation) -> None:
        """The order is needed: what it depends on is guarded."""
        if self.items is not None:
            guard_order(trace, self.items, self.rests_on)


def guard_order(trace: Evaluation, items: Iterable[Item], rests_on: Iterable[OutsideSet]) -> None:
    trace.state(Unguarded).ordered(values_of(items))
    for outside in rests_on:
        outside.guard_table(trace)
