"""Methods of lists, dicts, sets and deques, keyed by their descriptors."""

from __future__ import annotations

import collections
import operator
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from dynamo.base.errors import Break
from dynamo.guards.sources import ItemSource, Source, StateSource
from dynamo.guards.states import DICT_VIEWS, PLAIN_VIEWS, state_of
from dynamo.symbolic.core import large
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.lookup import base_of
from dynamo.symbolic.core.table import NONE, rule
from dynamo.symbolic.core.var import ObservedException, Var
from dynamo.symbolic.core.wrapping import wraps
from dynamo.symbolic.python.builtins import pairs_of
from dynamo.symbolic.python.classes import ClassVar
from dynamo.symbolic.python.dict_views import DictViewVar
from dynamo.symbolic.python.dicts import DictVar
from dynamo.symbolic.python.equality import is_or_equals
from dynamo.symbolic.python.iteration import (
    KNOWN,
    each_item,
    each_of,
    integer,
    is_backwards,
    none_if_none,
    sort,
)
from dynamo.symbolic.python.lists import (
    ListVar,
    NamedTupleVar,
    SequenceVar,
    TupleVar,
    is_named_tuple_class,
)
from dynamo.symbolic.python.objects import ObjectVar
from dynamo.symbolic.python.sets import SetVar
from dynamo.symbolic.python.sized import iterate_sized
from dynamo.symbolic.shapes import numbers

ORDERED = collections.OrderedDict
T = TypeVar("T")
DOUBLES_ITSELF = sys.version_info >= (3, 13)  # a list extended by itself, whatever `__iter__` says


def changed(tx: Frame, var: ListVar) -> list[Var]:
    """The items of a list, to be mutated now."""
    return var.change(tx)


@rule(list.append, ListVar)
def append(tx: Frame, var: ListVar, item: Var) -> Var:
    var.grow(tx, [item])
    return NONE


@rule(list.extend, ListVar)
def extend(tx: Frame, var: ListVar, items: Var) -> Var:
    if isinstance(items, ObjectVar) and items.content is var:  # itself: all items before the first
        var.grow(tx, list(var.items) if DOUBLES_ITSELF else items.unpack(tx))
        return NONE
    if isinstance(items, KNOWN):
        var.grow(tx, items.unpack(tx))
        return NONE
    for item in each_of(tx, iterate_sized(tx, items)):  # which may look at the list
        var.grow(tx, [item])
    return NONE


@rule(list.__iadd__, ListVar)
def add_in_place(tx: Frame, var: ListVar, items: Var) -> Var:
    extend(tx, var, items)
    return var


@rule(list.__imul__, ListVar)
def repeat_in_place(tx: Frame, var: ListVar, count: Var) -> Var:
    changed(tx, var)[:] = repeated(tx, var, count)
    return var


@rule(list.__add__, ListVar)
def add_lists(tx: Frame, var: ListVar, other: Var) -> Var:
    content = other.content if isinstance(other, ObjectVar) else other
    if type(content) is not ListVar:
        raise Break("operator_unknown", f"{var!r} + {other!r}")
    return ListVar([*var.items, *content.items])


@rule(tuple.__add__, TupleVar)
def add_tuples(tx: Frame, var: TupleVar, other: Var) -> Var:
    content = other.content if isinstance(other, ObjectVar) else other
    if not isinstance(content, TupleVar):
        raise Break("operator_unknown", f"{var!r} + {other!r}")
    return TupleVar([*var.items, *content.items])


@rule([list.__mul__, list.__rmul__], ListVar)
def repeat_list(tx: Frame, var: ListVar, count: Var) -> Var:
    return ListVar(repeated(tx, var, count))


@rule([tuple.__mul__, tuple.__rmul__], TupleVar)
def repeat_tuple(tx: Frame, var: TupleVar, count: Var) -> Var:
    return TupleVar(repeated(tx, var, count))


def repeated(tx: Frame, var: SequenceVar, count: Var) -> list[Var]:
    times = tx.trace.as_index(tx, count)
    if times is None:
        raise Break("operator_unknown", f"{var!r} * {count!r}")
    large.break_where_large(operator.mul, [var.items, times])
    return tx.trace.run_real(lambda: var.items * times)


