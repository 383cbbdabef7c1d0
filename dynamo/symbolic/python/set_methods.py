"""Methods and operators of sets. Each is done to the items, and to the twin that has the order."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Callable, Hashable
from typing import Any

from dynamo._C import fill_set, set_table
from dynamo.base.errors import Break
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.table import NONE, rule
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.python.containers import before_change
from dynamo.symbolic.python.dict_views import DictViewVar
from dynamo.symbolic.python.hashing import hash_of_element
from dynamo.symbolic.python.iteration import KNOWN, each_item
from dynamo.symbolic.python.set_twins import Operand, Twin, items_of
from dynamo.symbolic.python.sets import FrozensetVar, SetVar, set_in

Entries = dict[Hashable, Var]


def as_entries(tx: Frame, other: Var, wanted: Entries | None = None) -> Entries:
    """Of equal items the first, as sets keep it. wanted: behind the last of these nothing is taken
    of what is no set."""
    own = set_in(other)
    if own is not None:
        return dict(own.entries)
    entries: Entries = {}
    missing = set() if wanted is None else set(wanted)
    for item in each_item(tx, other):
        key = hash_of_element(tx, item) if wanted is None else item.hash_key(tx)
        entries.setdefault(key, item)
        if key in missing:
            missing.remove(key)
            if not missing:
                break
    return entries


def operand_of(other: Var, entries: Entries) -> Operand:
    """What CPython's sets look at in it. entries: its items."""
    values, own = list(entries.values()), set_in(other)
    if own is not None:
        return Operand("set", values, own.twin.items, own.twin.rests_on)
    items = items_of(entries)
    if items is not None and other.python_type() is dict:
        return Operand("dict", values, dict.fromkeys(items))
    return Operand("list", values, items)


def combine(
    tx: Frame, var: SetVar, name: str, others: tuple[Var, ...]
) -> tuple[Entries, list[Operand]]:
    """The entries of a union, intersection, difference or symmetric difference, and the operands
    for the twin."""
    result: Entries = dict(var.entries)
    operands = []
    for given in others:
        other = as_entries(tx, given, result if name == "intersection" else None)
        operands.append(operand_of(given, other))
        if name == "union":
            result = {**result, **other, **result}  # in their turn, of equal ones the first
        elif name == "intersection":  # CPython keeps the items of the smaller set, or of the other
            own = isinstance(given, SetVar) and len(other) > len(result)
            source, filter_ = (result, other) if own else (other, result)
            result = {k: v for k, v in source.items() if k in filter_}
        elif name == "difference":
            result = {k: v for k, v in result.items() if k not in other}
        else:
            both = result.keys() & other.keys()
            result = {k: v for k, v in {**result, **other}.items() if k not in both}
    return result, operands


def check_count(name: str, others: tuple[Var, ...]) -> None:
    if name == "symmetric_difference" and len(others) != 1:
        raise Break("argument_mismatch", f"{name} with {len(others)} arguments")


def set_algebra(name: str) -> None:
    method = getattr(set, name)

    def fresh(tx: Frame, var: SetVar, *others: Var) -> Var:
        check_count(name, others)
        entries, operands = combine(tx, var, name, others)
        return type(var).from_twin(entries, var.twin.made_by(method, *operands))

    rule([method, getattr(frozenset, name)], SetVar)(fresh)


def set_update(method: str, name: str) -> None:
    real = getattr(set, method)

    def inplace(tx: Frame, var: SetVar, *others: Var) -> Var:
        check_count(name, others)
        if name in ONE_BY_ONE and not all(isinstance(other, KNOWN) for other in others):
            for item in itertools.chain.from_iterable(each_item(tx, other) for other in others):
                ONE_BY_ONE[name](tx, var, item)
            if name == "difference":  # at its end the table may become smaller
                var.update(tx, real, [Operand("list", [], [])], dict(var.entries))
            return NONE
        entries, operands = before_change(lambda: combine(tx, var, name, others))
        var.update(tx, real, operands, entries)
        return NONE

    rule(real, SetVar)(inplace)


def drop(tx: Frame, var: SetVar, item: Var) -> None:
    key = hash_of_element(tx, item)
    if key in var.entries:
        var.remove(tx, key)


# What a method does with each item that it is given, in its turn.
ONE_BY_ONE: dict[str, Callable[[Frame, SetVar, Var], Any]] = {
    "union": lambda tx, var, item: add(tx, var, item), "difference": drop}

