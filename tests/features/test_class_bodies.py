"""Classes defined in compiled functions: their bodies, bases, metaclasses and decorators, and what is
left of them outside."""

from __future__ import annotations

import enum
import typing
from typing import Any

import pytest
import torch

import dynamo
from tests.features.harness import build, make_tests, same, table

SETUP = """
KEEP = []
import abc, enum, dataclasses, functools, typing, collections
class Base:
    made = []
    def __init_subclass__(cls, tag=None, **kw):
        super().__init_subclass__(**kw); cls.tag = tag; Base.made.append((cls.__name__, tag))
    def hello(self): return "base"
class Plain:
    def area(self): return 2
class Desc:
    def __set_name__(self, owner, name): self.name = name; self.owner = owner
    def __get__(self, obj, cls): return (self.name, obj is None)
class DataDesc(Desc):
    def __set__(self, obj, v): obj.__dict__["_" + self.name] = v
class Meta(type):
    def __new__(mcs, name, bases, ns, **kw):
        ns["extra"] = len(ns) > 2; return super().__new__(mcs, name, bases, ns)
    def __init__(cls, name, bases, ns, flag=0): super().__init__(name, bases, ns); cls.flag = flag
    def __call__(cls, *a): o = super().__call__(*a); o.via = 1; return o
    def __len__(cls): return 7
class Prep(type):
    @classmethod
    def __prepare__(mcs, name, bases): return {"given": 3}
LOG = []
def deco(c): LOG.append(c.__name__); c.deco = 1; return c
"""

