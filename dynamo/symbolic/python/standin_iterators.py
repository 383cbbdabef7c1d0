"""Python functions that are traced in place of the iterators of `itertools`.

Each is a pair: a function that checks the arguments as the real one does when it is called, and a
generator with the parameters of the real one, which advances exactly as far as the real iterator
would. A generator that has not started leaves the trace as a call of the real one
(`ITERATOR_MAKERS`).
"""

from __future__ import annotations

import itertools
import operator
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.table import rule
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.python.generators import ITERATOR_MAKERS, GeneratorVar
from dynamo.symbolic.python.standins import is_index, run_stand_in


class Nothing:
    """Stands where there is no item."""


def stands_in(
    *real: Any, generator: Any = None, **wants: Callable[[Var], bool]
) -> Callable[[Any], Any]:
    """Registers the decorated function for calls of the real ones; the generator that it gives is
    `generator`, by default the decorated function itself."""

    def register(function: Any) -> Any:
        ITERATOR_MAKERS[(generator or function).__code__] = real[0]

        def handle(tx: Frame, /, *args: Var, **kwargs: Var) -> Var:
            made = run_stand_in(tx, function, wants, args, kwargs)
            if isinstance(made, GeneratorVar):
                made.frame.created_at = tx.step_at_start
            return made

        rule(list(real))(handle)
        return function

    return register


@stands_in(itertools.chain)
def chain(*iterables: Iterable[Any]) -> Iterator[Any]:
    for iterable in iterables:
        yield from iterable


@stands_in(itertools.chain.from_iterable)
def from_iterable(iterable: Iterable[Any], /) -> Iterator[Any]:
    for part in iterable:
        yield from part


@rule(vars(itertools.chain)["from_iterable"])
def from_iterable_method(tx: Frame, cls: Var, iterable: Var) -> Var:
    return tx.trace.call(tx, itertools.chain.from_iterable, iterable)


BOUNDS_OF_ISLICE = "for islice() must be None or an integer: 0 <= x <= sys.maxsize."


def _islice(iterable: Iterable[Any], start: Any, stop: Any, step: Any) -> Iterator[Any]:
    position, wanted = 0, start
    while stop is None or wanted < stop:
        item: Any = None
        while position <= wanted:
            item = next(iterable, Nothing)  # type: ignore[call-overload]
            if item is Nothing:
                return
            position += 1
        yield item
        wanted += step
    while stop is not None and position < stop:
        if next(iterable, Nothing) is Nothing:  # type: ignore[call-overload]
            return
        position += 1


def _index_or(value: Any, default: Any) -> Any:
    """The index, `default` for None; -1 for what is none."""
    if value is None:
        return default
    try:
        return operator.index(value)
    except Exception:  # whatever it is, islice says it in its own words
        return -1


@stands_in(itertools.islice, generator=_islice)
def islice(
    iterable: Iterable[Any], first: Any, second: Any = Nothing, step: Any = 1, /
) -> Iterator[Any]:
    given = (0, first, step) if second is Nothing else (first, second, step)
    start, stop, step = _index_or(given[0], 0), _index_or(given[1], None), _index_or(given[2], 1)
    if stop is not None and (stop == -1 or stop > sys.maxsize):
        raise ValueError(f"Stop argument {BOUNDS_OF_ISLICE}")
    if not 0 <= start <= sys.maxsize or (stop is not None and stop < 0):
        raise ValueError(f"Indices {BOUNDS_OF_ISLICE}")
    if step < 1 or step > sys.maxsize:
        raise ValueError("Step for islice() must be a positive integer or None.")
    return _islice(iter(iterable), start, stop, step)


def _accumulate(iterable: Iterable[Any], func: Any, *, initial: Any) -> Iterator[Any]:
    total = Nothing if initial is None else initial
    if initial is not None:
        yield total
    for item in iterable:
        if total is Nothing:
            total = item
        else:
            total = total + item if func is None else func(total, item)
        yield total


@stands_in(itertools.accumulate, generator=_accumulate)
def accumulate(iterable: Iterable[Any], func: Any = None, *, initial: Any = None) -> Iterator[Any]:
    return _accumulate(iter(iterable), func, initial=initial)


def _repeat(object: Any, times: int) -> Iterator[Any]:
    while times > 0:
        times -= 1
        yield object


def _forever(object: Any) -> Iterator[Any]:
    while True:
        yield object


ITERATOR_MAKERS[_forever.__code__] = itertools.repeat


@stands_in(itertools.repeat, generator=_repeat, times=is_index)
def repeat(object: Any, times: Any = Nothing) -> Iterator[Any]:
    if times is Nothing:
        return _forever(object)
    count = operator.index(times)
    if not -sys.maxsize - 1 <= count <= sys.maxsize:
        raise OverflowError("Python int too large to convert to C ssize_t")
    return _repeat(object, count)


def _count(start: Any, step: Any) -> Iterator[Any]:
    while True:
        yield start
        start = start + step


@stands_in(itertools.count, generator=_count)
def count(start: Any = 0, step: Any = 1) -> Iterator[Any]:
    if isinstance(start, str) or isinstance(step, str) or start is None or step is None:
        raise TypeError("a number is required")
    return _count(start, step)


def _pairwise(iterable: Iterator[Any]) -> Iterator[Any]:
    before = next(iterable, Nothing)
    if before is Nothing:
        return
    for item in iterable:
        yield before, item
        before = item


@stands_in(itertools.pairwise, generator=_pairwise)
def pairwise(iterable: Iterable[Any], /) -> Iterator[Any]:
    return _pairwise(iter(iterable))


def _batched(iterable: Iterator[Any], n: int, strict: bool) -> Iterator[Any]:
    batch: list[Any] = []
    for item in iterable:
        batch.append(item)
        if len(batch) == n:
            yield tuple(batch)
            batch = []
    if not batch:
        return
    if strict:
        raise ValueError("batched(): incomplete batch")
    yield tuple(batch)


if hasattr(itertools, "batched"):  # since Python 3.12, where it does not take `strict`

    @stands_in(itertools.batched, generator=_batched, n=is_index)
    def batched(iterable: Iterable[Any], n: int, *, strict: Any = Nothing) -> Iterator[Any]:
        if strict is not Nothing and sys.version_info < (3, 13):
            raise TypeError("batched() takes at most 2 arguments (3 given)")
        if n < 1:
            raise ValueError("n must be at least one")
        return _batched(iter(iterable), n, strict is not Nothing and bool(strict))


def _product(*iterables: Any, repeat: int) -> Iterator[Any]:
    pools = iterables * repeat
    if not all(pools):
        return
    chosen = [0] * len(pools)
    while True:
        yield tuple([pool[position] for pool, position in zip(pools, chosen, strict=True)])
        for place in range(len(pools) - 1, -1, -1):
            if chosen[place] + 1 < len(pools[place]):
                chosen[place:] = [chosen[place] + 1] + [0] * (len(pools) - place - 1)
                break
        else:
            return


@stands_in(itertools.product, generator=_product, repeat=is_index)
def product(*iterables: Iterable[Any], repeat: int = 1) -> Iterator[Any]:
    if repeat < 0:
        raise ValueError("repeat argument cannot be negative")
    return _product(*[tuple(iterable) for iterable in iterables], repeat=repeat)