def before_change(read: Callable[[], T]) -> T:
    """What a method takes in one by one; Break where that fails midway, with a part stored."""
    try:
        return read()
    except ObservedException as error:
        raise Break("container_changed_in_loop", "an error between its items") from error


@rule(list.insert, ListVar)
def insert(tx: Frame, var: ListVar, index: Var, item: Var) -> Var:
    position = tx.trace.as_index(tx, index)
    if position is None:
        raise Break("index_unknown", repr(index))
    tx.trace.run_real(lambda: [0].insert(position, 0))  # it may be too large
    changed(tx, var).insert(position, item)
    return NONE


@rule(list.pop, ListVar)
def pop(tx: Frame, var: ListVar, index: Var = ConstVar(-1)) -> Var:  # noqa: B008
    position = tx.trace.as_index(tx, index)
    if position is None:
        raise Break("index_unknown", repr(index))
    tx.trace.run_real(lambda: [0].insert(position, 0))  # it may be too large
    if not var.items:
        tx.trace.raise_exception(IndexError, "pop from empty list")
    if not -len(var.items) <= position < len(var.items):
        tx.trace.raise_exception(IndexError, "pop index out of range")
    return changed(tx, var).pop(position)


def find(
    tx: Frame, var: SequenceVar, item: Var, first: int = 0, last: int = sys.maxsize
) -> int | None:
    """The first place of an equal item from `first` on, which is before `last`. (A comparison may
    change the items.)"""
    at = first
    while at < min(last, len(var.items)):
        if is_or_equals(tx, var.items[at], item):
            return at
        at += 1
    return None


@rule(list.remove, ListVar)
def remove(tx: Frame, var: ListVar, item: Var) -> Var:
    index = find(tx, var, item)
    if index is None:
        tx.trace.raise_exception(ValueError, "list.remove(x): x not in list")
    del changed(tx, var)[index : index + 1]
    return NONE


@rule([list.index, tuple.index], (ListVar, TupleVar))
def index_of(
    tx: Frame, var: SequenceVar, item: Var,
    start: Var = ConstVar(0), stop: Var = ConstVar(sys.maxsize),  # noqa: B008
) -> Var:
    size = len(var.items)
    first, last = (max(n + size, 0) if n < 0 else n for n in (
        integer(tx, start), integer(tx, stop)))
    index = find(tx, var, item, first, last)
    if index is None:
        if isinstance(var, ListVar) and sys.version_info >= (3, 14):
            tx.trace.raise_exception(ValueError, "list.index(x): x not in list")
        if isinstance(var, ListVar) and item.is_constant():
            tx.trace.raise_exception(ValueError, f"{item.as_constant()!r} is not in list")
        if isinstance(var, ListVar):
            raise Break("not_a_constant", f"the text of {item!r}")
        tx.trace.raise_exception(ValueError, "tuple.index(x): x not in tuple")
    return ConstVar(index)


@rule([list.count, tuple.count], (ListVar, TupleVar))
def count(tx: Frame, var: SequenceVar, item: Var) -> Var:
    return ConstVar(sum(is_or_equals(tx, other, item) for other in var.items))


@rule(list.clear, ListVar)
def clear(tx: Frame, var: ListVar) -> Var:
    changed(tx, var).clear()
    return NONE


@rule(list.reverse, ListVar)
def reverse_(tx: Frame, var: ListVar) -> Var:
    changed(tx, var).reverse()
    return NONE


@rule(list.copy, ListVar)
def copy(tx: Frame, var: ListVar) -> Var:
    return ListVar(list(var.items))


