"""Expressions, statements, exceptions and generators, as sections 4 to 8 of Python's reference describe them:
odd corners, with the values, effects, texts of errors and order of calls of eager."""

from __future__ import annotations

import pytest

from tests.features.harness import table
from tests.features.reference import compare

# What stands before `---` is there before the function is compiled.
PROGRAMS = table('''
# star order
def it(n):
    for i in range(n): LOG.append(i); yield i
def boom(): LOG.append('boom'); raise ValueError('b')
---
a, *b, c = it(5)
[d, (e, *g)] = [1, 'xyz']
out = [a, b, c, d, e, g]
for fn in (lambda: (lambda p, q: 0)(*it(3)), lambda: [*it(2), *boom()], lambda: {**{'a': 1}, **{1: 2}, 'a': 3},
        lambda: dict(**{'a': 1}, a=2), lambda: dict(**{1: 2}), lambda: log(*it(1), **boom()), lambda: max(*3),
        lambda: max(**3), lambda: [*3], lambda: {**3}):
    try: out.append(fn())
    except Exception as err: out.append((type(err).__name__, str(err)))
try:
    a, b = it(3)
except ValueError as err: out.append(str(err))
try:
    a, b, *c = it(1)
except ValueError as err: out.append(str(err))
try:
    a, b = 5
except TypeError as err: out.append(str(err))
try:
    (a, b), c = [1, 2], 3
    (a, b), c = [1], 3
except ValueError as err: out.append(str(err))
return x + 1, out, a, b, c
# eval order assign
class O:
    def __init__(s, n): object.__setattr__(s, 'n', n)
    def __setattr__(s, k, v): LOG.append(('set', s.n, k, v))
    def __getattr__(s, k): LOG.append(('get', s.n, k)); return s
    def __getitem__(s, k): LOG.append(('item', s.n, k)); return s
    def __setitem__(s, k, v): LOG.append(('setitem', s.n, k))
    def __iadd__(s, o): LOG.append(('iadd', s.n)); return s
    def __call__(s, *a, **k): LOG.append(('call', s.n, a, k)); return s
    def __lt__(s, o): LOG.append(('lt', s.n, o.n)); return s
    def __bool__(s): LOG.append(('bool', s.n)); return True
def o(n): LOG.append(n); return O(n)
---
o(1).a = o(2)[log(3)] = log(4)
o(5)[log(6)] += log(7)
o(8).z += log(9)
o(10)(log(11), *log([12]), k=log(13), **log({'z': 14}))
r = o(15) < o(16) < o(17)
d = {log(18): log(19), log(20): log(21), **log({22: 23})}
l = [log(24) for i in log([1, 2]) if log(i)]
i = 0
i, lst = 1, [0, 0]
lst[i], i = 5, 0
s = log(1) if log(0) else log(2)
t = log(1) and log(0) or log(3)
v = o(25)[log(26):log(27):log(28)]
return x + 1, d, l, lst, s, t, r.n
# defaults decorators
def deco(n):
    LOG.append(('d', n))
    def w(f): LOG.append(('w', n)); return f
    return w
---
@deco(log(1))
@deco(log(2))
def g(a=log(3), *args, b=log(4), **kw) -> log('ann'): return a, args, b, kw
@deco(5)
class A:
    z: log('annz') = log(6)
h = lambda a, b=log(7): (a, b)
return x + 1, g(), g(1, 2, b=3, c=4), h(1), g.__defaults__, g.__kwdefaults__, g.__annotations__, g.__name__
# call errors
def p(a, b, /, c, *, d, e=1): return a
def q(a): return a
def r(*, k): return k
def s(): pass
def t(a, b=1, *c): pass
class K:
    def m(self, a): return a
    def __init__(self, z=1): pass
---
out = []
for fn in (lambda: p(), lambda: p(1, 2, 3), lambda: p(1, b=2, c=3, d=4), lambda: p(1, 2, 3, 4, d=1), lambda: p(1, 2,
        c=1, d=1, z=1), lambda: q(), lambda: q(1, 2), lambda: q(1, a=2), lambda: q(b=1), lambda: r(1), lambda: r(),
        lambda: s(1), lambda: s(1, 2), lambda: t(), lambda: K().m(), lambda: K().m(1, 2), lambda: K(1, 2),
        lambda: K(y=1), lambda: (lambda x, *, y: 0)(1), lambda: (lambda x, y, z: 0)(1), lambda: q(**{'a': 1,
        'b': 2}), lambda: p(1, 2, 3, d=1, e=2), lambda: 3(), lambda: None(), lambda: 'a'(1),
        lambda: p(1,2,c=3,d=1,a=1), lambda: len(), lambda: len(1, 2), lambda: isinstance(1), lambda: K.m(),
        lambda: K.m(1)):
    try: out.append(fn())
    except Exception as e: out.append((type(e).__name__, str(e)))
return x + 1, out
# del in except
---
e = 'outer'
try: raise ValueError(1)
except ValueError as e: pass
out = []
try: out.append(e)
except UnboundLocalError as err: out.append((type(err).__name__, str(err)))
try:
    try: raise KeyError('k')
    except KeyError as e2:
        del e2
        raise
except KeyError as e3: out.append(repr(e3))
def inner():
    try: zz
    except NameError as n: return str(n)
    zz = 1
out.append(inner())
try: undefined_name
except NameError as n: out.append((str(n), n.name))
try: [].foo
except AttributeError as n: out.append((str(n), n.name, n.obj))
def free():
    def g(): return fv
    try: g()
    except NameError as n: out.append((type(n).__name__, str(n)))
    fv = 1
    del fv
    try: g()
    except NameError as n: out.append((type(n).__name__, str(n)))
free()
return x + 1, out
# nonlocal in class
---
n = 0
class A:
    nonlocal n
    n = 5
    class B:
        m = n
        def fn(self):
            nonlocal n
            n += 1
            return n
    l = [n for _ in range(2)]
r = A.B().fn(), n, A.B.m, A.l, hasattr(A, 'n')
a = [n for n in range(3)]; c = [(lambda: n)() for n in range(2)]
return x + n, r, a, c
# generator protocol
def gen():
    got = []
    try:
        while True:
            try: v = yield len(got)
            except ValueError as e: got.append(('caught', str(e))); continue
            got.append(v)
            if v == 'stop': return got
    finally: LOG.append('fin')
def stubborn():
    try: yield 1
    except GeneratorExit: yield 2
def outer():
    r = yield from gen()
    LOG.append(r)
    return 'outer done'
def raises_stop():
    yield 1
    raise StopIteration('inner')
def plain_from():
    a = yield from [1, 2]
    b = yield from 'ab'
    return a, b
---
out = []
g = gen(); out.append(next(g)); out.append(g.send('a')); out.append(g.throw(ValueError('x')))
try: g.send('stop')
except StopIteration as e: out.append(e.value)
g2 = gen(); next(g2); g2.close(); out.append(list(g2))
g3 = outer(); next(g3); g3.send(1); g3.throw(ValueError, 'two')
try: g3.send('stop')
except StopIteration as e: out.append((e.value, e.args))
for fn in (lambda: gen().send(1), lambda: next(raises_stop_at()), lambda: list(raises_stop()), lambda: next(g3),
        lambda: gen().throw(KeyError('k')), lambda: next(iter([]))):
    try: out.append(fn())
    except BaseException as e: out.append((type(e).__name__, str(e), type(e.__cause__).__name__))
s = stubborn(); next(s)
try: s.close()
except RuntimeError as e: out.append(str(e))
p = plain_from(); out.append(list(p))
def noniter():
    yield from 3
try: list(noniter())
except TypeError as e: out.append(str(e))
def ret():
    return 5
    yield
try: next(ret())
except StopIteration as e: out.append(e.value)
def reent():
    try: yield next(gg)
    except ValueError as e: yield str(e)
gg = reent(); out.append(list(gg))
return x + 1, out, g.gi_frame, g3.gi_running
# yield from custom
class It:
    def __init__(s): s.i = 0
    def __iter__(s): return s
    def __next__(s):
        s.i += 1
        if s.i > 2: raise StopIteration('val')
        return s.i
    def send(s, v): LOG.append(('send', v)); return v
    def throw(s, *a): LOG.append(('throw', str(a[-1]))); return 'thrown'
    def close(s): LOG.append('close')
class NoSend:
    def __iter__(s): return iter([1, 2])
---
def g(v): r = yield from v; LOG.append(r); return r
a = g(It()); out = [next(a), a.send(5), a.throw(ValueError('q')), next(a)]
try: next(a)
except StopIteration as e: out.append(e.value)
b = g(It()); next(b); b.close()
c = g(NoSend()); next(c)
try: c.send(1)
except AttributeError as e: out.append(str(e))
d = g(NoSend()); next(d)
try: d.throw(KeyError('z'))
except KeyError as e: out.append(str(e))
return x + 1, out
# try finally overrides
---
def a():
    try: return 1
    finally: return 2
def b():
    for i in range(3):
        try: continue
        finally: LOG.append(i)
    return i
def c():
    while True:
        try: return 1
        finally: break
    return 'broke'
def d():
    try: raise ValueError
    finally: return 'swallowed'
def e():
    for i in range(3):
        try: raise KeyError(i)
        except KeyError as k:
            if i == 1: break
            continue
        finally: LOG.append(('f', i))
    else: return 'else'
    return i
def f2():
    try:
        try: raise ValueError('a')
        finally: raise KeyError('b')
    except KeyError as k: return repr(k.__context__), k.__suppress_context__
def g():
    v = 1
    try: return v
    finally: v = 2
def h():
    try: pass
    except: return 0
    else: return 'else'
    finally: LOG.append('h')
return x + 1, a(), b(), c(), d(), e(), f2(), g(), h()
# with managers
class M:
    def __init__(s, n, sup=False, fail=None): s.n, s.sup, s.fail = n, sup, fail
    def __enter__(s):
        LOG.append(('enter', s.n))
        if s.fail == 'enter': raise RuntimeError('enter ' + s.n)
        return s
    def __exit__(s, t, v, tb):
        LOG.append(('exit', s.n, t and t.__name__, str(v), tb is None))
        if s.fail == 'exit': raise RuntimeError('exit ' + s.n)
        return s.sup
class NoExit:
    def __enter__(s): pass
---
out = []
with M('a') as a, M('b', True) as b: raise ValueError('v')
with M('c', 1), M('d'): raise KeyError('k')
for fn in (lambda: M('e', fail='enter'), lambda: M('f', fail='exit'), NoExit, lambda: 3):
    try:
        with M('out'), fn(): out.append('body'); raise IndexError('i')
    except Exception as e: out.append((type(e).__name__, str(e), repr(e.__context__)))
def ret():
    with M('r', True): return 5
def loop():
    for i in range(3):
        with M(str(i)):
            if i == 0: continue
            break
    return i
with M('t') as (p): pass
with contextlib.ExitStack() as st:
    st.enter_context(M('s1')); st.callback(LOG.append, 'cb'); st.push(M('s2', True).__exit__)
    raise ValueError('es')
with contextlib.suppress(KeyError, ValueError): raise ValueError
return x + 1, out, ret(), loop(), a.n
# exception chaining
class E(Exception):
    def __init__(s, a, *, k=1): super().__init__(a); s.k = k
    def __str__(s): return f'E:{s.k}'
class F(E): pass
---
out = []
def show(e): return (type(e).__name__, str(e), e.args, repr(e.__cause__), repr(e.__context__),
        e.__suppress_context__, getattr(e, '__notes__', None))
try:
    try: raise E('a', k=2)
    except E as e: raise F('b') from e
except F as f: out.append(show(f)); f.add_note('note1'); f.add_note('note2'); out.append(show(f))
try:
    try: 1 / 0
    except ZeroDivisionError: raise KeyError('x') from None
except KeyError as e: out.append(show(e))
try:
    try: raise ValueError('one')
    except ValueError as v:
        try: raise TypeError('two')
        except TypeError as t: raise t from v
except TypeError as e: out.append(show(e))
for fn in (lambda: (_ for _ in ()).throw(3),):
    try: fn()
    except Exception as e: out.append(show(e))
def bad(n):
    if n == 0: raise 3
    if n == 1: raise E
    if n == 2: raise ValueError from 3
    if n == 3: raise ValueError from TypeError
    if n == 4: raise
    if n == 5: assert 0, ('a', 1)
    if n == 6: assert []
    if n == 7: raise ValueError(1, 2)
    if n == 8: raise E('q', k=[1])
    if n == 9: raise StopIteration(3)
    if n == 10: raise OSError(2, 'no', 'fn')
    if n == 11: raise KeyError('a\\n')
    if n == 12: raise SystemExit(3)
    if n == 13: raise UnicodeDecodeError('utf8', b'a', 0, 1, 'why')
    if n == 14: raise ImportError('m', name='n', path='p')
for i in range(15):
    try: bad(i)
    except BaseException as e: out.append(show(e))
try: ValueError('n').add_note(3)
except TypeError as e: out.append(show(e))
e = ValueError('a'); e.__cause__ = KeyError('c'); out.append(show(e)); e.args = (1, 2); out.append(show(e))
return x + 1, out
# match
@dataclasses.dataclass
class P:
    x: int
    y: int
class Q:
    __match_args__ = ('a', 'b')
    def __init__(s): s.a, s.b = 1, 2
class Bad: __match_args__ = ['a']
class Dyn:
    __match_args__ = ('a',)
    def __getattr__(s, n): LOG.append(n); raise AttributeError(n)
def m(v):
    match v:
        case None | True | False: return 'single', v
        case 0 | 1: return 'int', v
        case 'a' | b'a': return 'txt'
        case [1, *rest] if len(rest) > 1: return 'rest', rest
        case (a, b): return 'pair', a, b
        case []: return 'empty'
        case {'k': kv, 'z': {'n': [q, *_]}, **other}: return 'map', kv, q, other
        case {'only': 1}: return 'only'
        case P(0, y=yy): return 'P0', yy
        case P(x=xx) as whole: return 'P', xx, whole.y
        case Q(1, b): return 'Q', b
        case Dyn(_): return 'no'
        case int(n) if n > 100: return 'big', n
        case str() as s: return 'str', s
        case float(): return 'float'
        case collections.deque([f, *_]): return 'x'
        case range(): return 'range'
        case set(): return 'set'
        case _: return 'default'
---
out = [m(v) for v in (None, True, 0, 1, 1.0, 'a', b'a', [1, 2, 3], [1, 2], (3, 4), [], 'ab', {'k': 1, 'z': {'n': (7,
        8)}, 'w': 2}, {'only': 1, 'b': 2}, {'only': 2}, P(0, 3), P(1, 4), Q(), Dyn(), 500, 'zz', 2.5,
        collections.deque([1, 2]), range(2), range(5), {1}, 1j, bytearray(b'a'), collections.OrderedDict(only=1),
        collections.defaultdict(int, only=1), [1], 'q', (1, 2, 3, 4))]
for fn in (lambda: mm(1), lambda: mm(2), lambda: mm(3)): pass
def bad(n, v):
    match v:
        case Bad(1) if n == 0: return 1
        case P(1, 2, 3) if n == 1: return 2
        case int(1, 2): return 3
for n, v in ((0, Bad()), (1, P(1, 2)), (2, 1)):
    try: out.append(bad(n, v))
    except TypeError as e: out.append(str(e))
return x + 1, out
# walrus scopes
---
def a():
    return [last := i for i in range(3)], last
def b():
    if (n := 10) > 5 and (m := n + 1): return n, m
def c():
    return {k: (v := k * 2) for k in range(2)}, v
d = lambda: (y := 1, y + 1)
fs = [lambda i=i: i for i in range(3)]
gs = [lambda: i for i in range(3)]
total = 0
part = [total := total + v for v in [1, 2, 3]]
print(w := 5, w)
return x + 1, a(), b(), c(), d(), [f() for f in fs], [g() for g in gs], part, total
# recursion and int limits
def rec(n): return rec(n + 1)
def depth(n): return 0 if n == 0 else 1 + depth(n - 1)
---
out = [depth(100)]
try: rec(0)
except RecursionError as e: out.append(str(e)[:32])
for fn in (lambda: int('9' * 5000), lambda: str(10 ** 5000), lambda: 1 << -1, lambda: 2 ** -1, lambda: 1 // 0,
        lambda: 1 % 0, lambda: 1.0 // 0, lambda: 1.0 % 0, lambda: 1 / 0, lambda: divmod(1, 0), lambda: 0 ** -1,
        lambda: 0.0 ** -1, lambda: (-8) ** (1 / 3), lambda: 10.0 ** 400, lambda: int(float('inf')),
        lambda: int(float('nan')), lambda: int('a'), lambda: int('1', 50), lambda: int('12', 2), lambda: float('x'),
        lambda: complex('1+'), lambda: round(float('nan')), lambda: chr(-1), lambda: ord('ab'),
        lambda: bytes([256]), lambda: (1).to_bytes(0, 'big'), lambda: pow(2, -1, 4), lambda: pow(3, -1, 7),
        lambda: pow(2, 3, 0), lambda: math.sqrt(-1), lambda: math.log(0), lambda: math.factorial(-1),
        lambda: math.gcd(12, 18, 4), lambda: math.isqrt(-1), lambda: 7 // -2, lambda: -7 % 3, lambda: 7.5 // -2,
        lambda: divmod(-7.5, 2), lambda: 1e308 * 10, lambda: -0.0, lambda: 5 .__add__('a'), lambda: 3 & 1.0,
        lambda: ~1.5, lambda: -'a', lambda: +[], lambda: not [], lambda: 1 < 'a', lambda: [] < (), lambda: {} < {},
        lambda: 1 + 'a', lambda: 'a' + 1, lambda: [] + (), lambda: 'a' * 'b', lambda: [1] @ [2], lambda: None + 1,
        lambda: {} | [], lambda: set() | [], lambda: set() + set(), lambda: len + 1, lambda: int + 1,
        lambda: 1j < 2j, lambda: 1j // 1, lambda: 2 ** 0.5, lambda: True + True, lambda: True & 3, lambda: ~True):
    try: out.append(fn())
    except Exception as e: out.append((type(e).__name__, str(e)))
return x + 1, out
# mutation while iterating
---
out = []
def go(fn):
    try: out.append(fn())
    except Exception as e: out.append((type(e).__name__, str(e)))
def d1():
    d = {1: 1, 2: 2}
    for k in d: d[k + 10] = 1
def d2():
    d = {1: 1, 2: 2}
    for k in d: del d[k]
def d3():
    d = {1: 1, 2: 2}
    for k, v in d.items(): d[k] = v * 2
    return d
def d4():
    d = {1: 1, 2: 2}; r = []
    for k in list(d): r.append(d.pop(k))
    return r
def d5():
    d = {1: 1, 2: 2}; r = []
    for k in d.values():
        r.append(k); d.pop(1, None); d[5] = 1
        if len(r) > 3: break
    return r
def s1():
    s = {1}
    for k in s: s.add(k + 1)
def l1():
    l = [1, 2, 3, 4]; r = []
    for v in l:
        r.append(v)
        if v < 3: l.remove(v)
    return r, l
def l2():
    l = [1, 2]; r = []
    for v in l:
        r.append(v)
        if len(l) < 5: l.append(v * 10)
    return r, l
def l3():
    l = [1, 2, 3]; it = iter(l); next(it); l.clear(); l2 = list(it); l.extend([7, 8, 9]); return l2, list(it)
def l4():
    l = [1, 2, 3]; return [l.pop() for v in l], l
def l5():
    l = [1, 2, 3]; l[:] = (l.append(v) or v for v in list(l)); return l
def l6():
    l = [1, 2]; l.extend(l); l += l; return l
def q1():
    q = collections.deque([1, 2])
    for v in q: q.append(v)
def e1():
    l = [1, 2, 3]; return [(i, v, l.pop() if i == 0 else None) for i, v in enumerate(l)]
def r1():
    l = [1, 2, 3]; it = reversed(l); l.append(4); return list(it)
def z1():
    l = [1, 2, 3]; it = iter(l); return list(zip(it, it))
def z2():
    a = iter([1, 2, 3]); b = iter([1]); r = list(zip(a, b)); return r, list(a)
def z3(): return list(zip([1, 2], [1], strict=True))
def m1(): return list(map(lambda a, b: a + b, [1, 2, 3], (10, 20)))
for fn in (d1, d2, d3, d4, d5, s1, l1, l2, l3, l4, l5, l6, q1, e1, r1, z1, z2, z3, m1): go(fn)
return x + 1, out
# sort side effects
class K:
    def __init__(s, v): s.v = v
    def __lt__(s, o): LOG.append((s.v, o.v)); return s.v < o.v
    def __repr__(s): return f'K{s.v}'
class Raises:
    def __lt__(s, o): raise ValueError('cmp')
---
out = []
l = [K(3), K(1), K(2), K(1), K(5)]
l.sort(); out.append([k.v for k in l])
l.sort(key=lambda k: LOG.append(len(l)) or -k.v, reverse=True); out.append([k.v for k in l])
out.append([k.v for k in sorted(l, reverse=True)])
out.append(max(l).v); out.append(min(l, key=lambda k: log(k.v)).v)
m = [3, 1, 2]
def key(v):
    m.append(v); return v
try: m.sort(key=key)
except ValueError as e: out.append((str(e), m))
def bad(v):
    if v == 2: raise KeyError(v)
    return v
m = [3, 1, 2]
try: m.sort(key=bad)
except KeyError as e: out.append((str(e), m))
for fn in (lambda: [1, 'a'].sort(), lambda: sorted([1, None]), lambda: [Raises(), Raises()].sort(), lambda: [3,
        1].sort(1), lambda: sorted([1], key=3), lambda: max([]), lambda: max(1), lambda: max('a', 1),
        lambda: min([], default=7), lambda: max(1, 2, default=3), lambda: sorted([[1, 'a'], [1, 2]])):
    try: out.append(fn())
    except Exception as e: out.append((type(e).__name__, str(e)))
import functools
out.append(sorted([3, 1, 2], key=functools.cmp_to_key(lambda a, b: log(b - a))))
return x + 1, out
# live values
---
d = {1: 1, 2: 2, 3: 3}; r = []
for k, v in d.items():
    d[3] = 99; r.append(v)
for v in d.values():
    r.append(v); d[2] = 'new'
it = iter(d.items()); next(it); d[2] = 7; r.append(next(it)); r.append(list(it))
return x + 1, r
# break in dict loop
---
d = {1: 1, 2: 2, 3: 3}; r = []
for k, v in d.items():
    dynamo.graph_break()
    d[3] = 99; r.append(v)
try:
    for k in d:
        dynamo.graph_break()
        d[k + 10] = 1; r.append(k)
except RuntimeError as e: r.append(str(e))
return x + 1, r
# break in set loop
---
s = {1}; r = []
try:
    for k in s:
        dynamo.graph_break()
        s.add(k + 10); r.append(k)
except RuntimeError as e: r.append(str(e))
return x + 1, r
# break in list loop
---
l = [1, 2]; r = []
for k in l:
    dynamo.graph_break()
    if len(l) < 5: l.append(k + 10)
    r.append(k)
it = iter(l); next(it); dynamo.graph_break(); l.clear(); r.append(list(it))
return x + 1, r
''')


@pytest.mark.parametrize(("name", "text"), PROGRAMS, ids=[name for name, _ in PROGRAMS])
def test_like_eager(name: str, text: str) -> None:
    compare(text)
