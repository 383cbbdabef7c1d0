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

from dynamo.base.errors import Break
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.lookup import find_in_mro
from dynamo.symbolic.core.table import rule
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.python.generators import ITERATOR_MAKERS, GeneratorVar
from dynamo.symbolic.python.standins import is_index, is_index_or_none, run_stand_in


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


def without_maker(kind: type) -> Callable[[Any], Any]:
    """Declares a generator that shares its state with another one: it can't be made again alone."""

    def register(function: Any) -> Any:
        ITERATOR_MAKERS[function.__code__] = kind
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


def _takewhile(predicate: Any, iterable: Iterable[Any]) -> Iterator[Any]:
    for item in iterable:
        if not predicate(item):
            return
        yield item


@stands_in(itertools.takewhile, generator=_takewhile)
def takewhile(predicate: Any, iterable: Iterable[Any], /) -> Iterator[Any]:
    return _takewhile(predicate, iter(iterable))


def _dropwhile(predicate: Any, iterable: Iterable[Any]) -> Iterator[Any]:
    dropping = True
    for item in iterable:
        if dropping and predicate(item):
            continue
        dropping = False
        yield item


@stands_in(itertools.dropwhile, generator=_dropwhile)
def dropwhile(predicate: Any, iterable: Iterable[Any], /) -> Iterator[Any]:
    return _dropwhile(predicate, iter(iterable))


def _filterfalse(function: Any, iterable: Iterable[Any]) -> Iterator[Any]:
    for item in iterable:
        if not (item if function is None or function is bool else function(item)):
            yield item


@stands_in(itertools.filterfalse, generator=_filterfalse)
def filterfalse(function: Any, iterable: Iterable[Any], /) -> Iterator[Any]:
    return _filterfalse(function, iter(iterable))


def _compress(data: Iterable[Any], selectors: Iterable[Any]) -> Iterator[Any]:
    for item, selected in zip(data, selectors, strict=False):
        if selected:
            yield item


@stands_in(itertools.compress, generator=_compress)
def compress(data: Iterable[Any], selectors: Iterable[Any]) -> Iterator[Any]:
    return _compress(iter(data), iter(selectors))


def _starmap(function: Any, iterable: Iterable[Any]) -> Iterator[Any]:
    for args in iterable:
        yield function(*tuple(args))  # of what can't be iterated `tuple` says it in the right words


@stands_in(itertools.starmap, generator=_starmap)
def starmap(function: Any, iterable: Iterable[Any], /) -> Iterator[Any]:
    return _starmap(function, iter(iterable))


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


def _cycle(iterable: Iterable[Any]) -> Iterator[Any]:
    saved = []
    for item in iterable:
        saved.append(item)
        yield item
    while saved:
        for item in saved:
            yield item


@stands_in(itertools.cycle, generator=_cycle)
def cycle(iterable: Iterable[Any], /) -> Iterator[Any]:
    return _cycle(iter(iterable))


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


def _batched(iterable: Iterator[Any], n: int) -> Iterator[Any]:
    while True:
        batch: list[Any] = []
        while len(batch) < n:
            item = next(iterable, Nothing)
            if item is Nothing:
                break
            batch.append(item)
        if not batch:
            return
        yield tuple(batch)


if hasattr(itertools, "batched"):

    @stands_in(itertools.batched, generator=_batched, n=is_index)
    def batched(iterable: Iterable[Any], n: int) -> Iterator[Any]:
        if n < 1:
            raise ValueError("n must be at least one")
        return _batched(iter(iterable), n)


def _zip_longest(*iterables: Any, fillvalue: Any) -> Iterator[Any]:
    iterators = list(iterables)
    left = len(iterators)
    while left:
        row = []
        for index, iterator in enumerate(iterators):
            item = Nothing if iterator is Nothing else next(iterator, Nothing)
            if item is Nothing and iterator is not Nothing:
                iterators[index] = Nothing
                left -= 1
                if not left:
                    return
            row.append(fillvalue if item is Nothing else item)
        yield tuple(row)


@stands_in(itertools.zip_longest, generator=_zip_longest)
def zip_longest(*iterables: Iterable[Any], fillvalue: Any = None) -> Iterator[Any]:
    return _zip_longest(*[iter(iterable) for iterable in iterables], fillvalue=fillvalue)


# -- choices of positions ----------------------------------------------------------------------


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


def _combinations(iterable: Any, r: int) -> Iterator[Any]:
    if r > len(iterable):
        return
    chosen = list(range(r))
    while True:
        yield tuple([iterable[position] for position in chosen])
        for place in range(r - 1, -1, -1):
            if chosen[place] < len(iterable) - r + place:
                first = chosen[place] + 1
                chosen[place:] = range(first, first + r - place)
                break
        else:
            return