ONE_GRAPH = table('''
# plain
class A:
    k = 3
    def m(self, v): return v * self.k
return A().m(x)
# init
class A:
    def __init__(self, v): self.v = v
    def m(self): return self.v + 1
return A(x).m(), A.__name__, A.__qualname__, A.__module__, A.__doc__
# super
class A(Plain):
    def area(self): return super().area() + 1
return x + A().area()
# class cell
class A:
    def me(self): return __class__
a = A(); return x + 1, a.me() is A, type(a) is A, isinstance(a, A), issubclass(A, object)
# closure
k = 4
class A:
    def m(self): return x * k
k = 5
return A().m()
# classderef
k = 4
class A:
    j = k
    k = 7
    l = k
    def m(self): return k
return x + A.j, A.l, A.k, A().m()
# property
class A:
    def __init__(self): self._v = 1
    @property
    def v(self): return self._v
    @v.setter
    def v(self, n): self._v = n * 2
    @v.deleter
    def v(self): self._v = None
a = A(); a.v = x; r = a.v
del a.v
return r, a.v
# static class methods
class A:
    @staticmethod
    def s(v): return v + 1
    @classmethod
    def c(cls, v): return cls, v * 2
return A.s(x), A.c(x)[1], A().c(y)[1], A.c(x)[0] is A, A().s(1)
# init_subclass
class A(Base, tag='t'): pass
return x + 1, A.tag, A().hello(), Base.made[-1]
# set_name
class A:
    d = Desc()
    e = DataDesc()
a = A(); a.e = 3
return x + 1, A.d, a.d, vars(a), A.__dict__['d'].owner is A
# metaclass
class A(metaclass=Meta, flag=2):
    q = 1
    r = 2
return x + len(A), A.extra, A.flag, A().via, type(A) is Meta
# prepare
class A(metaclass=Prep):
    v = given + 1
return x + A.v, A.given
# abc
class A(abc.ABC):
    @abc.abstractmethod
    def m(self): ...
class B(A):
    def m(self): return x
try: A()
except TypeError as e: return B().m() + 1, str(e), sorted(A.__abstractmethods__)
# decorated
@deco
class A: pass
return x + A.deco, LOG[-1]
# dataclass
@dataclasses.dataclass
class A:
    a: int
    b: typing.Any = None
    c: list = dataclasses.field(default_factory=list)
    def tot(self): return self.a + self.b
p = A(1, x); p.c.append(2)
return p.tot(), p.c, A(1, 2, [2]) == A(1, 2, [2]), repr(A(1, 2)), [f.name for f in dataclasses.fields(A)]
# frozen dataclass
@dataclasses.dataclass(frozen=True, order=True)
class A:
    a: int = 3
    b: float = 1.0
try: A().a = 3
except dataclasses.FrozenInstanceError as e: return x + A().b, str(e), A(1) < A(2), hash(A()) == hash(A())
# tensor attr
class A:
    w = x * 2
    def m(self): return self.w + 1
return A().m(), A.w
# type call
A = type('A', (Plain,), {'v': 3, 'm': lambda self: self.v + 1})
return x + A().m(), A.__name__, A.__mro__[1] is Plain
# loop
out = []
for i in range(3):
    class A:
        v = i
    out.append(A)
return x + 1, [a.v for a in out], out[0] is out[1]
# exception class
class E(ValueError):
    def __init__(self, c): super().__init__(c); self.c = c
try: raise E(3)
except E as e: return x + e.c, str(e)
# slots
class A:
    __slots__ = ('a', 'b')
    def __init__(self): self.a = 1
a = A()
try: a.c = 1
except AttributeError as e: return x + a.a, str(e), A.__slots__, hasattr(a, 'b')
# call eq hash
class A:
    def __init__(self, n): self.n = n
    def __eq__(self, o): return self.n == o.n
    def __call__(self, v): return v + self.n
    def __getitem__(self, i): return i
    def __len__(self): return 3
    def __iter__(self): return iter([1, self.n])
    def __enter__(self): return self
    def __exit__(self, *a): return True
with A(1) as q:
    raise KeyError
return A(1)(x), A(1) == A(1), A(1) != A(2), A(1)[4], len(A(2)), list(A(5)), A.__hash__
# body statements
class A:
    vals = []
    for i in range(3): vals.append(i)
    if i: flag = True
    del i
    try: zzz
    except NameError as e: err = str(e)
return x + sum(A.vals), A.flag, A.err, hasattr(A, 'i')
# nested
class A:
    class B:
        v = 2
        def m(self): return A.B.v
    b = B()
return x + A.b.m(), A.B.__qualname__
# list subclass
class L(list):
    def total(self): return sum(self)
l = L([1, 2]); l.append(3); return x + l.total(), len(l)
# module
class M(torch.nn.Module):
    def forward(self, v): return v + 1
return M()(x)
# cached_property
class A:
    n = 0
    @functools.cached_property
    def v(self): LOG.append(1); return 3
a = A(); return x + a.v + a.v, len(LOG), vars(a)
# getattr
class A:
    def __getattr__(self, n): return n
    def __setattr__(self, n, v): object.__setattr__(self, n, v + 1)
a = A(); a.q = 1; return x + a.q, a.zz
# class store
class A:
    n = 0
    def __init__(self): A.n += 1
A(); A(); A.late = 4; return x + A.n, A.late, A().late
# inherit twice
class A:
    def m(self): return [1]
class B(A):
    def m(self): return super().m() + [2]
class C(A):
    def m(self): return super().m() + [3]
class D(B, C):
    def m(self): return super().m() + [4]
return x + 1, D().m(), [k.__name__ for k in D.__mro__]
# mro error
class A: pass
try:
    class B(object, A): pass
except TypeError as e: return x + 1, str(e)
# annotations
class A:
    a: int = 1
    b: 'str'
return x + A.a, A.__annotations__['a'] is int, A.__annotations__['b']
# body error
try:
    class A:
        q = 1 / 0
except ZeroDivisionError as e: return x + 1, str(e)
# iterator
class It:
    def __init__(self): self.i = 0
    def __iter__(self): return self
    def __next__(self):
        self.i += 1
        if self.i > 3: raise StopIteration
        return self.i
return x + sum(It()), [*It()]
# esc class
class A:
    "doc"
    k = 3
    def m(self, v): return v * self.k
return x + 1, A, A.__name__
# esc inst
class A(Plain):
    def __init__(self, v): self.v = v
    def m(self): return (self.v, super().area(), __class__ is type(self))
a = A(x + 1)
return a, a.m()
# raise
class E(ValueError): pass
y = x + 1
raise E(3)
# str subclass
class S(str):
    def twice(self): return self * 2
return x + 1, S('a').twice(), S('b')
# repr
class A: pass
return x + 1, repr(A), str(A), f'{A}'
# print
class A:
    def __repr__(self): return 'an A'
print(A(), [A()]); return x + 1
# total ordering
@functools.total_ordering
class A:
    def __init__(self, n): self.n = n
    def __lt__(self, o): return self.n < o.n
    def __eq__(self, o): return self.n == o.n
return x + 1, A(1) <= A(2), A(3) >= A(4), max(A(1), A(5)).n
# weak
import weakref
class A: pass
r = weakref.ref(A); return x + 1, r() is A
# class_getitem
class A:
    def __class_getitem__(cls, k): return (cls.__name__, k)
return x + 1, A[3]
# namedtuple
P = collections.namedtuple('P', 'a b')
p = P(x + 1, 2); return p.a, p.b, p._fields, P.__name__
# NamedTuple
class P(typing.NamedTuple):
    a: int
    b: int = 3
p = P(x + 1); return p.a, p.b, p
# enum
class E(enum.Enum):
    A = 1
    B = 2
return x + E.A.value, E(2).name, [e.name for e in E]
# protocol
class P(typing.Protocol):
    def m(self): ...
class Q(P):
    def m(self): return 3
return x + Q().m()
# instancecheck
class M(type):
    def __instancecheck__(cls, o): return o == 3
class A(metaclass=M): pass
return x + 1, isinstance(3, A), isinstance(4, A)
# named tuples
P = collections.namedtuple('P', ['a', 'b'], defaults=[5])
p = P(x + 1)
class Q(P):
    def tot(self): return self.a + self.b
q = Q(1, b=2)
return (p.a, p.b, p._replace(b=4).b, P._make([1, 2]) == (1, 2), q.tot(), isinstance(q, P), repr(P(1, 2)), P(1)._asdict(),
        [*q], P.__doc__, P.__module__, hash(P(1, 2)) == hash((1, 2)))
# wrong named tuples
out = []
for fn in (lambda: collections.namedtuple('P', 'a a'), lambda: collections.namedtuple('P', 'a def'), lambda: collections.namedtuple('1', 'a'),
           lambda: collections.namedtuple('P', 'a', defaults=[1, 2])):
    try: fn()
    except (ValueError, TypeError) as e: out.append(repr(e))
return x + 1, out
# typed fields
class P(typing.NamedTuple):
    "doc"
    a: int
    b: 'str' = 'q'
    c: typing.Any = None
    @property
    def both(self): return self.a, self.b
    @classmethod
    def new(cls): return cls(7)
return x + P.new().a, P(1).both, P.__doc__, P.__annotations__['b'], P(1) < P(2), P.__qualname__
# functional
P = typing.NamedTuple('P', [('a', int), ('b', str)])
return x + P(1, 'q').a, P._fields, P.__annotations__['a'], P.__module__
# typed dict
class T(typing.TypedDict, total=False):
    a: int
t = T(a=1); t['b'] = x
return t, type(t) is dict, T.__name__, T.__total__
# enumerations
class E(enum.Enum):
    "doc"
    A = 1
    B = 'b'
    C = A
    _p = 3
    def m(self): return self.value, self.name
    @property
    def up(self): return self.name.upper()
    @classmethod
    def first(cls): return cls.A
    @staticmethod
    def st(): return 5
out = []
for fn in (lambda: E(9), lambda: E['Z'], lambda: E.Z):
    try: fn()
    except Exception as e: out.append(repr(e))
d = {E.A: 1, E.B: 2}
return (x + E.A.value, out, E.C is E.A, E.B.m(), E.A.up, E.first() is E('b'), E.st(), d[E.C], [e.name for e in E], len(E), E.A in E,
        isinstance(E.A, E), E.A == E.B, f'{E.A} {E.B!r}', list(E.__members__), E.__doc__, bool(E.A))
# other enumerations
class I(enum.IntEnum):
    A = enum.auto()
    B = enum.auto()
class F(enum.Flag):
    R = enum.auto()
    W = enum.auto()
class S(enum.StrEnum):
    Q = enum.auto()
return x * I.B, I.A < I.B, I.A + 1, (F.R | F.W).value, F.R in (F.R | F.W), S.Q + 'x', S.Q.upper(), sorted([I.B, I.A])[0] is I.A
# slots of a dataclass
@dataclasses.dataclass(slots=True, order=True)
class A:
    a: int
    b: typing.Any = 2
    def m(self): return self.a + self.b
a = A(1)
try: a.c = 1
except AttributeError as e: return x + a.m(), str(e), A.__slots__, a == A(1, 2), repr(a), A(1) < A(3)
# metaclass made here
class Meta(type):
    def __new__(mcs, name, bases, ns, **kw):
        ns['extra'] = len(kw); return super().__new__(mcs, name, bases, ns)
    def __init__(cls, name, bases, ns, **kw): super().__init__(name, bases, ns); cls.flag = kw
    def __call__(cls, *a): o = super().__call__(*a); o.via = 1; return o
    def __len__(cls): return 7
    @property
    def label(cls): return cls.__name__ + '!'
class A(metaclass=Meta, z=1):
    def __init__(self, v=0): self.v = v
class B(A): pass
return x + len(B), A.extra, A(3).via, A(3).v, type(B) is Meta, isinstance(A, Meta), A.label, A.flag, hasattr(A(), 'label')
''')