for _name in ("union", "intersection", "difference", "symmetric_difference"):
    set_algebra(_name)
    set_update("update" if _name == "union" else f"{_name}_update", _name)


def operate_on_views(
    tx: Frame, name: str, function: Callable[[Any, Any], Any], a: Var, b: Var
) -> Var:
    """An operator where at least one is a view of a dict: the result is a set."""
    entries = as_entries(tx, a)
    combined, _ = combine(tx, SetVar.from_twin(entries, Twin(None)), name, (b,))
    reals = [real_operand(a, entries), real_operand(b, as_entries(tx, b))]
    outside = [each for var in (a, b) if isinstance(var, SetVar) for each in var.twin.rests_on]
    of_items = name == "symmetric_difference" and all(  # which has a way of its own
        isinstance(var, DictViewVar) and var.part == "items" for var in (a, b))
    known = all(real is not None for real in reals) and not of_items
    twin = Twin(function(*reals) if known else None, rests_on=tuple(outside))
    return SetVar.from_twin(combined, twin)


def real_operand(var: Var, entries: Entries) -> Any:
    """A real view, set or frozenset like this one, None where it is not known."""
    if isinstance(var, DictViewVar):
        items = items_of(entries)  # only of keys of a plain dict the set gets its size at once
        plain = var.part == "keys" and var.mapping.kind is not collections.OrderedDict
        kind = dict if plain else collections.OrderedDict
        return None if items is None else kind.fromkeys(items).keys()
    assert isinstance(var, SetVar)
    twin = var.twin.items
    return None if twin is None else fill_set(var.python_type(), set_table(twin), list(twin))


def make_set(tx: Frame, kind: type[SetVar], items: tuple[Var, ...]) -> SetVar:
    """`set(items)`, `frozenset(items)`."""
    if not items:
        return kind()
    if set_in(items[0]) is None and items[0].python_type() is not dict:
        return kind.from_items(tx, each_item(tx, items[0]))
    entries = as_entries(tx, items[0])
    operand = operand_of(items[0], entries)
    return kind.from_twin(entries, Twin(set()).made_by(lambda _, real: set(real), operand))


@rule([set])
def set_(tx: Frame, *items: Var) -> Var:
    return make_set(tx, SetVar, items)


@rule([frozenset])
def frozenset_(tx: Frame, *items: Var) -> Var:
    if items and items[0].python_type() is frozenset:
        return items[0]
    return make_set(tx, FrozensetVar, items)


@rule(set.add, SetVar)
def add(tx: Frame, var: SetVar, item: Var) -> Var:
    if not var.add_unread(tx, item):
        var.insert(tx, item)
    return NONE


@rule(set.pop, SetVar)
def set_pop(tx: Frame, var: SetVar) -> Var | None:
    if not var.entries:
        tx.trace.raise_exception(KeyError, "pop from an empty set")
    return var.pop(tx)


@rule([set.discard, set.remove], SetVar)
def discard(tx: Frame, var: SetVar, item: Var) -> Var | None:
    key = var.find_key(tx, item)
    if key not in var.entries:
        return None
    var.remove(tx, key)
    return NONE


@rule(set.discard, SetVar)
def discard_absent(tx: Frame, var: SetVar, item: Var) -> Var:
    return NONE


@rule(set.remove, SetVar)
def remove_absent(tx: Frame, var: SetVar, item: Var) -> Var:
    tx.trace.raise_exception(KeyError, item)


@rule(set.clear, SetVar)
def set_clear(tx: Frame, var: SetVar) -> Var:
    var.empty(tx)
    return NONE


@rule([set.copy, frozenset.copy], SetVar)
def set_copy(tx: Frame, var: SetVar) -> Var:
    if isinstance(var, FrozensetVar):
        return var
    return SetVar.from_twin(dict(var.entries), var.twin.made_by(set.copy))


@rule([set.issubset, frozenset.issubset], SetVar)
def issubset(tx: Frame, var: SetVar, other: Var) -> Var:
    return ConstVar(var.entries.keys() <= as_entries(tx, other).keys())


@rule([set.issuperset, frozenset.issuperset], SetVar)
def issuperset(tx: Frame, var: SetVar, other: Var) -> Var:
    return ConstVar(all(hash_of_element(tx, item) in var.entries for item in each_item(tx, other)))


@rule([set.isdisjoint, frozenset.isdisjoint], SetVar)
def isdisjoint(tx: Frame, var: SetVar, other: Var) -> Var:
    found = (hash_of_element(tx, item) in var.entries for item in each_item(tx, other))
    return ConstVar(not any(found))
