"""Containers that change while they are iterated or compared, their views and copies, and what iterators tell."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import dynamo
from tests.features.harness import table
from tests.features.reference import compare

PROGRAMS = table('''
# a key goes and comes again
---
d, seen = {0: 0}, []
try:
    for k in d:
        seen.append(k); del d[0]; d[0] = 0
        if len(seen) > 3: break
except RuntimeError as error: seen.append(str(error))
return x + 1, seen, d
# popped and stored again, values
---
d, seen = {0: 0}, []
try:
    for k in d.values():
        seen.append(k); d[0] = d.pop(0)
        if len(seen) > 3: break
except RuntimeError as error: seen.append(str(error))
return x + 1, seen, d
# cleared and filled
---
d, seen = {0: 0}, []
try:
    for k, v in d.items():
        seen.append(k); d.clear(); d[0] = 1
        if len(seen) > 3: break
except RuntimeError as error: seen.append(str(error))
return x + 1, seen, d
# values stored meanwhile
---
d = {'a': 1, 'b': 2}
for k in d: d[k] = k + k
return x + 1, d
# ordered moved
---
d, seen = collections.OrderedDict.fromkeys('abc'), []
try:
    for k in d: seen.append(k); d.move_to_end(k)
except RuntimeError as error: seen.append(str(error))
return x + 1, seen, list(d)
# ordered moved to where it is
---
d, seen = collections.OrderedDict.fromkeys('abc'), []
for k in d: seen.append(k); d.move_to_end('c'); d.move_to_end('a', last=False); d[k] = 1
return x + 1, seen, d
# ordered grows
---
d, seen = collections.OrderedDict.fromkeys('abc'), []
try:
    for k in d.items(): seen.append(k); d['f'] = 1
except RuntimeError as error: seen.append(str(error))
return x + 1, seen, d
# ordered shrinks over a break
---
d, seen = collections.OrderedDict.fromkeys('abc'), []
try:
    for k in d.values():
        seen.append(k); d.pop('c', None); dynamo.graph_break()
except RuntimeError as error: seen.append(str(error))
return x + 1, seen, d
# ordered changed behind its last item
---
d, seen = collections.OrderedDict.fromkeys('a'), []
for k in d: seen.append(k); d['b'] = 1
i = iter(collections.OrderedDict(a=1, b=2)); next(i)
return x + 1, seen, d, type(i).__name__, type(reversed(d)).__name__
# ordered, asked again behind the error
---
d, seen = collections.OrderedDict.fromkeys('ab'), []
i = iter(d); next(i); d['c'] = 1
for turn in range(2):
    try: seen.append(next(i, 'end'))
    except RuntimeError as error: seen.append(str(error))
return x + 1, seen
# views and frozensets
---
a, b, f = {'d': 1, 'e': 2}, {'d': 1}, frozenset
found = [f(a) & b.keys(), b.keys() & f(a), f(a) | b.keys(), f(a) - b.keys(), f(b) ^ a.keys(), set(b) & a.keys(),
         f(a.items()) & b.items(), a.keys() - f(b)]
return x + 1, [(type(v), sorted(v)) for v in found]
# views of values are no sets
---
d, seen = {1: 2}, [{1: 2}.values() == {1: 2}.values()]
v = d.values()
seen += [v == v, v == {2}, v != {2}]
try: v & v
except TypeError as error: seen.append(str(error))
return x + 1, seen
# kinds of views
class O(collections.OrderedDict): pass
---
seen = []
for made in ({'a': 1}, collections.OrderedDict(a=1), O(a=1)):
    for view in (made.keys(), made.values(), made.items()):
        seen.append((type(view).__name__, repr(view), isinstance(view, type({}.keys())), [*view], [*reversed(view)]))
        try: view < {1}
        except TypeError as error: seen.append(str(error))
return x + 1, seen
# views of items that have no hash
---
a, b, c = {1: [1]}, {1: [1]}, {1: [1], 2: [2]}
p, q, r = a.items(), b.items(), c.items()
seen = [p == q, p != q, p <= r, p < r, r > p, r >= q, r == p, (1, [1]) in p, (1, [2]) in p, (1,) in p, 1 in p, [1, [1]] in p]
return x + 1, seen, {1: 2}.items() == {(1, 2)}, {(1, 2)} == {1: 2}.items(), {(1, 2)} < {1: 2, 2: 3}.items(), {(1, 2), 3} > {1: 2}.items()
# views of items that raise
class R:
    def __eq__(s, o): raise ZeroDivisionError('eq')
---
seen = []
for op in (operator.eq, operator.ne, operator.le, operator.ge):
    try: op({1: R()}.items(), {1: R()}.items())
    except Exception as error: seen.append(repr(error))
return x + 1, seen
# copies of subclasses
class O(collections.OrderedDict):
    def __init__(s, *a): super().__init__(*a); log('made')
class D(collections.defaultdict): pass
---
o, d = O(), D(int, a=1)
o['a'], o.x = 1, 2
c = o.copy()
return x + 1, type(c), list(c.items()), vars(c), type(d.copy()), type(copy.copy(d)), d.copy().default_factory, LOG[:]
# a subclass of defaultdict
class D(collections.defaultdict): pass
---
d = D(int, a=1)
return x + 1, d.default_factory, d['q'], list(d), d, D(list)
# lists that a comparison empties
class X:
    def __init__(s, change): s.change = change
    def __eq__(s, o): s.change(); return NotImplemented
---
a, b, c = [], [], []
a.append(X(b.clear)); b.append(X(a.clear)); c.append(X(c.clear))
return x + 1, a == b, c == [1], len(a), len(b), len(c)
# lists that a comparison fills
class X:
    def __init__(s, items): s.items = items
    def __eq__(s, o): s.items.append(1); return True
---
a, b, c = [], [0, 1], []
a += [X(b), 1]; c += [X(c), 2]
return x + 1, a == b, a < b, c == [3, 2], len(b), len(c)
# deques ask a pair that differs twice
class K:
    def __init__(s, change=len): s.change = change
    def __eq__(s, o): LOG.append('eq'); s.change(s.d); return False
    def __ne__(s, o): LOG.append('ne'); return 0
    def __lt__(s, o): LOG.append('lt'); return [1]
---
seen = []
for op in (operator.eq, operator.ne, operator.lt):
    for kind in (list, tuple, collections.deque):
        k = K(); k.d = d = kind([1, k])
        seen.append(op(d, kind([1, 2])))
k = K(collections.deque.reverse); k.d = collections.deque(['a', k, 'c'])
seen.append(k.d == collections.deque(['a', 'b', 'c']))
return x + 1, seen, k.d.index('a'), LOG[:]
# methods of dict on dicts of other kinds
---
O, D, seen = collections.OrderedDict, collections.defaultdict, []
for made in ({'a': 1}, O(a=1), D(int, a=1)):
    parts = [dict.copy(made), dict.__or__(made, {'z': 1}), dict.__ror__(made, {'z': 1}), dict.__or__({'z': 1}, made),
             dict.__ror__({'z': 1}, made), made.copy(), made | {'z': 1}, {'z': 1} | made]
    seen.append([(type(v), v) for v in parts])
return x + 1, seen
# ordered dicts of which methods of dict have changed the keys alone
CHANGES = [lambda d: dict.pop(d, 'a'), lambda d: dict.__delitem__(d, 'a'), dict.clear, dict.popitem,
           lambda d: dict.__setitem__(d, 'z', 1), lambda d: dict.update(d, z=1), lambda d: dict.setdefault(d, 'z'),
           lambda d: (dict.pop(d, 'a'), dict.__setitem__(d, 'z', 1))]
READS = [repr, list, len, lambda d: [*d.items()], lambda d: d == {'b': 2}, lambda d: d.get('a'), lambda d: d.copy(),
         lambda d: [*d.values()]]
if sys.version_info < (3, 13): READS.append(lambda d: d.popitem())  # Python 3.13.0 crashes
---
seen = []
for change in CHANGES:
    for read in READS:
        d = collections.OrderedDict(a=1, b=2)
        change(d)
        try: seen.append(read(d))
        except KeyError as error: seen.append(error.args)
return x + 1, seen
# the order of a pair with a virtual subclass
class A(abc.ABC):
    def __eq__(s, o): LOG.append('A'); return NotImplemented
    def __le__(s, o): LOG.append('A le'); return NotImplemented
    def __add__(s, o): LOG.append('A add'); return NotImplemented
class V:
    def __eq__(s, o): LOG.append('V'); return NotImplemented
    def __ge__(s, o): LOG.append('V ge'); return 5
    def __radd__(s, o): LOG.append('V radd'); return 6
A.register(V)
---
return x + 1, A() == V(), A() <= V(), A() + V(), isinstance(V(), A), LOG[:]
# ids of constants
def ids(found, o):
    found.add(id(o))
    if isinstance(o, (list, tuple)):
        for e in o: ids(found, e)
    return len(found)
---
seen = []
for v in (123, 1.2345, 'abc', None):
    l = [v, v]
    dynamo.graph_break()
    seen.append((len({id(i) for i in l}), ids(set(), (l, l)), id(v) == id(v), len({id(v), id(v)}), id(v) in {id(l): 1}))
return x + 1, seen, copy.deepcopy([1, 1, [2, 2]])
# hashes are asked as often
class H(int):
    def __hash__(s): LOG.append(int(s)); return int(s)
---
d = dict.fromkeys(map(H, range(3)))
seen = [len(LOG)]
s = set(d); seen.append(len(LOG))
e = dict(d); seen.append(len(LOG))
f = s.difference(d); seen.append(len(LOG))
d[H(1)] = 5; seen.append(len(LOG))
return x + 1, seen, len(e), len(f)
# plain values of subclasses that are no number
class C(complex): pass
class F(float): pass
---
n = float('nan')
return (x + 1, [type(complex(C(a, b))) for a in (0.0, n) for b in (n, float('inf'))], type(float(F(n))),
        type(float(F('nan'))), type(+F(n)))
# a sequence that is freed behind its last item
import gc
class T(tuple):
    def __del__(s): LOG.append('gone')
class S(str):
    def __del__(s): LOG.append('gone')
---
seen = []
for kind in (T, S):
    i = iter(kind())
    seen.append(next(i, 'end'))
    gc.collect()
    seen.append(LOG[:])
return x + 1, seen
# a function that goes through its own iterator
---
def spam():
    if spam.inside: return 2
    spam.inside = True
    list(spam.iterator)
    return 1
spam.inside, spam.iterator = False, iter(spam, 2)
return x + 1, next(spam.iterator, 'end'), next(spam.iterator, 'end')
# the sentinel is asked first
class S:
    def __init__(s, name): s.name = name
    def __eq__(s, o): LOG.append((s.name, o.name)); return True
---
return x + 1, list(iter(lambda: S('item'), S('sentinel'))), LOG[:]
# tee goes through itself
class I:
    first = True
    def __iter__(s): return s
    def __next__(s):
        first, s.first = s.first, False
        if first: return next(s.other)
        return 3
---
i = I()
a, b = itertools.tee(i)
i.other = b
try: found = next(a)
except RuntimeError as error: found = str(error)
return x + 1, found
# hints of lengths
---
hint, seen = operator.length_hint, []
for made in (collections.deque([1, 2, 3]), reversed(collections.deque([1, 2, 3])), itertools.repeat(1, 3), [1, 2, 3],
             {1: 1, 2: 2, 3: 3}.items(), {7: 1, 8: 2, 9: 3}):
    i = iter(made)
    row = [hint(i)]
    for turn in range(4): next(i, None); row.append(hint(i))
    seen.append(row)
class L(list): pass
return x + 1, seen, hint(L([1, 2])), hint(map(len, []), 9)
# tee of a tee
---
a, b = itertools.tee(iter([1, 2, 3, 4])); next(a); c, d = itertools.tee(b); next(c); return x + 1, list(a), list(b), list(c), list(d), itertools.tee(5, 0)
# tee of a started tee
---
a, b = itertools.tee([1, 2, 3, 4]); next(a); c, d = itertools.tee(a); next(d); return x + 1, list(a), list(b), list(c), list(d)
# tee of what copies itself
---
class Counting:
    def __init__(self, k): self.k = k
    def __iter__(self): return self
    def __next__(self): self.k += 1; return self.k
    def __copy__(self): return Counting(self.k * 10)
a, b = itertools.tee(Counting(1)); return x + 1, next(a), next(b), type(a).__name__
# an index changes what is indexed
class I:
    def __init__(s, number, change): s.number, s.change = number, change
    def __index__(s): s.change(); return s.number
def stored(a, i): a[i] = 'new'
def deleted(a, i): del a[i]
OPS = [operator.getitem, stored, deleted, lambda a, i: a.insert(i, 'in'), lambda a, i: a.pop(i), lambda a, i: a[i:], lambda a, i: a[:i]]
---
seen = []
for kind, ops in ((list, OPS), (collections.deque, OPS[:4])):
    for op in ops:
        for number in (0, 1, -1, 2):
            for change in ('append', 'clear'):
                a = kind([1, 2])
                changes = a.clear if change == 'clear' else lambda: a.append(5)
                try: seen.append(op(a, I(number, changes)))
                except IndexError as error: seen.append(str(error))
                seen.append(list(a))
return x + 1, seen
# indices that no container has
class J(int): pass
def stored(a, i): a[i] = 1
def deleted(a, i): del a[i]
---
seen = []
for made in ([1, 2], (1, 2), collections.deque([1, 2])):
    for i in (2**63 - 1, 2**63, -2**63, -2**63 - 1, 10**30, J(10**30), 'a', 1.0, None):
        for op in (operator.getitem, stored, deleted, lambda a, i: a.pop(i)):
            if type(made) is tuple and op is not operator.getitem: continue
            try: op(made, i)
            except Exception as error: seen.append((type(error).__name__, str(error)))
return x + 1, seen
# lengths that no deque has
---
seen = []
for limit in (10**30, -1, 'a', True, 2.0):
    try: seen.append(repr(collections.deque([1, 2], limit).maxlen))
    except Exception as error: seen.append((type(error).__name__, str(error)))
return x + 1, seen
# what reverse= takes
---
seen = []
for reverse in (True, 0, 5, None, 'a', 10**30, 1.0, []):
    for sorts in (lambda: sorted([1, 2], reverse=reverse), lambda: [].sort(key=len, reverse=reverse), lambda: sorted('ab', key=ord, reverse=reverse)):
        try: seen.append(sorts())
        except Exception as error: seen.append((type(error).__name__, str(error)))
return x + 1, seen
# keys that compare by functions of their own and hash as their base
class S(str):
    def __eq__(s, o): LOG.append('eq'); return False
    __hash__ = str.__hash__
class N(int):
    def __eq__(s, o): return int(s) % 2 == int(o) % 2
    __hash__ = int.__hash__
class T(tuple):
    def __eq__(s, o): return False
    __hash__ = tuple.__hash__
---
a, n, t, d = S('a'), N(1), T((1, 2)), {'a': 1, 1: 2, (1, 2): 3}
return x + 1, [d.get(a), d.get(n), d.get(t), a in d, {a: 1}.get('a'), a in {'a'}, len({n, 1}), len({a, 'a'}), t in d], LOG[:]
# both methods of a manager are read before one is called
class Told:
    def __init__(s, name): s.name = name
    def __get__(s, i, o): LOG.append('get ' + s.name); return lambda *a: LOG.append('call ' + s.name)
class M: __enter__, __exit__ = Told('enter'), Told('exit')
class P:
    @property
    def __enter__(s): LOG.append('get enter'); return lambda: 1
    @property
    def __exit__(s): LOG.append('get exit'); raise AttributeError('none')
---
seen = []
for made in (M(), P()):
    try:
        with made: seen.append('inside')
    except Exception as error: seen.append((type(error).__name__, str(error)))
return x + 1, seen, LOG[:]
# a list among names takes single items first
class I:
    def __init__(s, items, again=None): s.items, s.again = iter(items), again
    def __iter__(s): LOG.append('iter'); return s
    def __next__(s): LOG.append('next'); return next(s.items)
    def __length_hint__(s): LOG.append('hint'); return 3
class N:
    def __next__(s): return 1
class B:
    def __iter__(s): return N()
def first(v): a, *b = v; return a, b
def both(v): a, *b, c = v; return a, b, c
def last(v): *a, b = v; return a, b
---
seen = []
for made in (lambda: I([1, 2, 3]), lambda: I([1]), lambda: I([]), B, lambda: iter([1, 2]), lambda: {1: 2, 3: 4}, lambda: 5):
    for take in (first, both, last):
        try: seen.append(take(made()))
        except Exception as error: seen.append((type(error).__name__, str(error)))
return x + 1, seen, LOG[:]
# what is taken in looks at what has been taken
def grown(kind, method, *first):
    made = kind(first)
    getattr(made, method)(len(made) * 10 for _ in range(3))
    return made
---
l, s, q = [5], {1, 2, 3}, collections.deque([0], maxlen=2)
l += (v for v in [1, 1, 5, 2] if v not in l)
l.extend(map(lambda v: v + len(l), [1, 2]))
s.difference_update(v for v in [3, 2, 1] if len(s) > 1)
q.extend(sum(q) + 1 for _ in range(4))
seen = [grown(*row) for row in ((list, 'extend'), (set, 'update', 0), (collections.deque, 'extend', 1), (collections.deque, 'extendleft'))]
for kind in (dict, collections.OrderedDict, collections.Counter, lambda: collections.defaultdict(int)):
    d = kind(); d.update({'a': 1} if kind is collections.Counter else ((i, len(d)) for i in range(3))); seen.append(d)
def empties(): l2.clear(); yield 1; l2.append('x'); yield l2.pop(0)
l2 = [7]; l2.extend(empties())
return x + 1, l, s, q, seen, l2
# a part was taken in before an error
def fails(*items):
    yield from items
    raise ZeroDivisionError('end')
---
seen = []
def tried(made, take):
    try: take(made)
    except Exception as error: seen.append((type(error).__name__, str(error)))
    seen.append(made)
for kind in (list, collections.deque): tried(kind([0]), lambda made: made.extend(fails(1, 2)))
tried(collections.deque([0]), lambda made: made.extendleft(fails(1, 2)))
for kind in (dict, collections.OrderedDict, collections.Counter, lambda: collections.defaultdict(int)):
    for pairs in ([(1, 2), ([], 3)], [(1, 2), 3], [(1, 2), (3,)], 5):
        tried(kind(), lambda made: made.update(pairs))
    tried(kind(), lambda made: made.update(fails((1, 2))))
for items in ([1, []], fails(1, 2)): tried({0}, lambda made: made.update(items))
tried({0, 1, 2}, lambda made: made.difference_update(fails(1, 2)))
return x + 1, seen
# pairs are taken apart one by one
class P:
    def __init__(s, n): s.n = n
    def __iter__(s): LOG.append(('iter', s.n)); return iter((s.n, 1))
    def __length_hint__(s): LOG.append('hint'); return 2
class T:
    def __iter__(s): raise TypeError('own')
class M:
    def keys(s): return pairs(1, 2)
    def __getitem__(s, k): LOG.append('get'); return 1
def pairs(*items):
    for item in items: LOG.append('next'); yield item
---
seen = []
for kind in (dict, collections.OrderedDict, lambda v: collections.defaultdict(int, v)):
    for made in (lambda: pairs(P(1), P(2)), M, lambda: pairs(5, 6), lambda: pairs(([], 1), 6), lambda: [T()]):
        try: seen.append(dict(kind(made())))
        except Exception as error: seen.append((type(error).__name__, str(error)))
        LOG.append(None)
return x + 1, seen, LOG[:]
# no more is taken than is asked for
class V:
    def __init__(s, v): s.v = v
    def __rmul__(s, o): LOG.append(('rmul', s.v)); return o
def gives(*items):
    for item in items: LOG.append(item); yield item
---
seen = []
for ask in ({1}.isdisjoint, {1, 2}.issuperset, {1: 2}.keys().isdisjoint, frozenset([1]).isdisjoint, {1}.union, set, frozenset, dict.fromkeys, {1}.difference,
            {1}.symmetric_difference, {1}.intersection, collections.OrderedDict.fromkeys):
    for items in ((2, 1, 3), (1, 3, 2), ([], 1), ()):
        for rest in (gives(*items), iter(items), iter(range(4))):
            try: seen.append(sorted(ask(rest)) if 'joint' not in ask.__name__ and 'super' not in ask.__name__ else ask(rest))
            except TypeError as error: seen.append(str(error))
            seen.append(list(rest))
return x + 1, seen, math.prod(map(V, gives(1, 2)), start=3), LOG[:]
# methods of an ordered dict's subclass are called by those of C
class Sets(collections.OrderedDict):
    def __setitem__(s, k, v): LOG.append(('set', k)); super().__setitem__(k, v)
class Others(collections.OrderedDict):
    def __getitem__(s, k): LOG.append(('get', k)); return super().__getitem__(k)
    def __delitem__(s, k): LOG.append(('del', k)); super().__delitem__(k)
    def __contains__(s, k): LOG.append(('in', k)); return super().__contains__(k)
class Recent(collections.OrderedDict):
    def __init__(s, most, *a, **k): s.most = most; super().__init__(*a, **k)
    def __setitem__(s, k, v):
        if len(s) >= s.most: s.popitem(last=False)
        super().__setitem__(k, v)
class Stored(dict):
    def __setitem__(s, k, v): LOG.append('never')
---
seen = []
for kind in (Sets, Others, Stored):
    o = kind({'z': 0}, a=1); o.update(b=2); o.update([('c', 3), ('a', 4)], d=x)
    seen += [o.setdefault('e', 5), o.setdefault('a', 6), o.pop('a'), o.pop('none', 7), o.popitem()]
    c = o.copy(); seen += [type(c).__name__, list(c), c == o, list(kind.fromkeys('ab'))]
    try: o.update([('f', 1), 5])
    except Exception as error: seen.append((type(error).__name__, str(error)))
    seen.append(list(o))
r = Recent(2, a=1, b=2); r.update(c=3); r['d'] = 4
return x + 1, seen, list(r), LOG[:]
# kinds of iterators over ranges
---
i = iter(range(-2**65, 20, 2)); i.__setstate__(2**64 + 7)
j = reversed(range(10, 20, 2)); j.__setstate__(3)
return x + 1, list(i), list(j), [type(iter(range(*v))).__name__ for v in ((5,), (2**70,), (2**63, 2**63 + 2), (0, 1, 2**70))]
''')


@pytest.mark.parametrize(("name", "text"), PROGRAMS, ids=[name for name, _ in PROGRAMS])
def test_like_eager(name: str, text: str) -> None:
    compare(text)


TUPLES = {(1, 2): 3, ((4, 5), 6): 7}
KEYS = {
    "comprehension": lambda: [[item for item in key] for key in TUPLES],
    "unpacked": lambda: [(*key, 0) for key in TUPLES],
    "functions": lambda: [(list(map(str, key)), list(zip(key, key)), {*key}) for key in TUPLES],
    "set": lambda: [[item for item in key] for key in {*TUPLES}],
}


@pytest.mark.parametrize("name", KEYS)
def test_keys_of_a_dict_from_outside_that_are_tuples_are_iterated(name: str) -> None:
    """An exception would be the program's, which a `try` catches."""

    def f(x: torch.Tensor) -> Any:
        try:
            found = KEYS[name]()
        except TypeError as error:
            found = str(error)
        return x + 1, found

    x = torch.ones(2)
    assert dynamo.compile(f, backend="eager")(x)[1] == f(x)[1]
