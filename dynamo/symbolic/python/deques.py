"""Methods of deques, keyed by their descriptors; those that lists have too stand with these."""

from __future__ import annotations

import collections
from typing import Any

from dynamo.base.errors import Break
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.table import NONE, rule
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.python.containers import changed, find
from dynamo.symbolic.python.equality import is_or_equals
from dynamo.symbolic.python.iteration import each_item, each_of
from dynamo.symbolic.python.lists import DequeVar


@rule([collections.deque])
def deque_(tx: Frame, iterable: Var | None = None, maxlen: Var = NONE) -> Var:
    limit = tx.trace.run_real(lambda: collections.deque((), maxlen.as_constant()).maxlen)
    values = [] if iterable is None else iterable.unpack(tx)
    return DequeVar(values if limit is None else values[max(0, len(values) - limit):], limit=limit)


@rule(collections.deque.append, DequeVar)
def deque_append(tx: Frame, var: DequeVar, item: Var) -> Var:
    if var.is_unread:
        var.grow(tx, [item])
        return NONE
    values = changed(tx, var)
    values.append(item)
    if var.limit is not None and len(values) > var.limit:
        del values[0]
    return NONE


@rule(collections.deque.appendleft, DequeVar)
def deque_append_left(tx: Frame, var: DequeVar, item: Var) -> Var:
    values = changed(tx, var)
    values.insert(0, item)
    if var.limit is not None and len(values) > var.limit:
        del values[-1]
    return NONE


def register_pop(function: Any, index: int) -> None:
    @rule(function, DequeVar)
    def pop(tx: Frame, var: DequeVar) -> Var:
        if not var.items:
            tx.trace.raise_exception(IndexError, "pop from an empty deque")
        return changed(tx, var).pop(index)


register_pop(collections.deque.pop, -1)
register_pop(collections.deque.popleft, 0)


@rule(collections.deque.extend, DequeVar)
def deque_extend(tx: Frame, var: DequeVar, items: Var) -> Var:
    for item in list(var.items) if items is var else each_item(tx, items):
        deque_append(tx, var, item)
    return NONE


@rule(collections.deque.extendleft, DequeVar)
def deque_extend_left(tx: Frame, var: DequeVar, items: Var) -> Var:
    for item in list(var.items) if items is var else each_item(tx, items):
        deque_append_left(tx, var, item)
    return NONE


def at(tx: Frame, index: Var) -> int:
    """A known index."""
    position = tx.trace.as_index(tx, index)
    if position is None:
        raise Break("index_unknown", repr(index))
    return position


@rule(collections.deque.rotate, DequeVar)
def rotate(tx: Frame, var: DequeVar, steps: Var = ConstVar(1)) -> Var:  # noqa: B008
    count = at(tx, steps)
    if len(var.items) > 1:
        values = changed(tx, var)
        count %= len(values)
        values[:] = values[-count:] + values[:-count]
    return NONE


@rule(collections.deque.clear, DequeVar)
def clear(tx: Frame, var: DequeVar) -> Var:
    changed(tx, var).clear()
    return NONE


@rule(collections.deque.reverse, DequeVar)
def reverse(tx: Frame, var: DequeVar) -> Var:
    before = var.changes
    changed(tx, var).reverse()
    var.changes = before  # which iterators do not mind
    return NONE


@rule(collections.deque.insert, DequeVar)
def insert(tx: Frame, var: DequeVar, index: Var, item: Var) -> Var:
    position = at(tx, index)
    if var.limit is not None and len(var.items) >= var.limit:
        tx.trace.raise_exception(IndexError, "deque already at its maximum size")
    changed(tx, var).insert(position, item)
    return NONE


@rule(collections.deque.remove, DequeVar)
def remove(tx: Frame, var: DequeVar, item: Var) -> Var:
    before = var.changes
    index = find(tx, var, item)
    if index is None or before != var.changes:  # Python has other errors in each version
        raise Break("call_of_unknown_function", f"{var!r}.remove({item!r})")
    del changed(tx, var)[index]
    return NONE


@rule(collections.deque.index, DequeVar)
def index_of(tx: Frame, var: DequeVar, item: Var) -> Var:
    for index, other in enumerate(each_of(tx, var.iterate(tx))):
        if is_or_equals(tx, other, item):
            return ConstVar(index)
    raise Break("call_of_unknown_function", f"{var!r}.index({item!r})")


@rule(collections.deque.count, DequeVar)
def count(tx: Frame, var: DequeVar, item: Var) -> Var:
    found = [is_or_equals(tx, other, item) for other in each_of(tx, var.iterate(tx))]
    return ConstVar(sum(found))


@rule([collections.deque.copy, collections.deque.__copy__], DequeVar)
def copy(tx: Frame, var: DequeVar) -> Var:
    return var.clone(list(var.items))


@rule(collections.deque.__iadd__, DequeVar)
def add_in_place(tx: Frame, var: DequeVar, items: Var) -> Var:
    deque_extend(tx, var, items)
    return var


@rule(collections.deque.__setitem__, DequeVar)
def set_item(tx: Frame, var: DequeVar, key: Var, value: Var) -> Var:
    var.set_item(tx, key, value)
    return NONE


@rule(collections.deque.__delitem__, DequeVar)
def del_item(tx: Frame, var: DequeVar, key: Var) -> Var:
    var.del_item(tx, key)
    return NONE
