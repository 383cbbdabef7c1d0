"""What a program has made lives on over a graph break: each row with a break at `BREAK`, and without."""

from __future__ import annotations

import pytest
import torch

import dynamo
from dynamo.testing import CompileCounter
from tests.features.harness import build, check, table

SETUP = """
import abc, collections, contextlib, dataclasses, enum, functools

LOG = []
class Level(enum.Enum):
    LOW = 1
    HIGH = 2
    @classmethod
    def _missing_(cls, value):
        LOG.append(value)
        return None if value == "none" else cls.HIGH if value == "h" else cls.LOW
"""

ROWS = table(r'''
# chainmap
c = collections.ChainMap({'a': 1}, {'a': 2, 'b': 3})
BREAK
c['z'] = 5
d = c.new_child({'q': 1})
return x * c['b'], dict(c), list(c), d.maps, d.parents is c, len(d)
# counter
c = collections.Counter('abracadabra')
c.subtract('aab')
BREAK
c['zz'] -= 1
return x * c['a'], c.most_common(2), +c, -c, c.total(), list(c.elements()), c['none']
# ordered dict
o = collections.OrderedDict(a=1, b=2, c=3)
o.move_to_end('a')
BREAK
o.move_to_end('c', last=False)
p = o.popitem(last=False)
return x + 1, list(o), p, o == {'b': 2, 'a': 1}
# namedtuple
P = collections.namedtuple('P', 'a b', defaults=[4])
p = P(1)
BREAK
q = p._replace(b=9)
return x * q.b, q, q._asdict(), P._fields, P._field_defaults, P._make([1, 2])
# frozen dataclass
@dataclasses.dataclass(frozen=True, order=True)
class D:
    a: int
    b: float = 2.0
d = D(1)
BREAK
try:
    d.a = 4
except dataclasses.FrozenInstanceError as e:
    m = str(e)
return x * d.b, m, d < D(2), hash(d) == hash(D(1)), {d: 3}[D(1)], dataclasses.replace(d, a=7)
# dataclass with keywords
@dataclasses.dataclass(kw_only=True)
class D:
    a: int
    b: dataclasses.InitVar[int] = 3
    c: int = dataclasses.field(init=False, repr=False)
    def __post_init__(self, b):
        self.c = self.a * b
d = D(a=2)
BREAK
try:
    D(2)
except TypeError as e:
    m = str(e)
return x * d.c, repr(d), m, [f.name for f in dataclasses.fields(d)]
# descriptor with a name
class D:
    def __set_name__(self, owner, name):
        self.name = '_' + name
    def __get__(self, obj, kind=None):
        return self if obj is None else getattr(obj, self.name, 5)
    def __set__(self, obj, value):
        setattr(obj, self.name, value * 2)
    def __delete__(self, obj):
        delattr(obj, self.name)
class C:
    d = D()
c = C()
a = c.d
BREAK
c.d = 4
b = c.d
del c.d
return x * a * b, c.d, C.d.name, vars(c)
# metaclass with prepare and call
class M(type):
    @classmethod
    def __prepare__(mcs, name, bases, **kw):
        return {'made': name}
    def __new__(mcs, name, bases, ns, **kw):
        return super().__new__(mcs, name, bases, dict(ns))
    def __init__(cls, name, bases, ns, **kw):
        super().__init__(name, bases, ns)
    def __call__(cls, *a):
        o = super().__call__(*a)
        o.tag = 'called'
        return o
    def __len__(cls):
        return 4
class C(metaclass=M, q=1):
    def __init__(self, v):
        self.v = v
c = C(3)
BREAK
return x * c.v * len(C), c.tag, C.made
# getattr
class C:
    def __init__(self):
        object.__setattr__(self, 'log', [])
    def __getattr__(self, n):
        self.log.append(n)
        if n == 'bad':
            raise AttributeError(n)
        return len(n)
    def __setattr__(self, n, v):
        self.log.append(('set', n))
        object.__setattr__(self, n, v)
    def __delattr__(self, n):
        self.log.append(('del', n))
        object.__delattr__(self, n)
c = C()
a = c.abc
c.q = 2
BREAK
del c.q
return x * a, c.log, hasattr(c, 'bad'), getattr(c, 'bad', 7), c.q
# missing
class D(dict):
    def __missing__(self, k):
        self[k] = v = len(self)
        return v
d = D(a=1)
u = d['q']
BREAK
w = d['r']
return x * w + u, d, d.get('zz')
# generator with send and throw
def g():
    total = 0
    log.append('start')
    try:
        while True:
            try:
                v = yield total
                total += v
            except ValueError as e:
                log.append(str(e))
                yield 'caught'
    finally:
        log.append('fin')
    return 'never'
log = []
it = g()
next(it)
a = it.send(3)
b = it.throw(ValueError('boo'))
BREAK
next(it, None) if False else None
c = it.send(None) if False else None
it.close()
return x * a, b, log
# generator with a value
def inner():
    yield 1
    yield 2
    return 'r'
def outer():
    r = yield from inner()
    log.append(r)
    r2 = yield from It()
    log.append(r2)
    return 5
class It:
    def __init__(self): self.n = 0
    def __iter__(self): return self
    def __next__(self):
        self.n += 1
        if self.n > 2:
            raise StopIteration('val')
        return self.n * 10
log = []
o = outer()
items = [next(o), next(o)]
BREAK
try:
    while True:
        items.append(next(o))
except StopIteration as e:
    end = e.value
return x + 1, items, log, end
# context of exceptions
try:
    try:
        1 / 0
    except ZeroDivisionError as e:
        BREAK
        raise KeyError('k') from e
except KeyError as e2:
    e2.add_note('n1')
    got = (type(e2.__cause__).__name__, type(e2.__context__).__name__, e2.__notes__, e2.__suppress_context__)
try:
    try:
        [][1]
    except IndexError:
        raise ValueError('v') from None
except ValueError as e3:
    got2 = (e3.__cause__, type(e3.__context__).__name__, e3.__suppress_context__)
return x + 1, got, got2
# exception group
try:
    raise ExceptionGroup('g', [ValueError(1), TypeError('t'), ExceptionGroup('h', [ValueError(2)])])
except* ValueError as e:
    a = e.exceptions
    BREAK
except* TypeError as e:
    b = repr(e.exceptions)
return x + 1, repr(a), b
# match
def m(v):
    match v:
        case int(n) if n > 5: return ('big', n)
        case int() | float(): return 'num'
        case {'a': a, **rest}: return ('map', a, rest)
        case [1, *r]: return ('seq', r)
        case (p, q): return ('two', p, q)
        case str() as s: return s.upper()
        case Pt(a=1, b=bb): return ('pt', bb)
        case Pt(u, v): return ('pos', u, v)
        case None: return 'none'
        case _: return 'other'
class Pt:
    __match_args__ = ('a', 'b')
    def __init__(self, a, b): self.a, self.b = a, b
r = [m(9), m(1), m({'a': 2, 'c': 3})]
BREAK
r += [m([1, 2, 3]), m((4, 5)), m('s'), m(Pt(1, 2)), m(Pt(3, 4)), m(None), m(1j)]
return x + 1, r
# cached property
class C:
    n = 0
    @functools.cached_property
    def v(self):
        C.n += 1
        return 7
c = C()
a = c.v + c.v
BREAK
return x * a, c.v, C.n, vars(c)
# contextmanager
@contextlib.contextmanager
def cm(v):
    log.append('in')
    try:
        yield v
    except ValueError as e:
        log.append(str(e))
    finally:
        log.append('out')
log = []
with cm(3) as v:
    y = x * v
    BREAK
    raise ValueError('q')
return y, log
# a diamond of classes
class A:
    def go(self): return ['A']
class B(A):
    def go(self): return ['B'] + super().go()
class C(A):
    def go(self): return ['C'] + super().go()
class D(B, C):
    def go(self): return ['D'] + super().go()
BREAK
return x + 1, D().go(), [k.__name__ for k in D.__mro__]
# class graph cycle
class A: pass
class B:
    other = A
A.other = B
a, b = A(), B()
a.b, b.a = b, a
BREAK
return x + 1, a.b.a is a, A.other.other is A, isinstance(a.b, A.other)
# method on instance
class A:
    def go(self): return self.n
a = A(); a.n = 3
m = a.go
u = A.go
BREAK
return x * m(), u(a), m.__self__ is a, m.__func__ is A.go, m == a.go
# classes of a metaclass before and behind
class M(type):
    def __new__(m, n, b, d):
        c = super().__new__(m, n, b, d)
        c.reg = getattr(c, 'reg', []) + [n]
        return c
class A(metaclass=M): pass
class B(A): pass
BREAK
class C(B): pass
return x + 1, C.reg, A.reg, type(C) is M
# slots of a base
class A:
    __slots__ = ('a',)
class B(A):
    __slots__ = ('b',)
b = B(); b.a = 1; b.b = 2
BREAK
try:
    b.c = 3
except AttributeError as e:
    m = str(e)
return x * b.a, b.b, hasattr(b, '__dict__'), m
# dataclass with a base
@dataclasses.dataclass
class A:
    a: int = 1
@dataclasses.dataclass
class B(A):
    b: list = dataclasses.field(default_factory=lambda: [5])
    def tot(self): return self.a + self.b[0]
v = B(3)
w = dataclasses.replace(v, a=4)
BREAK
return x * v.tot(), repr(w), w.b is v.b, dataclasses.asdict(v), v == B(3), B.__match_args__
# closure cells shared
n = 0
def inc():
    nonlocal n
    n += 1
    return n
def get(): return n
inc()
BREAK
inc()
n += 10
return x * n, get(), inc(), get()
# gen across
def g():
    for i in range(4):
        r = yield i
        if r: log.append(r)
log = []
it = g()
a = next(it)
b = it.send('s')
BREAK
c = list(it)
return x + 1, a, b, c, log
# nested with order
class C:
    def __init__(self, n, sw=False): self.n, self.sw = n, sw
    def __enter__(self): log.append('+' + self.n); return self
    def __exit__(self, t, v, b): log.append('-' + self.n + (t.__name__ if t else '')); return self.sw
log = []
with C('a') as a, C('b', True) as b:
    y = x + 1
    BREAK
    raise ValueError
with C('c') as c:
    BREAK
    pass
return y, log
# order of a changed dict
d = {'a': 1, 'b': 2, 'c': 3}
del d['a']
d['a'] = 9
e = dict(d)
BREAK
d |= {'z': 1}
k = d.keys()
d['y'] = 2
try:
    for q in d:
        d['new'] = 1
except RuntimeError as er:
    m = str(er)
return x + 1, list(d), list(k), e, m, list(reversed(d)), d.popitem()
# unbound
def g():
    try:
        del q
    except UnboundLocalError as e:
        return str(e)
    q = 1
try:
    undefined_name
except NameError as e:
    m = str(e), e.name
BREAK
return x + 1, m, g()
# descriptor priority
class D:
    def __get__(self, o, t=None): return 'd'
class DD(D):
    def __set__(self, o, v): o.__dict__['dd'] = v
class C:
    d = D(); dd = DD()
c = C()
c.__dict__['d'] = 'inst'
c.dd = 'x'
BREAK
return x + 1, c.d, c.dd, vars(c), C.d
# partial with attributes of its own
p = functools.partial(max, 1)
p.told = 5
BREAK
q = functools.partial(p, 2)
return x + 1, q.args, q.func is p, q(3), functools.partial(q, 7).args
# partial chain
p = functools.partial(lambda *a, **k: (a, k), 1, z=2)
q = functools.partial(p, 5, z=3)
BREAK
return x + 1, q(6, y=1), q.args, q.keywords, q.func is p.func
# custom exc
class E(Exception):
    def __init__(self, code, **kw):
        super().__init__(f'code {code}')
        self.code = code
    def __str__(self): return f'E<{self.code}>'
try:
    raise E(4)
except (KeyError, E) as e:
    BREAK
    got = e.code, str(e), e.args, repr(e)
try:
    raise E
except TypeError as t:
    m = str(t)
return x + got[0], got, m
# int enum made
class E(enum.IntEnum):
    A = 1
    B = 2
class S(enum.Enum):
    X = 'x'
    Y = enum.auto()
BREAK
return x * E.B, E(1) is E.A, [e.name for e in E], E.A + 1, E.A < E.B, S('x').name, list(S.__members__), E['B'].value
# dataclasses whose methods name each other
@dataclasses.dataclass
class A:
    a: int = 1
    def other(self): return B(self.a, 5)
@dataclasses.dataclass
class B(A):
    b: int = 2
    def back(self): return A(self.b)
@dataclasses.dataclass
class C(B):
    c: int = 3
    def up(self): return A(self.b), C()
BREAK
return x + 1, repr(A(7).other()), repr(B(1).back()), repr(C(4).up()), C.__match_args__
# dataclasses with slots that name each other
@dataclasses.dataclass(slots=True)
class A:
    a: int = 1
    def other(self): return B(self.a, 5)
@dataclasses.dataclass(slots=True)
class B(A):
    b: int = 2
    def back(self): return A(self.b)
BREAK
return x + 1, repr(A(7).other()), repr(B(1).back()), B.__slots__
# a base that names its subclass
class A:
    def other(self): return B()
class B(A):
    def back(self): return A, super().other
o = A().other()
BREAK
return x + 1, type(o) is B, o.back()[0] is A, type(o.other()) is B
# functional enumerations
E = enum.Enum('E', ['A', 'B'], start=3)
I = enum.IntEnum('I', {'A': 2, 'B': 5})
S = enum.StrEnum('S', 'a, b')
m = I.B
BREAK
return x * E.A.value * m, repr(E.B), E(4) is E.B, E.__module__, len(E), m is I.B, I.A + 1, f'{m}', S['b'].name, S.a == 'a'
# members of values that are none
a = Level('h')
BREAK
try:
    Level('none')
except ValueError as e:
    m = str(e), e.__context__
return x * a.value, Level(7).name, Level('LOW') is Level.LOW, m, list(LOG)
# an abstract base that names its subclass
class A(abc.ABC):
    @abc.abstractmethod
    def go(self): ...
    def mk(self): return B()
class B(A):
    def go(self): return 4
BREAK
b = B()
return x * b.go(), isinstance(b.mk(), A)
''')
NAMES = [name for name, _ in ROWS]