@rule(list.sort, ListVar)
def list_sort(
    tx: Frame, var: ListVar, *, key: Var = NONE, reverse: Var = ConstVar(False)  # noqa: B008
) -> Var:
    items = list(var.items)
    if key.python_type() is type(None) and all(item.is_constant() for item in items):
        changed(tx, var)[:] = sort(tx, items, None, is_backwards(tx, reverse))
        return NONE
    backwards = is_backwards(tx, reverse)
    changed(tx, var).clear()  # as the program's own functions see it meanwhile
    result = before_change(lambda: sort(tx, items, none_if_none(key), backwards))
    if var.items:
        raise Break("container_changed_in_loop", f"{var!r} is changed while it is sorted")
    changed(tx, var)[:] = result
    return NONE


@rule([tuple.__new__])
def tuple_new(tx: Frame, cls: Var, *items: Var) -> Var:
    kind, values = cls.cls, items[0].unpack(tx) if items else []  # type: ignore[attr-defined]
    if kind is tuple:
        return TupleVar(values)
    if is_named_tuple_class(kind):
        named = NamedTupleVar(kind, values)
        named.guard_class(tx.trace)
        return named
    if base_of(kind) is not tuple or tx.trace.attributes.has_special(kind, "__del__"):
        raise Break("call_of_unknown_function", f"tuple.__new__({kind.__qualname__})")
    return ObjectVar(kind, content=TupleVar.part(values))


@rule([list.__init__], ListVar)
def list_init(tx: Frame, var: ListVar, *items: Var) -> Var:
    values = items[0].unpack(tx) if items else []
    changed(tx, var)[:] = values
    return NONE


@rule([list.__getitem__, tuple.__getitem__, dict.__getitem__], (SequenceVar, DictVar))
def getitem(tx: Frame, var: Var, key: Var) -> Var:
    return var.get_item(tx, key)


@rule([list.__setitem__, dict.__setitem__, ORDERED.__setitem__], (SequenceVar, DictVar))
def setitem(tx: Frame, var: Var, key: Var, value: Var) -> Var:
    var.set_item(tx, key, value)
    return NONE


@rule([list.__delitem__, dict.__delitem__, ORDERED.__delitem__], (SequenceVar, DictVar))
def delitem(tx: Frame, var: Var, key: Var) -> Var:
    var.del_item(tx, key)
    return NONE


@rule([list.__len__, tuple.__len__, dict.__len__, set.__len__, frozenset.__len__],
      (SequenceVar, DictVar, SetVar))


def length(tx: Frame, var: Var) -> Var:
    return var.length(tx)


@rule([list.__iter__, tuple.__iter__, dict.__iter__, ORDERED.__iter__, set.__iter__,
       frozenset.__iter__],
      (SequenceVar, DictVar, SetVar))


def iterate(tx: Frame, var: Var) -> Var:
    return var.iterate(tx)


@rule([list.__contains__, tuple.__contains__], SequenceVar)
def sequence_contains(tx: Frame, var: SequenceVar, item: Var) -> Var:
    return ConstVar(find(tx, var, item) is not None)


@rule([dict.__contains__, set.__contains__, frozenset.__contains__], (DictVar, SetVar))
def contains(tx: Frame, var: DictVar | SetVar, item: Var) -> Var:
    known = None
    if numbers.is_symbolic(item):
        keys = var.keys() if isinstance(var, DictVar) else list(var.entries.values())
        known = numbers.among(tx.trace, item, keys)
    return var.contains(tx, item) if known is None else known


# -- dicts -----------------------------------------------------------------------------------------


@rule([dict.get], DictVar)
def get(tx: Frame, var: DictVar, key: Var, default: Var = NONE) -> Var:
    found = var.lookup(tx, key)
    return default if found is None else found


@rule([dict.setdefault, ORDERED.setdefault], DictVar)
def setdefault(tx: Frame, var: DictVar, key: Var, default: Var = NONE) -> Var:
    found = var.lookup(tx, key)
    if found is not None:
        return found
    var.set_item(tx, key, default)
    return default


@rule([dict.pop, ORDERED.pop], DictVar)
def dict_pop(tx: Frame, var: DictVar, key: Var, default: Var | None = None) -> Var:
    ordered = var.python_type() is ORDERED
    # An empty dict does not ask for the hash.
    found = None if var.is_empty() and not ordered else var.lookup(tx, key, var.python_type())
    if found is None:
        if default is not None:
            return default
        # An OrderedDict gives its KeyError the items of a tuple.
        parts = key.unpack(tx) if ordered and isinstance(key, TupleVar) else [key]
        tx.trace.raise_exception(KeyError, *parts)
    var.del_item(tx, key)
    return found