@stands_in(itertools.combinations, generator=_combinations, r=is_index)
def combinations(iterable: Iterable[Any], r: int) -> Iterator[Any]:
    pool = tuple(iterable)
    if r < 0:
        raise ValueError("r must be non-negative")
    return _combinations(pool, r)


def _with_replacement(iterable: Any, r: int) -> Iterator[Any]:
    if r and not iterable:
        return
    chosen = [0] * r
    while True:
        yield tuple([iterable[position] for position in chosen])
        for place in range(r - 1, -1, -1):
            if chosen[place] + 1 < len(iterable):
                chosen[place:] = [chosen[place] + 1] * (r - place)
                break
        else:
            return


@stands_in(itertools.combinations_with_replacement, generator=_with_replacement,
           r=is_index)
def combinations_with_replacement(iterable: Iterable[Any], r: int) -> Iterator[Any]:
    pool = tuple(iterable)
    if r < 0:
        raise ValueError("r must be non-negative")
    return _with_replacement(pool, r)


def _permutations(iterable: Any, r: int) -> Iterator[Any]:
    size = len(iterable)
    if r > size:
        return
    chosen = list(range(r))
    while True:
        yield tuple([iterable[position] for position in chosen])
        for place in range(r - 1, -1, -1):
            bigger = [i for i in range(chosen[place] + 1, size) if i not in chosen[:place]]
            if bigger:
                head = [*chosen[:place], bigger[0]]
                chosen = [*head, *[i for i in range(size) if i not in head]][:r]
                break
        else:
            return


@stands_in(itertools.permutations, generator=_permutations,
           r=is_index_or_none)
def permutations(iterable: Iterable[Any], r: int | None = None) -> Iterator[Any]:
    pool = tuple(iterable)
    if r is not None and r < 0:
        raise ValueError("r must be non-negative")
    return _permutations(pool, len(pool) if r is None else r)


# -- iterators that share their state ----------------------------------------------------------


@without_maker(type(itertools.tee(())[0]))
def _reader(iterator: Iterator[Any], seen: list[Any], asked: list[Any]) -> Iterator[Any]:
    position = 0
    while True:
        if position == len(seen):
            if asked:
                raise RuntimeError("cannot re-enter the tee iterator")
            asked.append(iterator)
            try:
                item = next(iterator, Nothing)
            finally:
                asked.clear()
            if item is Nothing:
                return
            seen.append(item)
        yield seen[position]
        position += 1


def tee(iterable: Iterable[Any], n: int = 2, /) -> tuple[Any, ...]:
    if n < 0:
        raise ValueError("n must be >= 0")
    if n == 0:
        return ()
    iterator, seen, asked = iter(iterable), [], []  # type: ignore[var-annotated]
    check_copies(iterator)
    return tuple([_reader(iterator, seen, asked) for _ in range(n)])


def check_copies(iterator: Iterator[Any]) -> None:
    """Stands for the rule below."""


@rule(check_copies)
def refuse_copies(tx: Frame, iterator: Var) -> Var:
    """Breaks for an iterator that can be copied, of which `tee` gives itself and copies."""
    if find_in_mro(iterator.python_type(), "__copy__") is not None:
        raise Break("opaque_iterator", f"tee of {iterator!r}")
    return ConstVar(None)


@rule(itertools.tee)
def make_tee(tx: Frame, /, *args: Var, **kwargs: Var) -> Var:
    made = run_stand_in(tx, tee, {"n": is_index}, args, kwargs)
    for reader in made.children():
        reader.frame.created_at = tx.step_at_start  # type: ignore[attr-defined]
    return made


class Grouping:
    """What a `groupby` and its groups share: the next item, its key, and the current group."""

    def __init__(self, iterator: Iterator[Any], key: Any) -> None:
        self.iterator, self.key = iterator, key
        self.item: Any = Nothing
        self.rank: Any = Nothing
        self.turn = 0

    def advance(self) -> bool:
        item = next(self.iterator, Nothing)
        if item is Nothing:
            return False
        self.rank = item if self.key is None else self.key(item)
        self.item = item
        return True


GROUP = type(next(itertools.groupby("a"))[1])


@without_maker(GROUP)
def _group(state: Grouping, rank: Any, turn: int) -> Iterator[Any]:
    while state.turn == turn:
        if state.item is Nothing and not state.advance():
            return
        if not rank == state.rank:
            return
        item, state.item = state.item, Nothing
        yield item


def _groupby(iterable: Iterator[Any], key: Any) -> Iterator[Any]:
    state = Grouping(iterable, key)
    rank: Any = Nothing
    while True:
        state.turn += 1
        while state.rank is Nothing or (rank is not Nothing and rank == state.rank):
            if not state.advance():
                return
        rank = state.rank
        yield rank, _group(state, rank, state.turn)


@stands_in(itertools.groupby, generator=_groupby)
def groupby(iterable: Iterable[Any], key: Any = None) -> Iterator[Any]:
    return _groupby(iter(iterable), key)
