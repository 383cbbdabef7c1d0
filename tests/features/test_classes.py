"""Classes: bodies in the frame, special methods, descriptors, metaclasses, and inheritance from built-ins."""

from __future__ import annotations

import sys

from tests.features.harness import make_tests, table

SETUP = """
import abc, collections, dataclasses, enum, functools, operator, types, typing

class Num:
    def __init__(self, n): self.n = n
    def __repr__(self): return f"Num({self.n})"
    def __add__(self, o): return Num(self.n + o) if isinstance(o, int) else NotImplemented
    def __radd__(self, o): return Num(o + 10 * self.n) if isinstance(o, int) else NotImplemented
    def __sub__(self, o): return ("sub", self.n, o.n if isinstance(o, Num) else o)
    def __rsub__(self, o): return ("rsub", self.n, o)
    def __iadd__(self, o): self.n += o; return self
    def __matmul__(self, o): return ("mat", o)
    def __pow__(self, o, m=None): return ("pow", o, m)
    def __divmod__(self, o): return ("divmod", o)
    def __lshift__(self, o): return NotImplemented
    def __neg__(self): return Num(-self.n)
    def __pos__(self): return ("pos", self.n)
    def __invert__(self): return ("inv", self.n)
    def __abs__(self): return ("abs", self.n)
    def __round__(self, k=None): return ("round", k)
    def __int__(self): return self.n
    def __float__(self): return self.n + 0.5
    def __index__(self): return self.n
    def __bool__(self): return self.n > 0
    def __eq__(self, o): return self.n == o.n if isinstance(o, Num) else NotImplemented
    def __lt__(self, o): return self.n < o.n if isinstance(o, Num) else NotImplemented
    def __hash__(self): return hash(self.n)
    def __format__(self, spec): return f"<{spec}|{self.n}>"
class Sub(Num):
    def __radd__(self, o): return ("Sub.radd", self.n, o.n if isinstance(o, Num) else o)
    def __rsub__(self, o): return ("Sub.rsub", self.n)
class Right:
    def __radd__(self, o): return ("right", o.n if isinstance(o, Num) else o)
    def __rmul__(self, o): return ("rmul", o)
    def __gt__(self, o): return ("gt", o.n if isinstance(o, Num) else o)
class Seq:
    def __init__(self, *v): self.v = list(v)
    def __len__(self): return len(self.v)
    def __getitem__(self, k):
        if isinstance(k, slice): return ("slice", k.start, k.stop, k.step)
        return self.v[k]
    def __setitem__(self, k, w): self.v[k] = w
    def __delitem__(self, k): del self.v[k]
    def __reversed__(self): return iter(["r", *self.v])
class Has:
    def __contains__(self, o): return o
class Iter:
    def __iter__(self): yield 1; yield 2
class Hooked:
    log = []
    def __init__(self): self.a = 1
    def __getattr__(self, n):
        if n == "nope": raise AttributeError("no " + n)
        return "got " + n
    def __setattr__(self, n, v): self.log.append((n, v)); super().__setattr__(n, v)
    def __delattr__(self, n): self.log.append(("del", n)); object.__delattr__(self, n)
class AllRead:
    def __init__(self): object.__setattr__(self, "a", 1)
    def __getattribute__(self, n): return ("read", n) if n != "a" else object.__getattribute__(self, "a")
class Missing(dict):
    def __missing__(self, k): self[k] = k * 2; return self[k]
class Desc:
    def __set_name__(self, owner, name): self.name = name; self.owner = owner.__name__
    def __get__(self, o, t=None): return ("get", self.name, self.owner, o is None)
    def __set__(self, o, v): o.__dict__[self.name] = v
    def __delete__(self, o): o.__dict__["deleted"] = self.name
class NonData:
    def __get__(self, o, t=None): return "nondata"
class WithDesc:
    d = Desc(); nd = NonData()
class Reg:
    kinds = []
    def __init_subclass__(cls, tag=None, **k): super().__init_subclass__(**k); cls.tag = tag; Reg.kinds.append(cls.__name__)
class RegA(Reg, tag="a"): pass
class Meta(type):
    count = 0
    def __call__(cls, *a, **k): Meta.count += 1; return super().__call__(*a, **k)
    def __len__(cls): return 5
    def __getitem__(cls, k): return (cls.__name__, k)
    def __iter__(cls): return iter("xy")
    def __contains__(cls, o): return o == 3
    @property
    def prop(cls): return cls.__name__ + "!"
    def __instancecheck__(cls, o): return o == 7
class Made(metaclass=Meta):
    def __init__(self, v=0): self.v = v
class New:
    def __new__(cls, v): o = super().__new__(cls); o.w = v + 1; return o
    def __init__(self, v): self.v = v
class Other:
    def __new__(cls, v): return v
class Slots:
    __slots__ = ("a", "__dict__")
class Kelvin(float):
    def __new__(cls, v): return super().__new__(cls, v + 1)
    def twice(self): return self * 2
class Tag(str):
    def shout(self): return self.upper() + "!"
class Count(int):
    def __add__(self, o): return Count(int(self) + o + 100)
class Pair(tuple):
    def __new__(cls, a, b): return super().__new__(cls, (a, b))
    @property
    def first(self): return self[0]
class Stack(list):
    def __init__(self, *a): super().__init__(a); self.top = len(a)
    def append(self, v): super().append(v); self.top += 1
class Perm(enum.Flag):
    R = 4; W = 2; X = 1
class IPerm(enum.IntFlag):
    R = 4; W = 2
class Auto(enum.Enum):
    A = enum.auto(); B = enum.auto(); C = A
    @property
    def low(self): return self.name.lower()
    @classmethod
    def default(cls): return cls.B
class StrE(str, enum.Enum):
    X = "x"; Y = "y"
@functools.total_ordering
class Ver:
    def __init__(self, n): self.n = n
    def __eq__(self, o): return self.n == o.n
    def __lt__(self, o): return self.n < o.n
@dataclasses.dataclass(order=True)
class Ord:
    a: int
    b: object = dataclasses.field(default=3, compare=False)
    c: list = dataclasses.field(default_factory=list, repr=False)
    k: dataclasses.KW_ONLY = None
    z: int = 5
@dataclasses.dataclass(frozen=True, slots=True)
class Fz:
    a: int
    b: int = 2
@dataclasses.dataclass
class Base1:
    a: int = 1
@dataclasses.dataclass
class Child1(Base1):
    b: int = dataclasses.field(init=False, default=7)
    inner: Ord = None
    v: dataclasses.InitVar[int] = 3
    def __post_init__(self, v): self.a += v
T = typing.TypeVar("T")
class Box(typing.Generic[T]):
    def __init__(self, v: T): self.v = v
@typing.runtime_checkable
class Proto(typing.Protocol):
    def go(self): ...
class Goes:
    def go(self): return 1
class A:
    def who(self): return ["A"]
class B(A):
    def who(self): return ["B"] + super().who()
class C(A):
    def who(self): return ["C"] + super().who()
class D(B, C):
    def who(self): return ["D"] + super(D, self).who()
    @classmethod
    def make(cls): return super().__new__(cls)
class Cached:
    calls = []
    @functools.cached_property
    def p(self): self.calls.append(1); return 3
    @functools.lru_cache
    def m(self, k): return k * 2
    @functools.singledispatchmethod
    def s(self, v): return "any"
    @s.register
    def _(self, v: int): return "int"
    @s.register
    def _(self, v: list): return "list"
    @functools.partialmethod
    def pm(self): pass
    @property
    def ro(self): return 1
class Named(typing.NamedTuple):
    a: int
    b: str = "q"
    def joined(self): return f"{self.a}{self.b}"
Named.__annotations__  # made when they are first read, from Python 3.14 on
"""

