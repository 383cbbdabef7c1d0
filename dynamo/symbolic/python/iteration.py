"""Built-in functions that iterate: `iter`, `next`, `zip`, `reversed`, `sum`, `max`, `sorted`."""

from __future__ import annotations

import functools
import operator
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from dynamo.base.errors import Break
from dynamo.symbolic.core.constant import ConstVar, may_be_address
from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.large import break_where_many
from dynamo.symbolic.core.lookup import find_in_mro
from dynamo.symbolic.core.table import NONE, rule
from dynamo.symbolic.core.var import ObservedException, Var
from dynamo.symbolic.python.dict_iterators import DictIteratorVar
from dynamo.symbolic.python.dict_views import DictViewVar
from dynamo.symbolic.python.dicts import DictVar
from dynamo.symbolic.python.iterators import (
    EnumerateVar,
    FilterVar,
    MapVar,
    RangeIteratorVar,
    ReverseIndexIteratorVar,
    ReverseIteratorVar,
    ZipVar,
)
from dynamo.symbolic.python.lists import DequeVar, ListVar, SequenceVar, TupleVar
from dynamo.symbolic.python.objects import ObjectVar
from dynamo.symbolic.python.ranges import RangeVar, break_where_long
from dynamo.symbolic.python.sets import SetVar
from dynamo.symbolic.python.sized import is_iterable, unpack_sized
from dynamo.symbolic.shapes import numbers, unbacked


@rule([iter])
def iter_(tx: Frame, var: Var, *sentinel: Var) -> Var:
    if sentinel:
        raise Break("iteration_unknown", f"iter({var!r}, {sentinel[0]!r})")
    return var.iterate(tx)


@rule([next])
def next_(tx: Frame, var: Var, *default: Var) -> Var:
    if not default:
        return var.next_item(tx)
    try:
        return var.next_item(tx)
    except ObservedException as error:
        if issubclass(error.value.python_type(), StopIteration):
            return default[0]
        raise


@rule([range])
def range_(tx: Frame, *args: Var) -> Var:
    values = [integer(tx, arg) for arg in args]
    return RangeVar(tx.trace.run_real(lambda: range(*values)))


def integer(tx: Frame, arg: Var) -> int:
    index = tx.trace.as_index(tx, arg)
    if index is None:
        raise Break("argument_mismatch", f"{arg!r} is no integer")
    return index


@rule([enumerate])
def enumerate_(tx: Frame, items: Var, start: Var = ConstVar(0)) -> Var:  # noqa: B008
    first = integer(tx, start)
    return EnumerateVar(items.iterate(tx), first)


@rule([zip])
def zip_(tx: Frame, *items: Var, strict: Var = ConstVar(False)) -> Var:  # noqa: B008
    return ZipVar([item.iterate(tx) for item in items], strict.truth(tx))


@rule([map])
def map_(tx: Frame, function: Var, *items: Var) -> Var | None:
    if not items:
        return None
    return MapVar(function, [item.iterate(tx) for item in items])


@rule([filter])
def filter_(tx: Frame, function: Var, items: Var) -> Var:
    nothing_ = function.is_constant() and function.as_constant() is None
    return FilterVar(None if nothing_ else function, items.iterate(tx))


@rule([reversed])
def reversed_(tx: Frame, items: Var) -> Var:
    if isinstance(items, RangeVar):
        value = items.as_constant()
        return RangeIteratorVar(value[::-1])
    if isinstance(items, SequenceVar) and not isinstance(items, DequeVar):
        return ReverseIteratorVar(items)
    if isinstance(items, DictVar):
        return DictIteratorVar(items, "keys", backwards=True)
    if isinstance(items, DictViewVar):
        return DictIteratorVar(items.mapping, items.part, backwards=True)
    cls = items.python_type()
    find_special = tx.trace.attributes.find_special
    if find_special(cls, "__reversed__") is None and (
        not is_iterable(tx.trace, items) or find_special(cls, "__getitem__") is None
    ):
        raise Break("iteration_unknown", f"reversed({items!r})")
    if isinstance(items, ConstVar):
        return ReverseIteratorVar(TupleVar(items.unpack(tx)))
    if isinstance(items, ObjectVar):
        if find_in_mro(cls, "__reversed__") is not None:
            return items.call_special(tx, "__reversed__")
        if not items.has_special(tx, "__reversed__") and find_special(cls, "__len__"):
            return ReverseIndexIteratorVar(items, items.length(tx).as_constant())
    raise Break("iteration_unknown", f"reversed({items!r})")


def is_integer_set(items: SetVar) -> bool:
    """True where the order of the items can make no difference to their sum."""
    return items.is_constant() and all(type(item) is int for item in items.as_constant())


NUMBERS = (int, float, bool)
NOT_SUMMED = (str, bytes, bytearray)
CORRECTED_SUMS = sys.version_info >= (3, 12)