@pytest.mark.parametrize(("name", "text"), ROWS, ids=NAMES)
def test_over_a_break(name: str, text: str) -> None:
    check(text.replace("BREAK", "dynamo.graph_break()"), SETUP, graphs=None)


# Python makes classes, enumerations and groups, orders heaps, gives partials their attributes.
BROKEN = {"namedtuple", "partial with attributes of its own", "functional enumerations",
          "int enum made", "members of values that are none", "counter", "exception group"}


@pytest.mark.parametrize(("name", "text"), ROWS, ids=NAMES)
def test_without_a_break(name: str, text: str) -> None:
    broken = name in BROKEN or "class " in text
    check(text.replace("BREAK", "pass"), SETUP, graphs=None if broken else 1)


def test_a_name_that_the_function_deletes_is_compiled_once() -> None:
    text = """
        def read(): return NAME
        def f(x, y):
            global NAME
            NAME_TWICE = NAME * 2
            del NAME
            try:
                read()
            except NameError as e:
                return x * NAME_TWICE, str(e)
    """
    scope = build(text, "NAME = 2")
    counter = CompileCounter()
    compiled = dynamo.compile(scope["f"], backend=counter, fullgraph=True)
    x = torch.rand(3)
    for _ in range(3):
        scope["NAME"] = 2
        got = compiled(x, x)
        assert torch.equal(got[0], x * 4) and got[1] == "name 'NAME' is not defined"
    assert counter.frame_count == 1
