"""Deques, heaps, bisections and iterators of itertools as their C code has them: what they look at while the program
changes it, and what they do behind errors and ends."""

from __future__ import annotations

import pytest

from tests.features.harness import table
from tests.features.reference import compare

PROGRAMS = table('''
# a reversed deque sees what is stored
---
d = collections.deque([1, 2, 3]); r = reversed(d); d[0] = 9; d.reverse(); return x + 1, list(r), list(d)
# a reversed deque that changes
---
d, seen = collections.deque([1, 2, 3]), []
r = reversed(d); next(r); d.append(3)
for _ in range(2):
    try: seen.append(next(r))
    except Exception as error: seen.append(repr(error))
r = reversed(d); next(r); dynamo.graph_break(); return x + 1, seen, list(r), type(r).__name__
# clear of what is empty changes nothing
---
d = collections.deque(); i = iter(d); d.clear(); return x + 1, list(i)
# places of an index
---
d, seen = collections.deque([1, 2, 3, 2]), []
for given in (2,), (2, 2), (2, -1), (2, -3, -1), (1, 1), (2, 0, 10**30), (2, -10**30), (3, 1, 1), (1, 0, None):
    try: seen.append(d.index(*given))
    except Exception as error: seen.append(repr(error))
return x + 1, seen
# comparisons change a deque
class K:
    def __init__(s, d, change, equal): s.d, s.change, s.equal = d, change, equal
    def __eq__(s, o): LOG.append('eq'); s.change(s.d); return s.equal
---
seen = []
for change in (lambda d: d.append(1), lambda d: d.reverse(), lambda d: d.__setitem__(3, 'w')):
    for method in ('index', 'count', '__contains__', 'remove'):
        for equal in (True, False):
            d = collections.deque(); d.extend([3, K(d, change, equal), 2, 'v', 7])
            try: seen.append(getattr(d, method)(7))
            except Exception as error: seen.append(type(error))
            seen.append(len(d))
return x + 1, seen, LOG[:]
# a slice of a deque
---
d = collections.deque([1, 2])
try: return x + 1, d[1:]
except TypeError as error: return x + 2, str(error)
# a comparison empties a heap
class G:
    def __init__(s, heap): s.heap = heap
    def __lt__(s, o): s.heap.clear(); return True
---
seen, heap = [], []
for use in (lambda: heapq.heappushpop(heap, 5), lambda: heapq.heapify(heap), lambda: heapq.heappop(heap)):
    heap[:] = [G(heap), G(heap), G(heap)]
    try: seen.append(use())
    except Exception as error: seen.append(repr(error))
return x + 1, seen, len(heap)
# a bisection to -1 goes to the end
---
a = [1, 2, 2, 3]; bisect.insort(a, 2, 0, -1); return x + 1, bisect.bisect_left(a, 3, 0, -1), bisect.bisect(a, 2, 0, -1), a
# a slice that ends before its start reads up to it
---
i = iter(range(10)); return x + 1, list(itertools.islice(i, 5, 3)), next(i)
# iterators that go on behind an end
class A:
    def __init__(s): s.n = 0
    def __iter__(s): return s
    def __next__(s):
        s.n += 1
        if s.n % 3 == 0: raise StopIteration
        return s.n
---
seen, t = [], itertools
for make in (lambda a: t.filterfalse(None, a), lambda a: t.dropwhile(lambda v: v < 1, a), lambda a: t.accumulate(a),
             lambda a: t.chain(a, a), lambda a: t.groupby(a), lambda a: t.tee(a)[0], lambda a: t.pairwise(a)):
    i, row = make(A()), []
    for _ in range(6):
        try: row.append(type(next(i)))
        except StopIteration: row.append('stop')
    seen.append(row)
return x + 1, seen
# iterators that go through themselves
---
def asks(v):
    LOG.append(v)
    if v == 1: LOG.append(('inside', next(made[0], 'end')))
    return v < 3
seen = []
for make in (itertools.takewhile, itertools.dropwhile, itertools.filterfalse):
    made = [make(asks, iter(range(6)))]
    seen.append(list(made[0]))
return x + 1, seen, LOG[:]
# arguments that are not read
def gen(): LOG.append('start'); yield 1
---
p = list(itertools.product(gen(), repeat=0)); seen = LOG[:]
for wrong in (lambda: list(itertools.starmap(len, [1])), lambda: itertools.count([1])):
    try: seen.append(wrong())
    except TypeError as error: seen.append(str(error))
return x + 1, p, seen
# a generator's methods are none of theirs
---
seen = []
for i in (itertools.chain([1]), itertools.tee([1])[0]):
    for ask in (lambda: i.send(None), lambda: i.close(), lambda: i.throw(ValueError)):
        try: seen.append(ask())
        except Exception as error: seen.append(str(error))
return x + 1, seen
# the next count is made before the first is given
---
t = torch.ones(2); c = itertools.count(t); first = next(c); t.add_(5); return x + 1, first, next(c)
# attributes of a thread
class Own(threading.local):
    def __init__(s): s.k = [1]
T, U = threading.local(), Own()
---
seen = []
try: T.a
except AttributeError as error: seen.append(str(error))
T.a = x; T.b = 2; U.k.append(T.b); del T.b
return T.a + 1, seen, hasattr(T, 'b'), U.k, vars(T).keys()
''')


@pytest.mark.parametrize(("name", "text"), PROGRAMS, ids=[name for name, _ in PROGRAMS])
def test_like_eager(name: str, text: str) -> None:
    compare("import bisect, heapq, threading\n" + text)
