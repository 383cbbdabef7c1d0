"""Classes defined in compiled functions: Python makes them, at a break, and the function goes on."""

from __future__ import annotations

import enum
from typing import Any

import pytest
import torch

import dynamo
from tests.features.harness import build, codes_of, make_tests, same, table

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

CAPTURED = table('''
# namedtuple
P = collections.namedtuple('P', 'a b')
p = P(x + 1, 2); return p.a, p.b, p._fields, P.__name__
''')

DEFINED = table('''
# super
class A(Plain):
    def area(self): return super().area() + 1
return x + A().area()
# class cell
class A:
    def me(self): return __class__
a = A(); return x + 1, a.me() is A, type(a) is A, isinstance(a, A), issubclass(A, object)
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
# dataclass
@dataclasses.dataclass
class A:
    a: int
    b: typing.Any = None
    c: list = dataclasses.field(default_factory=list)
    def tot(self): return self.a + self.b
p = A(1, x); p.c.append(2)
return p.tot(), p.c, A(1, 2, [2]) == A(1, 2, [2]), repr(A(1, 2)), [f.name for f in dataclasses.fields(A)]
# type call
A = type('A', (Plain,), {'v': 3, 'm': lambda self: self.v + 1})
return x + A().m(), A.__name__, A.__mro__[1] is Plain
# nested
class A:
    class B:
        v = 2
        def m(self): return A.B.v
    b = B()
return x + A.b.m(), A.B.__qualname__
# module
class M(torch.nn.Module):
    def forward(self, v): return v + 1
return M()(x)
# body error
try:
    class A:
        q = 1 / 0
except ZeroDivisionError as e: return x + 1, str(e)
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
''')

# Each puts pairs of a class and an instance into KEEP.
KEPT = table('''
# module escapes
class M(torch.nn.Module):
    def __init__(self): super().__init__(); self.l = 3
    def forward(self, v): return v * self.l
m = M(); KEEP.append((M, m)); return m(x)
# setattr fn
class A: pass
A.m = lambda self: 5
setattr(A, 'k', x * 2)
KEEP.append((A, A())); return A().m(), A.k
# esc typed named tuple
class P(typing.NamedTuple):
    a: int = 1
    b: 'str' = 'q'
    def m(self): return self.a
p = P(x + 1); KEEP.append((P, P())); return p.m(), p
# esc enum
class E(enum.Enum):
    A = 1
    B = enum.auto()
    def m(self): return self.value * 2
KEEP.append((E, E.B)); return x + E.B.m(), E.A.name
# enum across a break
class E(enum.Enum):
    A = 1
m = E.A
dynamo.graph_break()
KEEP.append((E, m)); return x + E.A.value, m is E.A
# break inside body
class A:
    dynamo.graph_break()
    v = x + 1
KEEP.append((A, A())); return A.v * 2
# class in call
def make(n):
    class A:
        k = n
        def m(self): return self.k + n
    return A
a, b = make(1), make(2); KEEP.append((a, b())); return x + a().m() + b().m(), a is b, a.__qualname__
''')


test_captured, test_defined = make_tests(CAPTURED, DEFINED, SETUP)


@pytest.mark.parametrize("name,text", DEFINED, ids=[name for name, _ in DEFINED])
def test_the_break_says_why(name: str, text: str) -> None:
    assert "class_definition" in codes_of(text, SETUP)


def test_one_graph_is_refused_with_the_line() -> None:
    scope = build("y = x + 1\nclass A:\n    k = 2\nreturn y * A.k", SETUP)
    with pytest.raises(dynamo.exc.Unsupported, match="a class is defined"):
        dynamo.compile(scope["f"], backend="eager", fullgraph=True)(torch.ones(2), torch.ones(2))


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
