"""Python functions that are traced in place of C functions of the standard library."""

from __future__ import annotations

import collections
import copyreg
import itertools
import operator
import types
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from dynamo.guards.sources import ObjectSource
from dynamo.symbolic.rules.table import rule
from dynamo.symbolic.variables.base import Var
from dynamo.symbolic.variables.lookup import base_of
from dynamo.symbolic.variables.objects import ObjectVar

if TYPE_CHECKING:
    from dynamo.symbolic.machine import SymbolicFrame


def stands_in(*real: Any) -> Callable[[Any], Any]:
    """Registers the decorated Python function for calls of the real ones."""

    def register(function: Any) -> Any:
        def handle(tx: SymbolicFrame, *args: Var, **kwargs: Var) -> Var:
            var = tx.trace.wrap(function, ObjectSource(function, function.__name__))
            return tx.inline(var, list(args), kwargs)

        rule(list(real))(handle)
        return function

    return register


@stands_in(itertools.chain)
def chain(*iterables: Iterable[Any]) -> Iterator[Any]:
    for iterable in iterables:
        for item in iterable:
            yield item


@stands_in(itertools.chain.from_iterable, vars(itertools.chain)["from_iterable"])
def from_iterable(*args: Any) -> Iterator[Any]:
    for iterable in args[-1]:
        for item in iterable:
            yield item


@stands_in(itertools.islice)
def islice(iterable: Iterable[Any], *bounds: int | None) -> Iterator[Any]:
    start, stop, step = (0, bounds[0], 1) if len(bounds) == 1 else (*bounds, 1)[:3]
    start, step = start or 0, step or 1
    position = 0
    if stop is not None and start >= stop:
        return
    for item in iterable:
        if position >= start and (position - start) % step == 0:
            yield item
        position += 1
        if stop is not None and position >= stop:
            return


@stands_in(itertools.accumulate)
def accumulate(iterable: Iterable[Any], func: Any = operator.add, *, initial: Any = None) -> Iterator[Any]:
    first = initial is None
    total = initial
    if not first:
        yield total
    for item in iterable:
        total = item if first else func(total, item)
        first = False
        yield total


@stands_in(itertools.takewhile)
def takewhile(predicate: Any, iterable: Iterable[Any]) -> Iterator[Any]:
    for item in iterable:
        if not predicate(item):
            return
        yield item


@stands_in(itertools.dropwhile)
def dropwhile(predicate: Any, iterable: Iterable[Any]) -> Iterator[Any]:
    dropping = True
    for item in iterable:
        if dropping and predicate(item):
            continue
        dropping = False
        yield item


@stands_in(itertools.starmap)
def starmap(function: Any, iterable: Iterable[Any]) -> Iterator[Any]:
    for args in iterable:
        yield function(*args)


@stands_in(itertools.repeat)
def repeat(item: Any, times: int | None = None) -> Iterator[Any]:
    done = 0
    while times is None or done < times:
        done += 1
        yield item


@stands_in(itertools.cycle)
def cycle(iterable: Iterable[Any]) -> Iterator[Any]:
    saved = []
    for item in iterable:
        saved.append(item)
        yield item
    while saved:
        for item in saved:
            yield item


@stands_in(itertools.count)
def count(start: Any = 0, step: Any = 1) -> Iterator[Any]:
    while True:
        yield start
        start = start + step


@stands_in(itertools.pairwise)
def pairwise(iterable: Iterable[Any]) -> Iterator[Any]:
    items = list(iterable)
    for index in range(1, len(items)):
        yield items[index - 1], items[index]


@stands_in(itertools.zip_longest)
def zip_longest(*iterables: Iterable[Any], fillvalue: Any = None) -> Iterator[Any]:
    lists = [list(iterable) for iterable in iterables]
    for index in range(max([len(items) for items in lists], default=0)):
        yield tuple([items[index] if index < len(items) else fillvalue for items in lists])