@rule([sum])
def sum_(tx: Frame, items: Var, start: Var = ConstVar(0)) -> Var:  # noqa: B008
    if isinstance(items, SetVar) and is_integer_set(items) and start.is_constant():
        return tx.trace.constant(sum(items.as_constant(), start.as_constant()))
    if start.python_type() in NOT_SUMMED:
        raise Break("argument_mismatch", f"the sum of {start!r} and others")
    iterator, total = items.iterate(tx), start
    joined: list[Any] | None = [] if start.python_type() in NUMBERS else None
    while True:
        item = next_or_none(tx, iterator)
        if joined is not None:
            if item is not None and joins_numbers(item, joined, total):
                joined.append(item.as_constant())
                continue
            if joined:
                total = tx.trace.constant(sum(joined, total.as_constant()))
            joined = None
        if item is None:
            return total
        total = tx.trace.call(tx, operator.add, total, item)


def next_or_none(tx: Frame, iterator: Var) -> Var | None:
    try:
        return iterator.next_item(tx)
    except ObservedException as error:
        if issubclass(error.value.python_type(), StopIteration):
            return None
        raise


# What is known before anything is taken of it.
KNOWN = (SequenceVar, DictVar, DictViewVar, SetVar, RangeVar, ConstVar)


def each_item(tx: Frame, items: Var) -> Iterator[Var]:
    """The items that a method takes in one by one: a function of the program that gives them may
    look at what the method has done with those before."""
    if isinstance(items, KNOWN) or items.is_tensor:
        yield from items.unpack(tx)
    else:
        yield from each_of(tx, items.iterate(tx))


def each_of(tx: Frame, iterator: Var) -> Iterator[Var]:
    """What an iterator gives, taken when it is asked for."""
    if isinstance(iterator, RangeIteratorVar):
        break_where_long(iterator.rest)
    taken = 0
    while (item := next_or_none(tx, iterator)) is not None:
        yield item
        taken += 1
        break_where_many(taken)


def joins_numbers(item: Var, before: list[Any], total: Var) -> bool:
    """True for one of the numbers at the start of what is summed, which `sum` adds in a loop of its
    own: from Python 3.12 on with a correction of floats, which can't be written into a graph."""
    if item.python_type() not in NUMBERS:
        return False
    known = not (numbers.is_symbolic(item) or numbers.is_symbolic(total))
    known = known and item.is_constant() and total.is_constant()
    if CORRECTED_SUMS and not known and (
        float in (item.python_type(), total.python_type(), *map(type, before))
    ):
        raise Break("value_unknown", "the sum of floats that are not known")
    return known


def first_with(tx: Frame, items: Var, wanted: bool) -> Var:
    iterator = items.iterate(tx)
    while True:
        try:
            if iterator.next_item(tx).truth(tx) is wanted:
                return ConstVar(wanted)
        except ObservedException as error:
            if issubclass(error.value.python_type(), StopIteration):
                return ConstVar(not wanted)
            raise


@rule([any])
def any_(tx: Frame, items: Var) -> Var:
    return first_with(tx, items, True)


@rule([all])
def all_(tx: Frame, items: Var) -> Var:
    return first_with(tx, items, False)


def extreme(
    tx: Frame, name: str, args: tuple[Var, ...], key: Var | None, default: Var | None
) -> Var:
    if not args or (default is not None and len(args) > 1):
        raise Break("argument_mismatch", f"{name} of {len(args)} arguments")
    items = args[0].iterate(tx) if len(args) == 1 else tx.trace.make.iterator(list(args))
    better = operator.gt if name == "max" else operator.lt
    best: Var | None = None
    rank: Var | None = None
    while (item := next_or_none(tx, items)) is not None:
        value = tx.call(key, [item], {}) if key is not None else item
        if rank is None or tx.trace.call(tx, better, value, rank).truth(tx):
            best, rank = item, value
    if best is not None:
        return best
    if default is None:
        tx.trace.run_real(lambda: {"max": max, "min": min}[name](()))
    assert default is not None
    return default


def extreme_number(tx: Frame, name: str, args: tuple[Var, ...]) -> Var | None:
    """`min` or `max` of numbers that are not fixed, alone or in a list."""
    if len(args) == 1 and isinstance(args[0], ListVar | TupleVar):
        args = tuple(args[0].items)
        if not any(map(unbacked.is_unbacked, args)):
            return None
    return unbacked.extreme(tx.trace, name, args) or numbers.extreme(tx.trace, name, args)


def fixed_extreme(tx: Frame, function: Callable[..., Any], a: Var, b: Var) -> Var | None:
    """Of numbers that are known: a float where one is."""
    if not (a.is_constant() and b.is_constant()):
        return None
    return tx.trace.constant(tx.trace.run_real(lambda: function(a.as_constant(), b.as_constant())))


@rule(torch.sym_max)
def sym_max(tx: Frame, a: Var, b: Var) -> Var | None:
    return extreme_number(tx, "max", (a, b)) or fixed_extreme(tx, torch.sym_max, a, b)


