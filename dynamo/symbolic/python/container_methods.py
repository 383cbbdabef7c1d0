"""Methods of built-in containers that subclasses and few programs ask for: traced as Python, or as
the operator of the same meaning on the built-in part."""

from __future__ import annotations

import collections
import functools
import operator
import sys
import types
from collections.abc import Iterable
from typing import Any

from dynamo.base.errors import Break
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.lookup import find_in_mro, told_name
from dynamo.symbolic.core.table import rule
from dynamo.symbolic.core.var import ObservedException, Var
from dynamo.symbolic.python import sized
from dynamo.symbolic.python.dict_views import VIEW_TYPES, DictViewVar
from dynamo.symbolic.python.dicts import DictVar, SetVar
from dynamo.symbolic.python.functions import inline_stand_in
from dynamo.symbolic.python.iteration import each_item
from dynamo.symbolic.python.lists import SequenceVar
from dynamo.symbolic.python.objects import ObjectVar
from dynamo.symbolic.python.standins import stands_in

COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
SEQUENCES = (list, tuple, collections.deque)


@stands_in(collections.deque.count)
def deque_count(items: Iterable[Any], wanted: Any, /) -> int:
    found = 0
    for item in items:
        if item is wanted or item == wanted:
            found += 1
    return found


@rule(collections.deque.index, SequenceVar)
def deque_index(tx: Frame, items: Var, wanted: Var, *limits: Var) -> Var | None:
    if len(limits) > 2 or any(limit.python_type() is not int for limit in limits):
        return None
    return inline_stand_in(tx, index_in_deque, [items, wanted, *limits], {})


def index_in_deque(items: Any, wanted: Any, start: int = 0, stop: int | None = None, /) -> int:
    size = len(items)
    stop = size if stop is None else stop
    start = max(start + size, 0) if start < 0 else start
    stop = max(stop + size, 0) if stop < 0 else min(stop, size)
    if start < stop:
        for position, item in enumerate(items):  # raises where a comparison changes the deque
            if position >= stop:
                break
            if position >= start and (item is wanted or item == wanted):
                return position
    raise ValueError(f"{wanted!r} is not in deque")


SIZE_COMES_FIRST = sys.version_info < (3, 13)  # an index may change the deque that it is for


@stands_in(collections.deque.insert)
def deque_insert(items: Any, index: Any, value: Any, /) -> None:
    before = len(items)
    index = operator.index(index)
    size = before if SIZE_COMES_FIRST else len(items)
    if items.maxlen is not None and size >= items.maxlen:
        raise IndexError("deque already at its maximum size")
    if index >= size:
        items.append(value)
    elif index <= -size or index == 0:
        items.appendleft(value)
    else:
        items.rotate(-index)
        if index < 0:
            items.append(value)
        else:
            items.appendleft(value)
        items.rotate(index)


@rule(operator.length_hint)
def length_hint(tx: Frame, items: Var, default: Var = ConstVar(0)) -> Var | None:  # noqa: B008
    if isinstance(items, ObjectVar):
        kind = items.python_type()
        methods = [find_in_mro(kind, name) for name in ("__len__", "__length_hint__")]
        if any(method and not isinstance(method, types.FunctionType) for method in methods):
            raise Break("call_of_unknown_function", f"length_hint({items!r})")
        return sized.length_hint(tx, items, default)  # type: ignore[no-any-return]
    if find_in_mro(items.python_type(), "__len__") is None:
        return None
    if not issubclass(default.python_type(), int):
        raise Break("argument_mismatch", f"length_hint(.., {default!r})")
    try:
        return tx.trace.call(tx, len, items)
    except ObservedException as error:  # a tensor without dimensions has no length
        if not issubclass(error.value.python_type(), TypeError):
            raise
        return default


@rule([collections.deque.copy, collections.deque.__copy__], SequenceVar)  # type: ignore[attr-defined]
def deque_copy(tx: Frame, items: SequenceVar) -> Var:
    return items.clone(list(items.items))


@rule([collections.defaultdict.copy, collections.defaultdict.__copy__], DictVar)  # type: ignore[attr-defined]
def defaultdict_copy(tx: Frame, var: DictVar) -> Var:
    result = DictVar(collections.defaultdict, factory=var.factory)
    result.entries.update(var.entries)
    return result