@stands_in(itertools.product)
def product(*iterables: Iterable[Any], repeat: int = 1) -> Iterator[Any]:
    results: list[tuple[Any, ...]] = [()]
    for pool in [tuple(iterable) for iterable in iterables] * repeat:
        results = [(*result, item) for result in results for item in pool]
    for result in results:
        yield result


@stands_in(itertools.combinations)
def combinations(iterable: Iterable[Any], r: int) -> Iterator[Any]:
    pool = tuple(iterable)
    for indices in permutation_indices(len(pool), r):
        if sorted(indices) == list(indices):
            yield tuple([pool[i] for i in indices])


def permutation_indices(n: int, r: int) -> list[tuple[int, ...]]:
    found: list[tuple[int, ...]] = [()]
    for _ in range(r):
        found = [(*chosen, i) for chosen in found for i in range(n) if i not in chosen]
    return found


@stands_in(itertools.permutations)
def permutations(iterable: Iterable[Any], r: int | None = None) -> Iterator[Any]:
    pool = tuple(iterable)
    for indices in permutation_indices(len(pool), len(pool) if r is None else r):
        yield tuple([pool[i] for i in indices])


@stands_in(itertools.groupby)
def groupby(iterable: Iterable[Any], key: Any = None) -> Iterator[Any]:
    groups: list[tuple[Any, list[Any]]] = []
    for item in iterable:
        rank = item if key is None else key(item)
        if groups and groups[-1][0] == rank:
            groups[-1][1].append(item)
        else:
            groups.append((rank, [item]))
    for rank, items in groups:
        yield rank, iter(items)


@stands_in(collections._count_elements)  # type: ignore[attr-defined]
def count_elements(mapping: Any, iterable: Iterable[Any]) -> None:
    for item in iterable:
        mapping[item] = mapping.get(item, 0) + 1


def reduce_object(value: Any) -> Any:
    """`object.__reduce_ex__(value, 4)` of an instance of a class written in Python."""
    cls = type(value)
    if cls.__reduce__ is not object.__reduce__:
        return value.__reduce__()
    arguments: tuple[Any, ...] = ()
    make: Any = copyreg.__newobj__  # type: ignore[attr-defined]
    if hasattr(cls, "__getnewargs_ex__"):
        arguments, keywords = value.__getnewargs_ex__()
        if keywords:
            return copyreg.__newobj_ex__, (cls, arguments, keywords), *rest_of(value, cls)  # type: ignore[attr-defined]
    elif hasattr(cls, "__getnewargs__"):
        arguments = value.__getnewargs__()
    return make, (cls, *arguments), *rest_of(value, cls)


def rest_of(value: Any, cls: type) -> tuple[Any, Any, Any]:
    """State, list items and dict items."""
    if cls.__getstate__ is not object.__getstate__:  # type: ignore[attr-defined]
        state = value.__getstate__()
    else:
        state = dict(value.__dict__) if value.__dict__ else None
    items = iter(value) if isinstance(value, list) else None
    return state, items, iter(value.items()) if isinstance(value, dict) else None


@rule(object.__reduce_ex__)
def reduce_ex(tx: SymbolicFrame, value: Var, protocol: Var) -> Var | None:
    """What `copy` asks objects for; classes with slots are not modelled."""
    if not isinstance(value, ObjectVar) or protocol.as_constant() < 2:
        return None
    if value.is_constant() or not has_plain_state(value.python_type()):
        return None
    var = tx.trace.wrap(reduce_object, ObjectSource(reduce_object, "reduce_object"))
    return var.call(tx, [value], {})


def has_plain_state(cls: type) -> bool:
    """True where all of an instance's own state lies in its dict and its built-in part."""
    slots = any(isinstance(part, types.MemberDescriptorType)
                for base in cls.__mro__ for part in vars(base).values())
    basis = base_of(cls)
    return not slots and bool(cls.__dictoffset__) and basis in (object, list, dict)
