"""Snippets over what classes are made of: bodies, metaclasses made anew, data classes, enumerations. For the
form see `objects.py`.
"""

BLOCKS = '''
# class_swap
class Ka:
    def m(self): return _("a")
class Kb:
    def m(self): return _("b")
---
w = Ka()
f = w.m
out.append(w.m())
w.__class__ = Kb
out.append([w.m(), f(), type(w).__name__, isinstance(w, Ka)])

# class_body
---
class Body:
    a = _(_N)
    b = [a for _i in range(2) if True] if False else [_(1)]
    for i in range(2):
        locals()[f"v{i}"] = i
    del i
    c = lambda self, a=a: a
    def get(self): return __class__
    if n:
        d = _(n)
out.append([Body.a, Body.b, Body.v1, Body().c(), Body().get() is Body, hasattr(Body, "i"), getattr(Body, "d", None), Body.__qualname__])

# class_body_raises
---
try:
    class Bad:
        a = _(1)
        raise ValueError(_(a))
    out.append("no")
except ValueError as e:
    out.append(e)
try:
    class Bad2(1): pass
except TypeError as e:
    out.append(type(e).__name__)
out.append("Bad" in locals())

# decorated
def deco(tag):
    def wrap(f):
        import functools
        @functools.wraps(f)
        def inner(*a, **k):
            LOG.append(tag)
            return _(f(*a, **k))
        return inner
    return wrap
---
@deco(_N)
@deco("b")
def g(a, b=_N):
    """doc"""
    return (a, _(b))
out.append([g(1), g.__name__, g.__doc__, g.__wrapped__.__name__, g(a=2, b=3)])

# new_init
class Nw:
    made = 0
    def __new__(cls, *a):
        cls.made += 1
        return _(super().__new__(cls)) if a and a[0] else _(5)
    def __init__(self, *a): self.a = _(a)
class Tp(tuple):
    def __new__(cls, *a): return super().__new__(cls, _(a))
    def first(self): return self[0]
class In(int):
    def __add__(self, o): return In(int(self) + _(o))
---
out.append([type(Nw(1)).__name__, Nw(1).a, Nw(0), Nw.made, Tp(1, 2).first(), Tp(3) + (4,), type(In(3) + 1).__name__, In(_N) + 2, In(3) * 2])
Nw.made = 0

# str_subclass
class St(str):
    def upper(self): return St(_(super().upper()))
    def __eq__(self, o): return _(str.__eq__(self, str(o).upper()))
    __hash__ = str.__hash__
---
w = St("abc")
out.append([w.upper(), type(w.upper()).__name__, w == "abc", St("ABC") == "abc", w + "d", w[1:], "%s" % w, f"{w}", w in ("x", "ABC"), {w: 1}.get("abc")])

# abc_use
import abc
class Ab(abc.ABC):
    @abc.abstractmethod
    def m(self): return _("base")
    @property
    @abc.abstractmethod
    def p(self): ...
class Im(Ab):
    def m(self): return super().m() + _("!")
    p = 3
---
try:
    Ab()
except TypeError as e:
    out.append(type(e).__name__)
out.append([Im().m(), Im().p, isinstance(Im(), Ab), issubclass(Im, Ab)])

# named_tuple
import collections, typing
Np = collections.namedtuple("Np", "a b", defaults=[9])
class Nt(typing.NamedTuple):
    a: int
    b: list = []
    def go(self): return _(self.a)
---
p = Np(_(_V))
out.append([p, p.b, p._replace(b=_(1)), p._asdict(), Np._make([1, 2]) == (1, 2), p._fields])
q = Nt(_N)
q.b.append(1)
out.append([q.go(), Nt(1).b is q.b, q[0], len(q), Nt(1, 2) < Nt(1, 3)])
q.b.clear()
a, b = q
out.append(a)
try:
    p.a = 1
except AttributeError as e:
    out.append(type(e).__name__)

# del_method
class Dl:
    def __init__(self, name): self.name = name
    def __del__(self): LOG.append(("del", self.name))
---
w = Dl(_N)
_()
w = Dl("second")
_()
del w
_()
out.append(len(LOG))
def scoped():
    v = Dl("inner")
    _()
    return 3
out.append([scoped(), list(LOG)])

# module_getattr
import types
Mo = types.ModuleType("Mo")
Mo.__getattr__ = lambda name: (LOG.append(name), name.upper())[1]
Mo.real = 1
---
out.append([Mo.real, Mo.zzz, getattr(Mo, "k", 0), hasattr(Mo, "q")])
Mo.new = _(_V)
out.append(Mo.new)
del Mo.new
out.append(Mo.new)

# cached_property
import functools
class Cp:
    n = 0
    @functools.cached_property
    def v(self):
        self.n += 1
        return _([self.n])
---
w = Cp()
a = w.v
_()
out.append([a is w.v, w.n, "v" in vars(w)])
del w.v
out.append([w.v, w.v is a])

# partialmethod_and_singledispatch
import functools
class Pa:
    def m(self, a, b, c=0): return _((a, b, c))
    p = functools.partialmethod(m, 1, c=_N)
@functools.singledispatch
def sd(v): return _("obj")
@sd.register
def _int(v: int): return _("int")
@sd.register(list)
def _list(v): return _("list")
---
out.append([Pa().p(2), Pa().p(2, c=4), sd(1), sd(True), sd([]), sd("s"), sd(None)])

# meta_getattribute
class Mg(type):
    def __getattribute__(cls, name):
        LOG.append(("meta", name))
        return super().__getattribute__(name)
class Mh(metaclass=Mg):
    v = 3
    def m(self): return _(self.v)
---
w = Mh()
out.append([w.m(), Mh.v, w.v, isinstance(w, Mh)])

# comparison_chain
class Ch:
    def __init__(self, v): self.v = v
    def __lt__(self, o):
        LOG.append(("lt", self.v, o.v))
        return _(self.v < o.v)
    def __le__(self, o): return _([])
---
a, b, c = Ch(1), Ch(_N), Ch(3)
out.append([a < b < c, a <= b < c, a < b, not a <= c, max([c, a, b]).v, min(a, c, b).v, [q.v for q in sorted([c, b, a])], a > b])
import heapq
k = [c, a, b]
heapq.heapify(k)
out.append(heapq.heappop(k).v)

# total_ordering
import functools
@functools.total_ordering
class To:
    def __init__(self, v): self.v = v
    def __eq__(self, o): return _(self.v == o.v)
    def __lt__(self, o): return _(self.v < o.v)
---
out.append([To(1) <= To(2), To(1) > To(_N), To(2) >= To(2), To(1) != To(1)])

# setitem_protocol
class Si:
    def __init__(self): self.log = []
    def __setitem__(self, k, v): self.log.append(("set", _(k), v))
    def __getitem__(self, k): return _(5)
    def __delitem__(self, k): self.log.append(("del", _(k)))
    def __missing__(self, k): return 1
---
w = Si()
w[1] = _V
w[1:2] = 3
w[_(0), 1] += 2
del w[_N]
w["a"], w["b"] = 1, 2
out.append(w.log)
for w["i"] in range(2): _()
out.append(len(w.log))
'''
