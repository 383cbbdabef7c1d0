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
from dynamo.symbolic.core.table import rule
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.python.functions import inline_polyfill
from dynamo.symbolic.python.generators import ITERATOR_MAKERS, POLLS_ENDED, SHARING, GeneratorVar
from dynamo.symbolic.python.lists import TupleVar
from dynamo.symbolic.python.polyfills import is_index, run_polyfill


class Nothing:
    """Stands where there is no item."""


def polyfill(
    *real: Any, generator: Any = None, **wants: Callable[[Var], bool]
) -> Callable[[Any], Any]:
    """Registers the decorated function for calls of the real ones; the generator that it gives is
    `generator`, by default the decorated function itself."""

    def register(function: Any) -> Any:
        ITERATOR_MAKERS[(generator or function).__code__] = real[0]

        def handle(tx: Frame, /, *args: Var, **kwargs: Var) -> Var:
            made = run_polyfill(tx, function, wants, args, kwargs)
            if isinstance(made, GeneratorVar):
                made.frame.created_at = tx.step_at_start
            return made

        rule(list(real))(handle)
        return function

    return register


@polyfill(itertools.chain)
def chain(*iterables: Iterable[Any]) -> Iterator[Any]:
    for iterable in iterables:
        yield from iterable


@polyfill(itertools.chain.from_iterable)
def from_iterable(iterable: Iterable[Any], /) -> Iterator[Any]:
    for part in iterable:
        yield from part


@rule(vars(itertools.chain)["from_iterable"])
def from_iterable_method(tx: Frame, cls: Var, iterable: Var) -> Var:
    return tx.trace.call(tx, itertools.chain.from_iterable, iterable)


BOUNDS_OF_ISLICE = "for islice() must be None or an integer: 0 <= x <= sys.maxsize."


def _islice(iterable: Iterable[Any], start: Any, stop: Any, step: Any) -> Iterator[Any]:
    position, wanted = 0, start
    if stop is not None and stop < start:
        stop = start  # which come before it are read in any case
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


@polyfill(itertools.islice, generator=_islice)
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


@polyfill(itertools.accumulate, generator=_accumulate)
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


@polyfill(itertools.repeat, generator=_repeat, times=is_index)
def repeat(object: Any, times: Any = Nothing) -> Iterator[Any]:
    if times is Nothing:
        return _forever(object)
    count = operator.index(times)
    if not -sys.maxsize - 1 <= count <= sys.maxsize:
        raise OverflowError("Python int too large to convert to C ssize_t")
    return _repeat(object, count)


def _count(start: Any, step: Any) -> Iterator[Any]:
    while True:
        given, start = start, start + step
        yield given


def is_number(var: Var) -> bool:
    return var.is_tensor or issubclass(var.python_type(), int | float | complex)


@polyfill(itertools.count, generator=_count, start=is_number, step=is_number)
def count(start: Any = 0, step: Any = 1) -> Iterator[Any]:
    return _count(start, step)


def _pairwise(iterable: Iterator[Any]) -> Iterator[Any]:
    before = next(iterable, Nothing)
    if before is Nothing:
        return
    for item in iterable:
        yield before, item
        before = item


@polyfill(itertools.pairwise, generator=_pairwise)
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

    @polyfill(itertools.batched, generator=_batched, n=is_index)
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


@polyfill(itertools.product, generator=_product, repeat=is_index)
def product(*iterables: Iterable[Any], repeat: int = 1) -> Iterator[Any]:
    if repeat < 0:
        raise ValueError("repeat argument cannot be negative")
    if repeat == 0:  # they are not read
        return _product(repeat=0)
    return _product(*[tuple(iterable) for iterable in iterables], repeat=repeat)


# -- groups: an item that was read to see whether its group ends belongs to the next one -----------


