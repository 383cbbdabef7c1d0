"""Methods of deques, keyed by their descriptors; those that lists have too stand with these."""

from __future__ import annotations

import collections
import operator
import sys
from collections.abc import Callable
from typing import Any

from dynamo.base.errors import Break
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.table import NONE, first_rule, rule
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.python.containers import changed
from dynamo.symbolic.python.equality import is_or_equals
from dynamo.symbolic.python.iteration import each_item, each_of, integer
from dynamo.symbolic.python.iterators import ReverseDequeIteratorVar
from dynamo.symbolic.python.lists import DequeVar

# Python 3.13 looks at the deque behind all arguments, earlier ones before them.
LOOKS_LATE = sys.version_info >= (3, 13)


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


@first_rule(reversed, DequeVar)
def reverse_iterator(tx: Frame, var: DequeVar) -> Var:
    return ReverseDequeIteratorVar(var)


def place(tx: Frame, index: Var) -> int:
    """A known number that is not too large for a place."""
    value = integer(tx, index)
    tx.trace.run_real(lambda: [0].insert(value, 0))
    return value


@rule(collections.deque.rotate, DequeVar)
def rotate(tx: Frame, var: DequeVar, steps: Var = ConstVar(1)) -> Var:  # noqa: B008
    count = place(tx, steps)
    if len(var.items) > 1:
        turn(changed(tx, var), count)
    return NONE


@rule(collections.deque.clear, DequeVar)
def clear(tx: Frame, var: DequeVar) -> Var:
    if var.items:  # else iterators do not mind
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
    size = len(var.items)
    position = place(tx, index)
    if var.limit is not None and len(var.items) >= var.limit:
        tx.trace.raise_exception(IndexError, "deque already at its maximum size")
    values = changed(tx, var)
    size = len(values) if LOOKS_LATE else size
    if position >= size:
        values.append(item)
    elif position <= -size or position == 0:
        values.insert(0, item)
    else:  # all move around to the place and back, as far as there are any
        turn(values, -position)
        values.insert(0 if position > 0 else len(values), item)
        turn(values, position)
    return NONE


def turn(values: list[Var], steps: int) -> None:
    """Rotates to the right."""
    count = steps % len(values) if values else 0
    values[:] = values[len(values) - count:] + values[: len(values) - count]


@rule(collections.deque.remove, DequeVar)
def remove(tx: Frame, var: DequeVar, item: Var) -> Var:
    before = var.changes
    for at in range(len(var.items)):
        found = is_or_equals(tx, var.items[at], item)
        if before != var.changes:  # Python has other errors in each version
            raise Break("call_of_unknown_function", f"{var!r}.remove({item!r})")
        if found:
            del changed(tx, var)[at]
            return NONE
    return raise_as_real(tx, lambda real, value: real.remove(value), item)


@rule(collections.deque.index, DequeVar)
def index_of(
    tx: Frame, var: DequeVar, item: Var,
    start: Var = ConstVar(0), stop: Var | None = None,  # noqa: B008
) -> Var:
    before, size = var.changes, len(var.items)
    first = integer(tx, start)
    last = size if stop is None else integer(tx, stop)
    if LOOKS_LATE:
        before = var.changes
        last = len(var.items) if stop is None else last
    for at in range(len(var.items))[first:last]:
        if is_or_equals(tx, var.items[at], item):
            return ConstVar(at)
        if before != var.changes:
            tx.trace.raise_exception(RuntimeError, "deque mutated during iteration")
    return raise_as_real(tx, lambda real, value: real.index(value), item)


def raise_as_real(tx: Frame, search: Callable[[Any, Any], Any], item: Var) -> Any:
    """The error of what is not found, in the words of this Python."""
    value = item.as_constant()
    tx.trace.run_real(lambda: search(collections.deque(), value))


@first_rule(operator.contains, DequeVar)
def contains(tx: Frame, var: DequeVar, item: Var) -> Var:
    return ConstVar(any(is_or_equals(tx, each, item) for each in each_of(tx, var.iterate(tx))))


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