@rule(torch.sym_min)
def sym_min(tx: Frame, a: Var, b: Var) -> Var | None:
    return extreme_number(tx, "min", (a, b)) or fixed_extreme(tx, torch.sym_min, a, b)


@rule([min])
def min_of_numbers(tx: Frame, /, *args: Var, **kwargs: Var) -> Var | None:
    if kwargs:
        return None
    return extreme_number(tx, "min", args)


@rule([max])
def max_of_numbers(tx: Frame, /, *args: Var, **kwargs: Var) -> Var | None:
    if kwargs:
        return None
    return extreme_number(tx, "max", args)


@rule([max])
def max_(tx: Frame, *args: Var, key: Var | None = None, default: Var | None = None) -> Var:
    return extreme(tx, "max", args, none_if_none(key), default)


@rule([min])
def min_(tx: Frame, *args: Var, key: Var | None = None, default: Var | None = None) -> Var:
    return extreme(tx, "min", args, none_if_none(key), default)


def none_if_none(var: Var | None) -> Var | None:
    return None if var is None or (var.is_constant() and var.as_constant() is None) else var


class Rank:
    """A key of a sort; Python's own sort compares with `<` only, and so do its polyfills."""

    __slots__ = ("tx", "key", "item")

    def __init__(self, tx: Frame, key: Var, item: Var) -> None:
        self.tx, self.key, self.item = tx, key, item

    def __lt__(self, other: Rank) -> bool:
        self.tx.trace.calls += 1
        trace = self.tx.trace
        trace.context.check_length(trace.steps + trace.calls)
        plain = plainly_less(self.key, other.key)
        if plain is not None:
            return plain
        return self.tx.trace.call(self.tx, operator.lt, self.key, other.key).truth(self.tx)


def plainly_less(a: Var, b: Var) -> bool | None:
    """`a < b` of known numbers and texts, and of tuples of these; None where the rules are to be
    asked. Reads (and so guards) what the rules would read."""
    if type(a) is not TupleVar or type(b) is not TupleVar:
        return None if not are_plain(a, b, float) else bool(a.as_constant() < b.as_constant())
    if a.python_type() is not tuple or b.python_type() is not tuple:
        return None
    for left, right in zip(a.items, b.items, strict=False):
        if left is not right:
            if not are_plain(left, right):  # floats: a NaN may be the same one
                return None
            if left.as_constant() != right.as_constant():
                return bool(left.as_constant() < right.as_constant())
    return len(a.items) < len(b.items)


def are_plain(a: Var, b: Var, *more: type) -> bool:
    """True for two fixed texts or ints (or values of further types), none of them an address."""
    if type(a) is not ConstVar or type(b) is not ConstVar:
        return False
    kind = a.python_type()
    if kind is not b.python_type() or kind not in (int, str, *more):
        return False
    return kind is not int or not (
        may_be_address(a.as_constant()) or may_be_address(b.as_constant()))


def sort(tx: Frame, items: list[Var], key: Var | None, reverse: bool) -> list[Var]:
    """Sorted items: the same calls in the same order as in CPython."""
    keys = [item if key is None else tx.call(key, [item], {}) for item in items]
    ranks = [Rank(tx, *pair) for pair in zip(keys, items, strict=True)]
    return [rank.item for rank in sorted(ranks, reverse=reverse)]


def is_backwards(tx: Frame, reverse: Var) -> bool:
    """The argument `reverse`, which must be an int before Python 3.13."""
    if numbers.is_symbolic(reverse) and issubclass(reverse.python_type(), int):
        return reverse.truth(tx)
    if not reverse.is_constant():
        raise Break("argument_mismatch", f"reverse={reverse!r}")
    value = reverse.as_constant()
    tx.trace.run_real(lambda: [].sort(reverse=value))
    return bool(value)


def in_order(tx: Frame, items: SetVar, key: Var) -> list[Var]:
    """The items of a set as `sorted` reads them. Without a key constants have one order, whatever
    the set's own is; items of equal keys stay in that of the set."""
    if not items.is_constant() or none_if_none(key) is not None:
        return items.ordered(tx.trace)
    return [ConstVar(value) for value in tx.trace.run_real(lambda: sorted(items.as_constant()))]


@rule([sorted])
def sorted_(
    tx: Frame, items: Var, *, key: Var = NONE, reverse: Var = ConstVar(False)  # noqa: B008
) -> Var:
    values = in_order(tx, items, key) if isinstance(items, SetVar) else unpack_sized(tx, items)
    return ListVar(sort(tx, values, none_if_none(key), is_backwards(tx, reverse)))


@rule([functools.reduce])
def reduce_(tx: Frame, function: Var, items: Var, *start: Var) -> Var:
    if not is_iterable(tx.trace, items):
        raise Break("iteration_unknown", repr(items))
    iterator = items.iterate(tx)
    total = start[0] if start else next_or_none(tx, iterator)
    if total is None:
        raise Break("argument_mismatch", "the reduction of nothing")
    while (value := next_or_none(tx, iterator)) is not None:
        total = tx.call(function, [total, value], {})
    return total