ONE_GRAPH = table('''
# reflected operators
a = Num(3); return x + 1, repr(a + 2), repr(2 + a), (a - 1), (5 - a), a - Num(4), a + Right(), 3 * Right(), a @ 2, a ** 2, pow(a, 2, 5), divmod(a, 4)
# subclass goes first
return x + 1, Num(1) + Sub(2), Num(1) - Sub(2), Sub(2) - Num(1), repr(Sub(1) + 2)
# not implemented
log = []
for g in (lambda: Num(1) + "a", lambda: Num(1) << 2, lambda: "a" + Num(1), lambda: Num(1) < 3, lambda: Num(1) * 2):
    try: log.append(g())
    except TypeError as e: log.append(str(e))
return x + 1, log, Num(1) == 1, Num(1) != 1, Num(1) != Num(1), Num(1) == Num(1), Num(1) < Right()
# in place operators
a = Num(3); b = a; a += 2; c = Num(1); c -= 1; d = [1]; e = d; d += (2,); d *= 2; return x + 1, repr(b), a is b, c, e
# unary operators
a = Num(3); return x + 1, repr(-a), +a, ~a, abs(a), round(a), round(a, 2), int(a), float(a), bool(Num(0)), not a
# index
a = Num(1); return x[a], [4, 5, 6][a], list(range(Num(3))), "abc"[a:], operator.index(a), bin(Num(5))
# hash and set of objects
return x + 1, len({Num(1), Num(1), Num(2)}), {Num(1): "a"}[Num(1)], Num(1) in [Num(1)], [Num(3), Num(1)].index(Num(1)), hash(Num(4))
# sort of objects
return x + 1, [v.n for v in sorted([Num(3), Num(1), Num(2)])], max(Num(1), Num(5)).n, min([Num(2), Num(1)]).n
# format method
a = Num(3); return x + 1, f"{a:>5}", f"{a}", f"{a!r}", format(a, "q"), "{:z}".format(a), "%s" % a, str(a)
# sequence protocol
s = Seq(1, 2, 3); s[0] = 5; del s[1]; return x + 1, len(s), list(s), 3 in s, list(reversed(s)), s[1:2:3], [*s], s[-1], bool(Seq()), tuple(zip(s, "ab")), sum(s)
# contains and iter
return x + 1, 3 in Has(), 0 in Has(), 0 not in Has(), list(Iter()), 2 in Iter(), sorted(Iter()), dict(zip(Iter(), "ab")), max(Iter())
# attribute hooks
h = Hooked(); h.b = 2; del h.b; t = h.zzz; u = getattr(h, "nope", 5); v = hasattr(h, "nope"); return x + 1, h.a, t, u, v, list(h.log)
# getattribute
a = AllRead(); return x + 1, a.a, a.b, getattr(a, "c")
# missing
m = Missing(a=1); return x + 1, m["q"], m["a"], m, m.get("zz"), "r" in m
# descriptors
w = WithDesc(); w.d = 4; w.__dict__["nd"] = 5; a = w.nd; b = w.d; del w.d; return x + 1, a, b, w.__dict__, WithDesc.d, WithDesc().nd
# init subclass
return x + 1, RegA.tag, list(Reg.kinds), RegA().tag
# metaclass
m = Made(3); return x + 1, m.v, len(Made), Made["q"], list(Made), 3 in Made, Made.prop, isinstance(7, Made), isinstance(m, Made), type(Made) is Meta
# new
n = New(3); return x + 1, n.v, n.w, Other(4), type(Other("a")).__name__
# slots with dict
s = Slots(); s.a = 1; s.b = 2; return x + 1, s.a, s.b, s.__dict__, hasattr(s, "c")
# subclass of float
k = Kelvin(2.5); return x * k, k + 1, k.twice(), type(k).__name__, isinstance(k, float), k == 3.5
# subclass of str
t = Tag("ab"); return x + 1, t.shout(), t + "c", type(t).__name__, t == "ab", {t: 1}["ab"], len(t), t[0], f"{t}-"
# subclass of int
c = Count(3); return x + 1, int(c + 1), c * 2, type(c + 1).__name__, [1, 2, 3, 4][c]
# subclass of tuple
p = Pair(1, x); a, b = p; return b + 1, p.first, a, type(p).__name__, len(p), p[0] == 1, isinstance(p, tuple)
# subclass of list
s = Stack(1, 2); s.append(3); s.extend([4]); return x + 1, s.top, list(s), s, s[-1], len(s), s + [1], type(s + [1]).__name__
# flags
p = Perm.R | Perm.W; return x + 1, p, Perm.R in p, bool(p & Perm.X), p.value, ~p, Perm(6), p ^ Perm.R, IPerm.R | 1, IPerm.R + 1, p == Perm(6), str(Perm.R), Perm.R.name
# enums
return x + 1, Auto.B.low, Auto.default(), Auto["A"], Auto(2), Auto.C is Auto.A, [m.name for m in Auto], Auto.A in Auto, len(Auto), list(Auto.__members__), str(Auto.A), repr(Auto.A), {Auto.A: 1}[Auto.A], isinstance(Auto.A, Auto)
# enum of str
return x + 1, StrE.X == "x", StrE("y").value, StrE.X.upper(), f"{StrE.X.value}", {"x": 1}[StrE.X]
# enum with a wrong value
try: Auto(9)
except ValueError as e: return x + 1, str(e)
# total ordering
return x + 1, Ver(1) <= Ver(2), Ver(2) >= Ver(3), Ver(2) > Ver(1), Ver(1) != Ver(2), max(Ver(1), Ver(3)).n
# dataclasses
o = Ord(1, z=6); p = Ord(1, 4); return x + 1, o == p, o < Ord(2), repr(o), dataclasses.asdict(p), dataclasses.astuple(p), [f.name for f in dataclasses.fields(o)], dataclasses.replace(o, a=9), dataclasses.is_dataclass(o), Ord.__match_args__
# frozen dataclass
f = Fz(1); n = []
try: f.a = 3
except dataclasses.FrozenInstanceError as e: n.append(str(e))
return x + 1, repr(f), hash(f) == hash(Fz(1)), {f: 1}[Fz(1)], repr(dataclasses.replace(f, b=5)), n
# inherited dataclass
c = Child1(2, Ord(1)); return x + 1, c.a, c.b, dataclasses.asdict(c), repr(c)
# generic
b = Box[int](x); return b.v + 1, Box[int].__origin__ is Box, isinstance(b, Box), typing.get_args(Box[int])
# protocol
return x + 1, isinstance(Goes(), Proto), isinstance(3, Proto), issubclass(Goes, Proto)
# diamond
return x + 1, D().who(), [c.__name__ for c in D.__mro__], type(D.make()).__name__, super(B, D()).who()
# cached property and method
c = Cached(); a = c.p + c.p; c.p = 9; return x + 1, a, c.p, len(c.calls), c.m(3), c.m(3)
# single dispatch method
c = Cached(); return x + 1, c.s(1), c.s([]), c.s("a"), c.s(True)
# property without a setter
try: Cached().ro = 3
except AttributeError as e: return x + 1, str(e)
# named tuple methods
n = Named(1); return x + 1, n.joined(), n, n == (1, "q"), n._replace(b="z"), Named._fields, n._asdict(), Named._make([3, "w"]), Named.__annotations__["a"] in (int, "int"), repr(n), n + (1,), hash(n) == hash((1, "q"))
# class attributes
return x + 1, Num.__name__, Num.__module__ == __name__, Num.__doc__, Num.__bases__, Num.__qualname__, Num.__dict__["__pos__"](Num(2)), Sub.__base__ is Num
# bound methods as values
n = Num(3); m = n.__add__; f = Num.__add__; return x + 1, repr(m(1)), repr(f(n, 2)), m.__self__ is n, m.__func__ is f, m == n.__add__, m.__name__
# vars and dir
h = WithDesc(); h.q = 1; v = vars(h); v["r"] = 2; return x + 1, h.r, sorted(vars(h)), "q" in dir(h), h.__dict__ is vars(h)
# delattr and setattr
o = Box(1); setattr(o, "w", 3); delattr(o, "v"); a = getattr(o, "v", None)
try: delattr(o, "v")
except AttributeError as e: return x + 1, o.w, a, str(e)
# class change
o = Num(1); o.__class__ = Sub; return x + 1, type(o).__name__, repr(o + 1)
# callable classes and instances
return x + 1, callable(Num), callable(Num(1)), callable(Num(1).__add__), callable(len)
# isinstance with unions and abcs
import collections.abc as cabc, numbers
return x + 1, isinstance([], cabc.Sequence), isinstance({}, cabc.Mapping), isinstance(Iter(), cabc.Iterable), isinstance(1, numbers.Number), isinstance(1.5, numbers.Integral), isinstance(Seq(), (int, cabc.Sized)), isinstance("a", int | str), issubclass(bool, int | str), isinstance(len, cabc.Callable), isinstance(Num(1), cabc.Hashable), isinstance((v for v in "a"), cabc.Generator)
# abstract class cannot be made
class_ = abc.ABC
try: collections.abc.Sized()
except TypeError as e: return x + 1, str(e)[:40]
# object identity in results
o = Num(1); return x + 1, [o, o], (o, {"a": o})
# comparison chains of objects
return x + 1, Num(1) < Num(2) < Num(3), Num(1) < Num(1) < Num(0)
# truth of objects
return x + 1, [bool(v) for v in (Num(0), Num(1), Seq(), Seq(1), object(), Made())], Num(0) or 3, Num(1) and 4
# property on a class with inheritance
class_ = type(Kelvin(1.0)); return x + 1, class_.__name__, isinstance(class_, type)
# abstract methods and super in class methods
return x + 1, isinstance(D.make(), A), D.who(D())
''')

