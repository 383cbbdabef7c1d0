"""How the new bytecode makes iterators and generators."""

from __future__ import annotations

import collections
import functools
import itertools
from typing import Any

from dynamo.base.errors import Break
from dynamo.codegen.rebuild import Rebuilder, rebuilds
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.python import dict_iterators, generators, iterators
from dynamo.symbolic.python.binders import is_settled
from dynamo.symbolic.python.dicts import DictVar
from dynamo.symbolic.python.lists import ListVar, TupleVar
from dynamo.symbolic.python.sets import SetVar

STRICT_ZIP = functools.partial(zip, strict=True)


def advance(iterator: Any, count: int) -> Any:
    """The iterator after `count` items were taken."""
    collections.deque(itertools.islice(iterator, count), maxlen=0)
    return iterator


@rebuilds(iterators.SequenceIteratorVar)
def sequence_iterator(rebuilder: Rebuilder, var: iterators.SequenceIteratorVar) -> None:
    if var.position is None and var.text is None:
        rebuilder.call_const(iter, ListVar() if var.kind is type(iter([])) else TupleVar())
        return
    rebuilder.expect_filled(var.sequence)
    rebuilder.emitter.start_call_const(advance)
    rebuilder.call_const(iter, var.text or var.sequence)
    rebuilder.emitter.load_const(len(var.sequence.items) if var.position is None else var.position)
    rebuilder.emitter.call(2)


@rebuilds(iterators.DequeIteratorVar)
def deque_iterator(rebuilder: Rebuilder, var: iterators.DequeIteratorVar) -> None:
    if var.changes != var.deque.changes:
        raise Break("container_changed_in_loop", repr(var.deque))
    rebuilder.expect_filled(var.deque)
    rebuilder.emitter.start_call_const(advance)
    rebuilder.call_const(iter, var.deque)
    rebuilder.emitter.load_const(len(var.deque.items) if var.position is None else var.position)
    rebuilder.emitter.call(2)


def reverse_from(sequence: Any, position: int) -> Any:
    """A reverse iterator, the next item of which has this index."""
    iterator = reversed(sequence)
    iterator.__setstate__(position)  # type: ignore[attr-defined]
    return iterator


@rebuilds(iterators.ReverseIteratorVar)
def reverse_iterator(rebuilder: Rebuilder, var: iterators.ReverseIteratorVar) -> None:
    if not 0 <= var.position < len(var.sequence.items):
        is_list = var.kind is type(reversed([]))
        rebuilder.call_const(reversed, ListVar() if is_list else TupleVar())
        return
    rebuilder.expect_filled(var.sequence)
    rebuilder.call_const(reverse_from, var.sequence, var.position)


@rebuilds(iterators.ReverseIndexIteratorVar)
def reverse_index_iterator(
    rebuilder: Rebuilder, var: iterators.ReverseIndexIteratorVar
) -> None:
    if var.position is None:
        rebuilder.call_const(reversed, TupleVar())
        return
    if not is_settled(var.sequence.python_type()):  # its length would be asked again
        raise Break("rebuild_unknown", repr(var))
    rebuilder.call_const(reverse_from, var.sequence, var.position)


@rebuilds(iterators.RangeIteratorVar)
def range_iterator(rebuilder: Rebuilder, var: iterators.RangeIteratorVar) -> None:
    rebuilder.call_const(iter, var.rest)


def iterate_back(container: Any, count: int) -> Any:
    return advance(reversed(container), count)


@rebuilds(iterators.ReverseDequeIteratorVar)
def reverse_deque_iterator(rebuilder: Rebuilder, var: iterators.ReverseDequeIteratorVar) -> None:
    if var.changes != var.deque.changes:
        raise Break("container_changed_in_loop", repr(var.deque))
    rebuilder.expect_filled(var.deque)
    rebuilder.call_const(iterate_back, var.deque, len(var.deque.items) - 1 - var.position)


def resume_iterating(container: Any, part: str, count: int, backwards: bool) -> Any:
    """An iterator over a dict, behind its first items."""
    ordered = isinstance(container, collections.OrderedDict)
    view = getattr(collections.OrderedDict if ordered else dict, part)(container)
    return advance(reversed(view) if backwards else iter(view), count)


def iterate_set(container: Any, items: list[Any]) -> Any:
    """An iterator over a set with these items to come; over a list where it has another order."""
    count = len(container) - len(items)
    rest = itertools.islice(container, max(count, 0), None)
    if all(left is right for left, right in itertools.zip_longest(rest, items)):
        return advance(iter(container), count)
    return iter(items)


def changed_dict(part: str, backwards: bool) -> Any:
    """An iterator over an OrderedDict that has changed."""
    container = collections.OrderedDict({0: 0})
    result = resume_iterating(container, part, 0, backwards)
    container[1] = 1
    return result


@rebuilds(dict_iterators.DictIteratorVar)
def dict_iterator(rebuilder: Rebuilder, var: dict_iterators.DictIteratorVar) -> None:
    kind = collections.OrderedDict if var.is_ordered else dict
    if var.is_at_end():
        rebuilder.call_const(resume_iterating, DictVar(kind), var.part, 0, var.backwards)
    elif var.is_ordered and var.is_mutated():
        rebuilder.call_const(changed_dict, var.part, var.backwards)
    elif var.size() == var.expected and var.has_same_keys():
        rebuilder.expect_filled(var.mapping)
        rebuilder.call_const(
            resume_iterating, var.mapping, var.part, var.position, var.backwards)
    else:
        raise Break("container_changed_in_loop", repr(var.mapping))


@rebuilds(iterators.LiveIteratorVar)
def live_iterator(rebuilder: Rebuilder, var: iterators.LiveIteratorVar) -> None:
    if isinstance(var.owner, SetVar) and var.size() == var.expected:
        rebuilder.emitter.start_call_const(iterate_set)
        rebuilder.load(var.owner)
        rebuilder.build("BUILD_LIST", var.remaining())
        rebuilder.emitter.call(2)
        return
    rebuilder.emitter.start_call_const(iter)
    rebuilder.build("BUILD_LIST", var.remaining())
    rebuilder.emitter.call(1)


@rebuilds(iterators.EnumerateVar)
def enumerate_(rebuilder: Rebuilder, var: iterators.EnumerateVar) -> None:
    rebuilder.call_const(enumerate, var.iterator, var.count)


@rebuilds(iterators.ZipVar)
def zip_(rebuilder: Rebuilder, var: iterators.ZipVar) -> None:
    # What is left of the arguments must still be equally long.
    rebuilder.call_const(STRICT_ZIP if var.strict else zip, *var.iterators)


@rebuilds(iterators.MapVar)
def map_(rebuilder: Rebuilder, var: iterators.MapVar) -> None:
    rebuilder.call_const(map, var.function, *var.iterators)


@rebuilds(iterators.FilterVar)
def filter_(rebuilder: Rebuilder, var: iterators.FilterVar) -> None:
    rebuilder.call_const(filter, var.function or ConstVar(None), var.iterator)


@rebuilds(generators.GeneratorVar)
def generator(rebuilder: Rebuilder, var: generators.GeneratorVar) -> None:
    """A generator that has not started is made again by calling its function."""
    frame = var.frame
    if var.started or frame.arguments is None or frame.function is None:
        raise Break("escaping_generator", repr(var))
    rebuilder.call_keywords(
        var.maker if var.maker is not None else frame.function, *frame.arguments)