@rule(dict.popitem, DictVar)
def dict_popitem(tx: Frame, var: DictVar) -> Var | None:
    return popitem(tx, var)


@rule(ORDERED.popitem, DictVar)
def popitem(tx: Frame, var: DictVar, last: Var = ConstVar(True)) -> Var:  # noqa: B008
    if not var.entries:
        ordered = issubclass(var.python_type(), ORDERED)
        message = "dictionary is empty" if ordered else "popitem(): dictionary is empty"
        tx.trace.raise_exception(KeyError, message)
    entries = var.change(tx)
    var.note_step(dict.popitem)
    hash_key = next(reversed(entries)) if last.truth(tx) else next(iter(entries))
    return TupleVar(list(entries.pop(hash_key)))


@rule([dict.update, ORDERED.update, dict.__init__, ORDERED.__init__], DictVar)
def update(
    tx: Frame, var: DictVar, other: Var | None = None, /, **kwargs: Var
) -> Var:
    ordered = issubclass(var.kind, ORDERED)

    def store() -> None:
        for key, value in () if other is None else pairs_of(tx, other, ordered):
            var.set_item(tx, key, value)

    if ordered:
        before_change(store)  # whose errors have words of their own
    else:
        store()
    for name, value in kwargs.items():
        var.set_item(tx, ConstVar(name), value)
    return NONE


@rule([ORDERED.update, ORDERED.__init__], ObjectVar)
def update_by_class(
    tx: Frame, var: ObjectVar, other: Var | None = None, /, **kwargs: Var
) -> Var:
    """Of a subclass with an own `__setitem__`."""
    def store() -> None:
        for key, value in () if other is None else pairs_of(tx, other, ordered=True):
            tx.trace.call(tx, operator.setitem, var, key, value)

    before_change(store)
    for name, value in kwargs.items():
        tx.trace.call(tx, operator.setitem, var, ConstVar(name), value)
    return NONE


@rule([dict.clear, ORDERED.clear], DictVar)
def dict_clear(tx: Frame, var: DictVar) -> Var:
    var.change(tx).clear()
    var.note_step(dict.clear)
    return NONE


@rule([ORDERED.copy, collections.defaultdict.copy, collections.defaultdict.__copy__], ObjectVar)  # type: ignore[attr-defined]
def copy_by_class(tx: Frame, var: ObjectVar) -> Var:
    """Of a subclass, which makes the copy."""
    raise Break("call_of_unknown_function", f"a copy of {var!r}")


@rule(ORDERED.copy, DictVar)
def ordered_copy(tx: Frame, var: DictVar) -> Var:
    return DictVar.from_pairs(tx, list(var.entries.values()), var.kind)


@rule([collections.defaultdict.copy, collections.defaultdict.__copy__], DictVar)  # type: ignore[attr-defined]
def defaultdict_copy(tx: Frame, var: DictVar) -> Var:
    result = DictVar(collections.defaultdict, factory=var.factory)
    result.entries.update(var.entries)
    return result


@rule(dict.copy, DictVar)
def dict_copy(tx: Frame, var: DictVar) -> Var:
    return DictVar.from_pairs(tx, list(var.entries.values()))


@rule([dict.keys, ORDERED.keys], DictVar)
def keys(tx: Frame, var: DictVar) -> Var:
    return DictViewVar(var, "keys")


@rule([dict.values, ORDERED.values], DictVar)
def values(tx: Frame, var: DictVar) -> Var:
    return DictViewVar(var, "values")


@rule([dict.items, ORDERED.items], DictVar)
def items(tx: Frame, var: DictVar) -> Var:
    return DictViewVar(var, "items")


@rule([type({}.keys()).__contains__, type({}.items()).__contains__], DictViewVar)
def view_contains(tx: Frame, var: DictViewVar, item: Var) -> Var:
    return ConstVar(var.contains(tx, item).truth(tx))