class Groups:
    """Where `groupby` is. value, key: what was read last; value is `Nothing` once it was given.
    target: the key of the group that is being given; number: which one that is."""

    def __init__(self, function: Any) -> None:
        self.function, self.number = function, 0
        self.value: Any = Nothing
        self.key: Any = Nothing
        self.target: Any = Nothing

    def step(self, iterator: Iterator[Any]) -> bool:
        """Reads the next item; False where there is none."""
        value = next(iterator, Nothing)
        if value is Nothing:
            return False
        key = value if self.function is None else self.function(value)
        self.value, self.key = value, key
        return True

    def is_inside(self) -> bool:
        """True where what was read last belongs to the group."""
        return self.key in (self.target,)  # the same or equal

    def group(self, number: int, iterator: Iterator[Any]) -> Iterator[Any]:
        while self.number == number:
            if self.value is Nothing and not self.step(iterator):
                return
            if not self.is_inside():
                return
            value, self.value = self.value, Nothing
            yield value


def _groupby(iterable: Iterator[Any], key: Any) -> Iterator[Any]:
    groups = Groups(key)
    while True:
        groups.number += 1
        while groups.key is Nothing or groups.target is not Nothing and groups.is_inside():
            if not groups.step(iterable):
                return
        groups.target = groups.key
        yield groups.key, groups.group(groups.number, iterable)


@polyfill(itertools.groupby, generator=_groupby)
def groupby(iterable: Iterable[Any], key: Any = None) -> Iterator[Any]:
    return _groupby(iter(iterable), key)


# -- one after another -----------------------------------------------------------------------------


def _cycle(iterable: Iterator[Any]) -> Iterator[Any]:
    seen: list[Any] = []
    for item in iterable:
        seen.append(item)
        yield item
    while seen:
        yield from seen


@polyfill(itertools.cycle, generator=_cycle)
def cycle(iterable: Iterable[Any], /) -> Iterator[Any]:
    return _cycle(iter(iterable))


def _takewhile(predicate: Any, iterable: Iterator[Any]) -> Iterator[Any]:
    for item in iterable:
        if not predicate(item):
            return
        yield item


@polyfill(itertools.takewhile, generator=_takewhile)
def takewhile(predicate: Any, iterable: Iterable[Any], /) -> Iterator[Any]:
    return _takewhile(predicate, iter(iterable))


def _dropwhile(predicate: Any, iterable: Iterator[Any]) -> Iterator[Any]:
    for item in iterable:
        if not predicate(item):
            yield item
            break
    yield from iterable


@polyfill(itertools.dropwhile, generator=_dropwhile)
def dropwhile(predicate: Any, iterable: Iterable[Any], /) -> Iterator[Any]:
    return _dropwhile(predicate, iter(iterable))


def _filterfalse(function: Any, iterable: Iterator[Any]) -> Iterator[Any]:
    for item in iterable:
        if not (item if function is None else function(item)):
            yield item


@polyfill(itertools.filterfalse, generator=_filterfalse)
def filterfalse(function: Any, iterable: Iterable[Any], /) -> Iterator[Any]:
    return _filterfalse(function, iter(iterable))


def _starmap(function: Any, iterable: Iterator[Any]) -> Iterator[Any]:
    for items in iterable:
        yield function(*tuple(items))


@polyfill(itertools.starmap, generator=_starmap)
def starmap(function: Any, iterable: Iterable[Any], /) -> Iterator[Any]:
    return _starmap(function, iter(iterable))


def _compress(data: Iterator[Any], selectors: Iterator[Any]) -> Iterator[Any]:
    for item in data:
        selector = next(selectors, Nothing)
        if selector is Nothing:
            return
        if selector:
            yield item


@polyfill(itertools.compress, generator=_compress)
def compress(data: Iterable[Any], selectors: Iterable[Any]) -> Iterator[Any]:
    return _compress(iter(data), iter(selectors))


def _zip_longest(*iterables: Iterator[Any], fillvalue: Any) -> Iterator[Any]:
    open_ones = [True] * len(iterables)
    while any(open_ones):
        row = []
        for place, iterator in enumerate(iterables):
            item = next(iterator, Nothing) if open_ones[place] else Nothing
            if item is Nothing:
                open_ones[place] = False
                if not any(open_ones):
                    return
            row.append(fillvalue if item is Nothing else item)
        yield tuple(row)


@polyfill(itertools.zip_longest, generator=_zip_longest)
def zip_longest(*iterables: Iterable[Any], fillvalue: Any = None) -> Iterator[Any]:
    return _zip_longest(*[iter(iterable) for iterable in iterables], fillvalue=fillvalue)