# What eager can see of a class that outlives the call is what it sees of the compiled one.
KEPT = table('''
# esc full
class A(Plain, metaclass=Meta, flag=3):
    __slots__ = ('q',)
    d = Desc()
    w = x + 1
    def __init__(self, v=x): self.v = v; self.q = v + 1
    @property
    def two(self): return self.q * 2
    @classmethod
    def new(cls, v): return cls(v)
    @staticmethod
    def st(v): return v + 2
    @functools.cached_property
    def cp(self): return 4
    def me(self): return __class__
a = A.new(y)
A.inst = a
KEEP.append((A, a))
return a.two, a, A
# esc dataclass
@dataclasses.dataclass(order=True)
class A:
    a: int
    b: typing.Any = None
    c: list = dataclasses.field(default_factory=list)
p = A(1, x + 1); KEEP.append((A, p)); return p.b, p
# esc abc
class A(abc.ABC):
    @abc.abstractmethod
    def m(self): ...
class B(A):
    def m(self): return self.v
b = B(); b.v = x * 2; KEEP.append((A, b)); return b.m()
# esc init_subclass
class A(Base, tag=5): pass
KEEP.append((A, A())); return x + 1, len(Base.made)
# esc method only
class A:
    def m(self): return __class__, self.n + x
a = A(); a.n = 3; KEEP.append((A, a)); return a.m, x + 1
# esc self ref
class A:
    def __init__(self): A.last = self; self.me = self
a = A(); KEEP.append((A, a)); return a, x + 1, a.me is A.last
# esc exception
class E(ValueError):
    def __init__(self, c): super().__init__(c); self.c = c
e = E(3); KEEP.append((E, e)); return e, x + 1
# esc generic
T = typing.TypeVar('T')
class A(typing.Generic[T]):
    def g(self, v: T) -> T: return v
KEEP.append((A, A())); return A().g(x) + 1
# break after
class A:
    n = 0
    def __init__(self, v): self.v = v
    def m(self): return self.v + type(self).n
a = A(x + 1)
A.n = 2
dynamo.graph_break()
KEEP.append((A, a)); A.n += 1
return a.m(), type(a) is A
# subclasses of a class over a break
class A:
    def go(self): return ['A']
class B(A):
    def go(self): return ['B', *super().go()]
class C(A):
    def go(self): return ['C', *super().go()]
class D(B, C):
    def go(self): return ['D', *super().go()]
dynamo.graph_break()
KEEP.append((D, D())); return x + 1, ''.join(D().go() + B().go()), D.__mro__ == (D, B, C, A, object)
# break inside body
class A:
    dynamo.graph_break()
    v = x + 1
KEEP.append((A, A())); return A.v * 2
# module escapes
class M(torch.nn.Module):
    def __init__(self): super().__init__(); self.l = 3
    def forward(self, v): return v * self.l
m = M(); KEEP.append((M, m)); return m(x)
# three bases of builtins
class A(dict, Plain): pass
a = A(k=1); a['z'] = x; KEEP.append((A, a)); return a, a.area(), x + 1
# int subclass
class I(int):
    def twice(self): return self * 2
KEEP.append((I, I(3))); return x + I(3).twice(), I(4)
# dict key
class A: pass
d = {A: 1}; a = A(); d[a] = 2; KEEP.append((A, a)); return x + 1, d[A], d[a], [k is A for k in d]
# class in call
def make(n):
    class A:
        k = n
        def m(self): return self.k + n
    return A
a, b = make(1), make(2); KEEP.append((a, b())); return x + a().m() + b().m(), a is b, a.__qualname__
# setattr fn
class A: pass
A.m = lambda self: 5
setattr(A, 'k', x * 2)
KEEP.append((A, A())); return A().m(), A.k
# esc named tuple
P = collections.namedtuple('P', 'a b')
KEEP.append((P, P(1, 2))); return x + 1, P(x, 3), type(P(1, 2)) is P
# esc typed named tuple
class P(typing.NamedTuple):
    a: int = 1
    b: 'str' = 'q'
    def m(self): return self.a
p = P(x + 1); KEEP.append((P, P())); return p.m(), p
# esc named subclass
class P(collections.namedtuple('P', 'a')):
    def m(self): return self.a
p = P(x + 1); KEEP.append((P, P(3))); return p.m(), p
# esc enum
class E(enum.Enum):
    A = 1
    B = enum.auto()
    def m(self): return self.value * 2
KEEP.append((E, E.B)); return x + E.B.m(), E.A.name
# esc annotated enum
class E(enum.Enum):
    A: int = 1
    b: str
KEEP.append((E, E.A)); return x + E.A.value, 1
# esc member
class E(enum.IntEnum):
    A = 4
return E.A, x + E.A, KEEP.append((E, E.A))
# esc slots
@dataclasses.dataclass(slots=True)
class A:
    a: int = 1
a = A(x + 2); KEEP.append((A, a)); return a.a, a
# esc metaclass
class Meta(type):
    def __len__(cls): return 7
    def hi(cls): return cls.__name__
class A(metaclass=Meta):
    k = 1
a = A(); KEEP.append((A, a)); return x + len(A), A.hi()
# enum across a break
class E(enum.Enum):
    A = 1
m = E.A
dynamo.graph_break()
KEEP.append((E, m)); return x + E.A.value, m is E.A
''')