ANY_GRAPHS = table('''
# plain class
class P:
    k = 3
    def __init__(self, v): self.v = v
    def go(self): return self.v * self.k
p = P(x + 1); return p.go() + 1, P.__name__, P.__qualname__, P.k, p
# class with super and closure
n = 4
class P(Num):
    def __init__(self, v): super().__init__(v); self.w = n
    def __add__(self, o): return super().__add__(o).n + self.w
return x + 1, P(3) + 2, P.__mro__[1].__name__
# dataclass in the frame
@dataclasses.dataclass
class P:
    a: object
    b: int = 2
p = P(x + 1); return p.a + p.b, p, dataclasses.asdict(P(1))
# named tuples in the frame
P = collections.namedtuple("P", "a b")
class Q(typing.NamedTuple):
    c: int
    d: int = 4
p = P(x + 1, 2); return p.a + Q(3).d, p.b, Q(1)
# enum in the frame
class E(enum.Enum):
    A = 1
    B = 2
E2 = enum.Enum("E2", "X Y"); return x + E.B.value + E2.Y.value, E.A.name, list(E)[1].name
# metaclass in the frame
class M(type):
    def __new__(m, name, bases, ns, **k): c = super().__new__(m, name, bases, ns); c.k = k; return c
class P(metaclass=M, z=3): pass
return x + P.k["z"], P.__name__
# type of three arguments
P = type("P", (Num,), {"k": 3, "go": lambda self: self.n + self.k}); return x + P(2).go(), P.__name__, isinstance(P(1), Num)
# class with a loop and a condition in its body
class P:
    items = []
    for i in range(3): items.append(i)
    if len(items) > 2: big = True
    squares = [i * i for i in range(3)]
    def __init_subclass__(cls): cls.sub = True
class Q(P): pass
return x + sum(P.items), P.big, P.squares, Q.sub, P.i
# class with a decorator and annotations
def deco(cls): cls.marked = True; return cls
@deco
class P:
    a: int = 3
    b: str
return x + P.a, P.marked, sorted(P.__annotations__)
# module in the frame
class Layer(torch.nn.Module):
    def __init__(self, k): super().__init__(); self.k = k
    def forward(self, v): return v * self.k
return Layer(3)(x) + 1
# exception in the frame
class Bad(KeyError): pass
try: raise Bad(3)
except KeyError as e: return x + 1, type(e).__name__, e.args
# nested classes
class P:
    class Q:
        v = 3
    q = Q
    @staticmethod
    def s(v): return v + 1
    @classmethod
    def c(cls): return cls.__name__
    @property
    def p(self): return self.Q.v
return x + P.Q.v + P.s(1), P.c(), P().p
# error in a class body
try:
    class P:
        a = 1 // 0
except ZeroDivisionError as e: t = str(e)
return x + 1, t
# global class state
Meta.count = 0; m = Made(1); n = Made(2); return x + Meta.count
# class attribute stores
Hooked.extra = 4; t = Hooked().extra; del Hooked.extra; return x + 1, t, hasattr(Hooked, "extra")
# simple namespace and mapping proxy
n = types.SimpleNamespace(a=1); m = types.MappingProxyType({"a": 1}); return x + 1, n == types.SimpleNamespace(a=1), repr(n), vars(n), m["a"], list(m), dict(m), "a" in m, m.get("b", 2), len(m)
''')


# Rows that break the graph; their results are compared all the same.
BREAKS = {
    "cached property and method", "class change", "format method", "hash and set of objects",
    "index", "inherited dataclass", "metaclass", "not implemented",
    "property on a class with inheritance", "simple namespace and mapping proxy",
    "subclass of float", "subclass of int", "subclass of list", "subclass of str",
    "subclass of tuple", "truth of objects", "vars and dir",
}
if sys.version_info >= (3, 13):  # a method that dispatches is kept in a dict of weak references
    BREAKS.add("single dispatch method")


test_one_graph, test_any_graphs = make_tests(ONE_GRAPH, ANY_GRAPHS, SETUP, BREAKS)
