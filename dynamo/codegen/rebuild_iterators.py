"""How the new bytecode makes iterators and generators; the other rows are in `rebuild.py`."""

from __future__ import annotations

import collections
import functools
import itertools
from typing import Any

from dynamo.base.errors import Break
from dynamo.codegen.rebuild import Rebuilder, rebuilds
from dynamo.symbolic.variables import generators, iterators
from dynamo.symbolic.variables.constant import ConstVar

STRICT_ZIP = functools.partial(zip, strict=True)


def advance(iterator: Any, count: int) -> Any:
    """The iterator after `count` items were taken."""
    collections.deque(itertools.islice(iterator, count), maxlen=0)
    return iterator


@rebuilds(iterators.SequenceIteratorVar)
def sequence_iterator(rebuilder: Rebuilder, var: iterators.SequenceIteratorVar) -> None:
    if var.position is None:
        rebuilder.call_const(iter, ())
        return
    rebuilder.emitter.start_call_const(advance)
    rebuilder.call_const(iter, var.sequence)
    rebuilder.emitter.load_const(var.position)
    rebuilder.emitter.call(2)


@rebuilds(iterators.RangeIteratorVar)
def range_iterator(rebuilder: Rebuilder, var: iterators.RangeIteratorVar) -> None:
    rebuilder.call_const(iter, var.rest)


@rebuilds(iterators.LiveIteratorVar)
def live_iterator(rebuilder: Rebuilder, var: iterators.LiveIteratorVar) -> None:
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


@rebuilds(iterators.CountVar)
def count_(rebuilder: Rebuilder, var: iterators.CountVar) -> None:
    rebuilder.call_const(itertools.count, var.item, var.step)


@rebuilds(generators.GeneratorVar)
def generator(rebuilder: Rebuilder, var: generators.GeneratorVar) -> None:
    """A generator that has not started is made again by calling its function."""
    frame = var.frame
    if var.started or frame.arguments is None or frame.function is None:
        raise Break("escaping_generator", repr(var))
    rebuilder.call_keywords(
        var.maker if var.maker is not None else frame.function, *frame.arguments)