# Not captured as one graph, and right.
BREAKS = table('''
# subclasses
class A: pass
class B(A): pass
return x + 1, len(A.__subclasses__())
# enum member set
class E(enum.Enum):
    A = 1
try: E.A = 3
except AttributeError as e: return x + 1, str(e)
# break inside method
class A:
    def __init__(self): self.q = x + 1; dynamo.graph_break(); self.r = self.q * 2
    def m(self): return super().__repr__() is not None
a = A(); return a.r, a.m(), a
# autograd function
class F(torch.autograd.Function):
    @staticmethod
    def forward(ctx, v): return v * 2
    @staticmethod
    def backward(ctx, g): return g * 3
return F.apply(x)
# type hints
class A:
    a: 'int'
    def ff(self, v: int = 2) -> 'A': return v
return x + 1, typing.get_type_hints(A, None, {'A': A})['a'], A.ff.__defaults__, A.ff.__annotations__
# pickle attr
class A:
    v = 1
return x + 1, sorted(k for k in vars(A) if not k.startswith('__')), 'v' in A.__dict__, dir(A)[-1], getattr(A, 'zz', 4)
# functools
class A:
    @functools.lru_cache
    def ff(self, v): return v + 1
    @functools.wraps(len)
    def g(self): return 2
    h = functools.partialmethod(ff, 3)
return x + A().ff(1), A.g.__name__, A().g(), A().h()
# del in class
class A:
    def __del__(self): LOG.append('del')
a = A(); del a; return x + 1, LOG
# new
class A:
    def __new__(cls, v): o = super().__new__(cls); o.v = v; return o
return A(x).v + 1, A.__new__ is A.__dict__['__new__'].__func__
''')