@rule([type({}.keys()).isdisjoint, type({}.items()).isdisjoint], DictViewVar)
def view_isdisjoint(tx: Frame, var: DictViewVar, other: Var) -> Var:
    return ConstVar(not any(var.contains(tx, item).truth(tx) for item in each_item(tx, other)))


@rule([type(getattr({}, part)()).__len__ for part in ("keys", "values", "items")], DictViewVar)
def view_length(tx: Frame, var: DictViewVar) -> Var:
    return var.length(tx)


@rule([view.__iter__ for view in DICT_VIEWS], DictViewVar)
def view_iterate(tx: Frame, var: DictViewVar) -> Var:
    return var.iterate(tx)


@wraps(*DICT_VIEWS)
def wrap_view(trace: Any, value: Any, source: Source | None) -> Var:
    """A view that the program has kept: that of the dict which it looks at."""
    if source is None:
        raise Break("value_unknown", type(value).__name__)
    looked_at = state_of(value)[0]
    mapping = trace.wrap(looked_at, ItemSource(StateSource(source), 0))
    below = type(value) in PLAIN_VIEWS and isinstance(looked_at, collections.OrderedDict)
    if below or not isinstance(mapping, DictVar):  # `dict.items(ordered)` has an order of its own
        raise Break("value_unknown", f"{type(value).__name__} of {mapping!r}")
    trace.guard("TYPE", source, type(value))
    return DictViewVar(mapping, type(value).__name__.rpartition("_")[2], source)


@rule([dict.fromkeys, vars(dict)["fromkeys"], ORDERED.fromkeys, vars(ORDERED)["fromkeys"]])
def fromkeys(tx: Frame, cls: Var, source: Var, value: Var = NONE) -> Var:
    kind = cls.cls if isinstance(cls, ClassVar) else None
    if kind not in (dict, ORDERED, collections.defaultdict):
        raise Break("call_of_unknown_function", f"fromkeys of {cls!r}")
    return DictVar.from_pairs(tx, ((key, value) for key in each_item(tx, source)), kind)


@rule([ORDERED.move_to_end], DictVar)
def move_to_end(tx: Frame, var: DictVar, key: Var, last: Var = ConstVar(True)) -> Var:  # noqa: B008
    if not isinstance(key, ConstVar) and var.is_empty():  # which does not ask for the hash
        raise Break("argument_mismatch", f"move_to_end({key!r})")
    hash_key = key.hash_key(tx)
    if hash_key not in var.entries:
        if not isinstance(key, ConstVar) or key.value is None:  # such keys are arguments there
            raise Break("argument_mismatch", f"move_to_end({key!r})")
        tx.trace.raise_exception(KeyError, key)
    entries = var.change(tx)
    var.removals += hash_key != (next(reversed(entries)) if last.truth(tx) else next(iter(entries)))
    moved = {hash_key: entries.pop(hash_key)}
    rest = dict(entries)
    entries.clear()
    entries.update({**rest, **moved} if last.truth(tx) else {**moved, **rest})
    return NONE


@rule([ORDERED])
def ordered_dict(tx: Frame, /, *args: Var, **kwargs: Var) -> Var:
    if len(args) > 1:
        raise Break("argument_mismatch", f"OrderedDict of {len(args)} arguments")
    result = DictVar(ORDERED)
    update(tx, result, *args, **kwargs)
    return result


@rule([collections.defaultdict])
def default_dict(tx: Frame, factory: Var = NONE, /, *args: Var, **kwargs: Var) -> Var:
    known = factory.is_constant() and factory.as_constant() is None
    if not known and not tx.trace.call(tx, callable, factory).truth(tx):
        tx.trace.raise_exception(TypeError, "first argument must be callable or None")
    if len(args) > 1:
        raise Break("argument_mismatch", f"defaultdict of {len(args) + 1} arguments")
    result = DictVar(collections.defaultdict, factory=none_if_none(factory))
    update(tx, result, *args, **kwargs)
    return result