def _tee(iterator: Iterator[Any], seen: list[Any], busy: list[bool]) -> Iterator[Any]:
    """seen, busy: shared by all; busy holds an item while the iterator runs."""
    position = 0
    while True:
        if position == len(seen):
            if busy:
                raise RuntimeError("cannot re-enter the tee iterator")
            busy.append(True)
            try:
                item = next(iterator, Nothing)
            finally:
                busy.clear()
            if item is Nothing:
                return
            seen.append(item)
        yield seen[position]
        position += 1


def share(iterator: Iterator[Any], n: int) -> tuple[Iterator[Any], ...]:
    seen: list[Any] = []
    busy: list[bool] = []
    return tuple([_tee(iterator, seen, busy) for _ in range(n)])


@rule([itertools.tee])
def tee(tx: Frame, iterable: Var, n: Var = ConstVar(2)) -> Var:  # noqa: B008
    if not is_index(n):
        raise Break("argument_mismatch", f"tee(n={n!r})")
    count = tx.trace.as_index(tx, n)
    if count is None or count <= 0:  # an empty tuple, or Python's error
        return tx.trace.run_real(lambda: TupleVar([*itertools.tee((), count)]))  # type: ignore
    iterator = tx.trace.call(tx, iter, iterable)
    if tx.trace.call(tx, hasattr, iterator, ConstVar("__copy__")).truth(tx):
        raise Break("call_of_unknown_function", f"tee({iterator!r}), which copies itself")
    return inline_polyfill(tx, share, [iterator, n], {})


# -- choices: positions in a pool, in the order of the positions -----------------------------------


def _combinations(iterable: Any, r: int) -> Iterator[Any]:
    chosen = list(range(r))
    while r <= len(iterable):
        yield tuple([iterable[position] for position in chosen])
        for place in range(r - 1, -1, -1):
            if chosen[place] < len(iterable) - r + place:
                first = chosen[place] + 1
                chosen[place:] = list(range(first, first + r - place))
                break
        else:
            return


@polyfill(itertools.combinations, generator=_combinations, r=is_index)
def combinations(iterable: Iterable[Any], r: int) -> Iterator[Any]:
    pool = tuple(iterable)
    if r < 0:
        raise ValueError("r must be non-negative")
    return _combinations(pool, operator.index(r))


def _with_replacement(iterable: Any, r: int) -> Iterator[Any]:
    chosen = [0] * r
    while iterable or not r:
        yield tuple([iterable[position] for position in chosen])
        for place in range(r - 1, -1, -1):
            if chosen[place] < len(iterable) - 1:
                chosen[place:] = [chosen[place] + 1] * (r - place)
                break
        else:
            return


@polyfill(itertools.combinations_with_replacement, generator=_with_replacement, r=is_index)
def combinations_with_replacement(iterable: Iterable[Any], r: int) -> Iterator[Any]:
    pool = tuple(iterable)
    if r < 0:
        raise ValueError("r must be non-negative")
    return _with_replacement(pool, operator.index(r))


def _permutations(iterable: Any, r: int) -> Iterator[Any]:
    chosen = list(range(r))
    while r <= len(iterable):
        yield tuple([iterable[position] for position in chosen])
        for place in range(r - 1, -1, -1):
            left = [n for n in range(len(iterable)) if n not in chosen[:place]]
            later = [n for n in left if n > chosen[place]]
            if later:
                left.remove(later[0])
                chosen[place:] = [later[0], *left[: r - place - 1]]
                break
        else:
            return


@polyfill(itertools.permutations, generator=_permutations)
def permutations(iterable: Iterable[Any], r: Any = None) -> Iterator[Any]:
    pool = tuple(iterable)
    if r is not None and not isinstance(r, int):
        raise TypeError("Expected int as r")
    if r is not None and r < 0:
        raise ValueError("r must be non-negative")
    return _permutations(pool, len(pool) if r is None else operator.index(r))


for _code, _made in ((_tee.__code__, itertools.tee([])[0]),
                     (Groups.group.__code__, next(itertools.groupby([0]))[1])):
    ITERATOR_MAKERS[_code] = type(_made)
    SHARING.add(_code)
    POLLS_ENDED.add(type(_made))
POLLS_ENDED |= {itertools.accumulate, itertools.compress, itertools.dropwhile,
               itertools.filterfalse, itertools.groupby, itertools.starmap}