test_one_graph, test_right_with_breaks = make_tests(ONE_GRAPH, BREAKS, SETUP)


def facts_of(cls: Any, instance: Any) -> list[Any]:
    """What a program can see of a class and an instance of it."""
    entries = {k: v for k, v in vars(cls).items() if k not in ("__dict__", "__weakref__")}
    if issubclass(cls, (enum.Enum, tuple)):  # their methods are stored last
        entries = dict(sorted(entries.items()))
    kept = vars(instance) if hasattr(instance, "__dict__") else {}
    me = getattr(instance, "me", None)
    return [
        cls.__name__, cls.__qualname__, cls.__module__, cls.__doc__, list(entries),
        [type(v).__name__ for v in entries.values()], [base.__name__ for base in cls.__mro__],
        [getattr(v, "__qualname__", None) for v in entries.values()], type(cls).__name__,
        type(instance) is cls, isinstance(instance, cls), list(kept),
        getattr(cls, "inst", None) is instance, getattr(cls, "last", None) is instance,
        me() is cls if callable(me) else me is instance, outcome(cls),
        getattr(cls, "__annotations__", None), getattr(cls, "__abstractmethods__", None),
    ]


def outcome(cls: Any) -> str:
    try:
        return type(cls()).__name__
    except Exception as error:
        return repr(error)