@rule(type({}.keys()).isdisjoint, DictViewVar)
def keys_isdisjoint(tx: Frame, keys: DictViewVar, other: Var) -> Var:
    mine = {key.hash_key(tx) for key in keys.unpack(tx)}
    return ConstVar(not any(item.hash_key(tx) in mine for item in each_item(tx, other)))


@rule(set.pop, SetVar)
def set_pop(tx: Frame, var: SetVar) -> Var | None:
    """Which item it gives is known where there is one."""
    if len(var.entries) > 1:
        return None
    if not var.entries:
        tx.trace.raise_exception(KeyError, "pop from an empty set")
    return var.change(tx).popitem()[1]


def content_of(var: Var, kind: type) -> Var | None:
    """The built-in part, None where the value is no instance of the built-in type."""
    part = var.content if isinstance(var, ObjectVar) else var
    if part is None or not isinstance(part, SequenceVar | DictVar | SetVar):
        return None
    return part if issubclass(part.python_type(), kind) else None


def register_comparison(kind: type, name: str) -> None:
    function = getattr(operator, name)

    @rule(getattr(kind, f"__{name}__"))
    def compare(tx: Frame, left: Var, right: Var) -> Var | None:
        mine, other = content_of(left, kind), content_of(right, kind)
        if mine is None:
            return None
        if other is None:
            return ConstVar(NotImplemented) if isinstance(left, type(mine)) else None
        return tx.trace.call(tx, function, mine, other)


def register_sequence(kind: type) -> None:
    @rule(kind.__add__)  # type: ignore[operator]
    def add(tx: Frame, left: Var, right: Var) -> Var | None:
        mine, other = content_of(left, kind), content_of(right, kind)
        if mine is None:
            return None
        if other is None:
            tx.trace.raise_exception(
                TypeError,
                f'can only concatenate {kind.__name__} (not "{told_name(right.python_type())}") '
                f"to {kind.__name__}",
            )
        return tx.trace.call(tx, operator.add, mine, other)

    @rule([kind.__mul__, kind.__rmul__])  # type: ignore[attr-defined, operator]
    def repeat(tx: Frame, left: Var, right: Var) -> Var | None:
        mine = content_of(left, kind)
        if mine is None or tx.trace.as_index(tx, right) is None:
            return None
        return tx.trace.call(tx, operator.mul, mine, right)


def union(step: int, tx: Frame, left: Var, right: Var) -> Var | None:
    """`dict.__or__` and, with step -1, `dict.__ror__`: dicts of whatever kinds give a dict."""
    parts = [content_of(left, dict), content_of(right, dict)][::step]
    pairs: list[tuple[Var, Var]] = []
    for part in parts:
        if not isinstance(part, DictVar):
            return None
        part.python_type()
        pairs += part.entries.values()
    return DictVar.from_pairs(tx, pairs)


def register() -> None:
    for kind in SEQUENCES:
        register_sequence(kind)
        for name in COMPARISONS:
            register_comparison(kind, name)
    rule(dict.__or__)(functools.partial(union, 1))
    rule(dict.__ror__)(functools.partial(union, -1))
    for mapping in (dict, collections.OrderedDict):
        for name in ("eq", "ne"):
            register_comparison(mapping, name)


register()


def _of_views(name: str) -> list[Any]:
    """The methods of this name that views of dicts have."""
    found = [getattr(kind, name, None) for kind in VIEW_TYPES.values()]
    return [method for method in dict.fromkeys(found) if method is not None]


@rule(_of_views("__contains__"), DictViewVar)
def view_contains(tx: Frame, view: DictViewVar, item: Var) -> Var:
    return tx.trace.call(tx, operator.contains, view, item)


@rule(_of_views("__len__"), DictViewVar)
def view_length(tx: Frame, view: DictViewVar) -> Var:
    return view.length(tx)


@rule(_of_views("__iter__"), DictViewVar)
def view_iterator(tx: Frame, view: DictViewVar) -> Var:
    return view.iterate(tx)


@rule(_of_views("__reversed__"), DictViewVar)
def view_reversed(tx: Frame, view: DictViewVar) -> Var:
    return tx.trace.call(tx, reversed, view)