@pytest.mark.parametrize(("name", "text"), KEPT, ids=[name for name, _ in KEPT])
def test_what_is_left(name: str, text: str) -> None:
    dynamo.reset()
    eager, traced = build(text, SETUP), build(text, SETUP)
    functions = eager["f"], dynamo.compile(traced["f"], backend="eager")
    for _ in range(2):
        x, y = torch.rand(2, 3), torch.rand(2, 3)
        want, got = (function(x, y) for function in functions)
        assert same(*([v for v in (result if isinstance(result, tuple) else (result,))
                       if isinstance(v, (torch.Tensor, int, str))] for result in (want, got)))
    assert eager["KEEP"]
    for a, b in zip(eager["KEEP"], traced["KEEP"], strict=True):
        assert facts_of(*a) == facts_of(*b)
    classes = [cls for cls, _ in traced["KEEP"]]
    assert len(set(classes)) == len(classes), "each call makes a class of its own"


def test_an_argument_equal_to_an_entry_is_guarded() -> None:
    def f(x: torch.Tensor, k: Any) -> Any:
        class Made:
            level = 1
            empty = ()
        Made.level += 1
        return x + 1, Made.level, Made.empty, k

    compiled = dynamo.compile(f, backend="eager")
    x = torch.ones(2)
    for k in (2, 2, 3, 3, 4, (), (1,)):
        assert compiled(x, k)[1:] == (2, (), k)


def test_a_typed_dict_is_left() -> None:
    def f(x: torch.Tensor) -> Any:
        class T(typing.TypedDict, total=False):
            "doc"
            a: int
            b: str

        return x + T(a=2)["a"], T

    y, made = dynamo.compile(f, backend="eager", fullgraph=True)(torch.ones(2))
    want = f(torch.ones(2))[1]
    assert torch.equal(y, torch.full((2,), 3.0)) and made is not want
    for fact in ("__name__", "__qualname__", "__module__", "__doc__", "__total__", "__annotations__",
                 "__optional_keys__", "__bases__"):
        assert getattr(made, fact) == getattr(want, fact), fact
    assert type(made(a=1)) is dict and type(made) is type(want)
