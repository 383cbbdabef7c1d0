"""Snippets over classes of the program: special methods, descriptors, metaclasses, attributes, `super()`.

A block is `# name`, definitions of the module, a line `---`, statements of the function. `_(e)` is a place for a break, `_N`, `_V`, `_T`
stand for an int, any value and a tensor, drawn anew at each place.
"""

BLOCKS = '''
# getattribute
class Watched:
    def __init__(self, v): self.v = v
    def __getattribute__(self, name):
        LOG.append(name)
        return _(object.__getattribute__(self, name))
    def go(self, k): return self.v + k
---
w = Watched(_N)
out.append(w.go(_N))
w.v += 1
out.append([w.v, hasattr(w, "zzz"), getattr(w, "zzz", 3)])

# getattr_fallback
class Fallback:
    def __getattr__(self, name):
        if name.startswith("no"): raise AttributeError(_(name))
        return _(name * 2)
    @property
    def bad(self): return self.nope
---
w = Fallback()
out.append(w.ab)
out.append(getattr(w, "nothing", _N))
try:
    w.bad
except AttributeError as e:
    out.append([str(e), e.name])

# data_descriptor
class Desc:
    def __set_name__(self, owner, name): self.name = _("_" + name)
    def __get__(self, obj, owner=None): return self if obj is None else _(obj.__dict__.get(self.name, 0))
    def __set__(self, obj, v): obj.__dict__[self.name] = _(v)
    def __delete__(self, obj): del obj.__dict__[_(self.name)]
class Described:
    a = Desc()
    b = Desc()
---
w = Described()
w.a = _V
w.b = w.a
w.a = _N
out.append([w.a, w.b, sorted(vars(w))])
del w.b
out.append([w.b, type(w).a is Described.__dict__["a"]])
try:
    del w.b
except KeyError as e:
    out.append(e)

# local_descriptor
---
class Desc2:
    def __set_name__(self, owner, name):
        LOG.append((owner.__name__, _(name)))
    def __get__(self, obj, owner=None):
        return _(n)
class Has2:
    a = b = Desc2()
    def m(self): return self.a + Has2.b
out.append(Has2().m())

# metaclass_calls
class Meta(type):
    @classmethod
    def __prepare__(mcs, name, bases, **kw):
        return {"made": _(kw.get("tag"))}
    def __new__(mcs, name, bases, ns, **kw): return super().__new__(mcs, name, bases, _(dict(ns)))
    def __init__(cls, name, bases, ns, **kw): super().__init__(name, bases, ns)
    def __call__(cls, *a, **k):
        LOG.append(("call", cls.__name__))
        return _(super().__call__(*a, **k))
    def __instancecheck__(cls, obj): return _(hasattr(obj, "q"))
    def __subclasscheck__(cls, sub): return _(sub is int)
    def __len__(cls): return _(4)
    def __iter__(cls): yield from (1, _(2))
    def __contains__(cls, v): return _(v == 3)
    def __getitem__(cls, k): return (cls.__name__, _(k))
class Made(metaclass=Meta, tag="t"):
    def __init__(self, q): self.q = q
---
w = Made(_V)
out.append([w.q, Made.made, isinstance(w, Made), isinstance(3, Made), issubclass(int, Made), issubclass(bool, Made), len(Made), list(Made), 3 in Made, 4 in Made, Made[_N]])

# local_metaclass
---
class Meta3(type):
    def __new__(mcs, name, bases, ns, k=1):
        c = super().__new__(mcs, name, bases, ns)
        c.k = _(k)
        return c
    def __init__(cls, name, bases, ns, k=1):
        type.__init__(cls, name, bases, ns)
        LOG.append(name)
class M3(metaclass=Meta3, k=_(_N)):
    z = _(_N)
class N3(M3): pass
out.append([M3.k, N3.k, M3.z, N3.__name__, N3.__mro__[1] is M3])

# class_getitem
class Gen:
    def __class_getitem__(cls, k):
        LOG.append(k)
        return (cls.__name__, _(k))
---
out.append(Gen[_N])
out.append(Gen[1, 2:_N])

# init_subclass
class Base4:
    subs = []
    def __init_subclass__(cls, tag=None, **kw):
        super().__init_subclass__(**kw)
        cls.tag = _(tag)
        Base4.subs.append(cls.__name__)
---
class Sub4(Base4, tag=_(_N)):
    pass
class Sub5(Sub4): v = _N
out.append([Sub4.tag, Sub5.tag, len(Base4.subs)])

# reflected
class L6:
    def __add__(self, o):
        LOG.append("add")
        return _(NotImplemented)
    def __lt__(self, o): return _(NotImplemented)
    def __eq__(self, o): return _(NotImplemented)
    def __hash__(self): return 1
class R6:
    def __radd__(self, o):
        LOG.append("radd")
        return _(("r", type(o).__name__))
    def __gt__(self, o): return _("gt")
    def __rsub__(self, o): return _(NotImplemented)
class S6(L6):
    def __radd__(self, o): return _("sub")
---
out.append([L6() + R6(), L6() < R6(), L6() == R6(), L6() + S6(), _N + R6(), [1] + R6(), "a" + R6()])
try:
    out.append(_N - R6())
except TypeError as e:
    out.append(e)
try:
    L6() + _V
except TypeError as e:
    out.append(e)
try:
    out.append(_T + R6())
except TypeError as e:
    out.append(e)

# inplace_operators
class Acc:
    def __init__(self): self.log = []
    def __iadd__(self, o):
        self.log.append(_(o))
        return self
    def __isub__(self, o): return NotImplemented
    def __sub__(self, o): return _("sub")
    def __imatmul__(self, o): return _(o)
    def __ior__(self, o):
        self.log.append("or")
        return _(None)
---
a = b = Acc()
a += _V
out.append(a is b)
c = [a, a]
c[_(0)] += 2
c[1] -= 1
out.append([c[0] is b, c[1]])
a @= _T
b |= 1
out.append([a, b])

# super_places
class A7:
    def m(self): return _(["A"])
    @classmethod
    def c(cls): return [cls.__name__, "A"]
    @property
    def p(self): return _("pA")
    @staticmethod
    def st(v): return _(v)
class B7(A7):
    def m(self): return [*super().m(), "B"]
    @classmethod
    def c(cls): return _(super().c()) + ["B"]
    @property
    def p(self): return super().p + _("B")
    def g(self):
        f = lambda: super(B7, self).m()
        return [f(), super().st(3)]
class C7(A7):
    def m(self): return super().m() + _(["C"])
class D7(B7, C7):
    def m(self):
        s = super()
        return s.m() + [v for v in super(B7, self).m()]
---
w = D7()
out.append([w.m(), w.c(), w.p, w.g(), D7.c(), super(B7, w).m()])

# bound_methods
class Bd:
    def __init__(self, v): self.v = v
    def m(self, k=_N): return (self.v, k)
---
w = Bd(_V)
f = w.m
g = w.m
out.append([f is g, f == g, f.__self__ is w, f()])
_()
w.v = _N
w.m = f
out.append([f(2), w.m is f, w.m(3), "m" in vars(w)])
del w.m
out.append(w.m == g)
out.append(len({f, g}))

# dict_alias
class Da: pass
---
w = Da()
v = w.__dict__
w.a = _V
_()
v["b"] = _N
out.append([w.b, v is w.__dict__, list(v)])
_()
w.__dict__ = {"c": _(1)}
out.append([vars(w), v, hasattr(w, "a")])
vars(w).update(d=2)
_()
w.__dict__.clear()
out.append(hasattr(w, "c"))

# slots_and_weakref
import weakref
class Sl:
    __slots__ = ("a", "b", "__weakref__")
    def __init__(self): self.a = 1
---
w = Sl()
r = weakref.ref(w)
_()
out.append([r() is w, hasattr(w, "b")])
try:
    w.b
except AttributeError as e:
    out.append(e)
w.b = _(_V)
del w.a
try:
    w.zz = 1
except AttributeError as e:
    out.append(str(e))
out.append([hasattr(w, "a"), w.b])

# property_mutates
class Pm:
    def __init__(self): self._v = []
    @property
    def v(self):
        self._v.append(_("get"))
        return self._v
    @v.setter
    def v(self, k): self._v = [_(k)]
    @v.deleter
    def v(self): _(self._v.clear())
---
w = Pm()
w.v += [_N]
out.append(list(w._v))
w.v = _V
out.append(w.v)
del w.v
out.append([w.v, w._v is w.v])

# dataclass_all
import dataclasses
@dataclasses.dataclass(order=True)
class Dc:
    a: int
    b: list = dataclasses.field(default_factory=lambda: _([1]), compare=False)
    c: int = dataclasses.field(default=3, repr=False)
    d: dataclasses.InitVar = 5
    def __post_init__(self, d): self.c = self.c + _(d)
---
p, q = Dc(_N), Dc(_N, c=2)
out.append([p == q, p < q, p >= q, repr(p), p.b is q.b, dataclasses.asdict(p)])
r = dataclasses.replace(p, a=_(7), d=1)
out.append([r, r.b is p.b, sorted([p, q, r])[0] is r, dataclasses.astuple(q)])

# dataclass_frozen
import dataclasses
@dataclasses.dataclass(frozen=True, slots=True)
class Df:
    a: int
    b: object = None
---
p = Df(_N, _(2))
try:
    p.a = 3
except dataclasses.FrozenInstanceError as e:
    out.append([str(e), type(e).__name__])
_()
out.append([{p: 1}[Df(p.a, 2)], hash(p) == hash(Df(p.a, 2)), p])
try:
    hash(Df([], 1))
except TypeError as e:
    out.append(str(e))

# local_dataclass
---
import dataclasses
@dataclasses.dataclass
class Ld:
    a: int = _(_N)
    b: list = dataclasses.field(default_factory=list)
    def total(self): return self.a + len(self.b)
p = Ld()
p.b.append(_(p.a))
out.append([p.total(), Ld(1, [2]) == Ld(1, [2]), repr(p)])

# enum_use
import enum
class Co(enum.Enum):
    A = 1
    B = "b"
    @property
    def low(self): return _(self.name.lower())
class Fl(enum.IntFlag):
    X = 1
    Y = 2
---
out.append([Co.A.low, Co("b"), Co["A"] is Co(1), list(Co), Fl.X | Fl.Y, Fl(_N & 3)])
try:
    Co(_V)
except ValueError as e:
    out.append(type(e).__name__)
out.append({Co.A: 1}[_(Co(1))])

# bool_len_raise
class Bl:
    def __init__(self, v): self.v = v
    def __bool__(self): return _(self.v)
class Ln:
    def __init__(self, v): self.v = v
    def __len__(self): return _(self.v)
---
for v in (True, 1, None):
    try:
        out.append("yes" if Bl(v) else "no")
        out.append(not Bl(v))
        out.append(Bl(v) and 3)
    except TypeError as e:
        out.append(e)
for v in (0, 2, -1, 1.5, True):
    try:
        out.append("yes" if Ln(v) else "no")
        out.append(len(Ln(v)))
    except (TypeError, ValueError) as e:
        out.append(e)

# index_method
class Ix:
    def __init__(self, v): self.v = v
    def __index__(self):
        LOG.append("index")
        return _(self.v)
---
out.append([items[Ix(0)], list(range(Ix(3))), hex(Ix(_N)), "ab" * Ix(2), [1, 2, 3, 4][Ix(1):Ix(3)], (5, 6)[Ix(-1)], int(Ix(4)), float(Ix(3)), chr(Ix(65)), round(2.567, Ix(1))])
try:
    items[Ix("a")]
except TypeError as e:
    out.append(e)
try:
    out.append([1][Ix(5)])
except IndexError as e:
    out.append(e)
k = [1, 2, 3]
k[Ix(1)] = 9
k.insert(Ix(0), 7)
out.append([k, k.pop(Ix(1)), x[Ix(0)].sum()])

# conversions
class Cv:
    def __int__(self): return _(3)
    def __float__(self): return _(2.5)
    def __complex__(self): return _(1j)
    def __str__(self): return _("str")
    def __repr__(self): return _("repr")
    def __bytes__(self): return _(b"b")
    def __round__(self, k=None): return _(("round", k))
    def __trunc__(self): return 8
    def __floor__(self): return _(9)
    def __ceil__(self): return 10
    def __abs__(self): return _("abs")
    def __divmod__(self, o): return _("dm")
    def __pow__(self, o, m=None): return _(("pow", o, m))
    def __invert__(self): return _("inv")
    def __format__(self, spec): return _("<" + spec + ">")
    def __hash__(self): return _(42)
    def __dir__(self): return _(["z", "a"])
    def __reversed__(self): return _(iter([1]))
---
import math
w = Cv()
out.append([int(w), float(w), complex(w), str(w), repr(w), bytes(w), round(w), round(w, 2), math.floor(w), math.ceil(w), math.trunc(w), abs(w), divmod(w, 1), pow(w, 2, 3), w ** 2, ~w, f"{w:x}{w!r:>6}{w!s}", hash(w), dir(w), list(reversed(w)), math.sqrt(w), "%s %r %d" % (w, w, w)])

# callable_objects
class Ca:
    def __init__(self, k): self.k = k
    def __call__(self, *a, **kw): return (_(self.k), a, kw)
class Cb:
    __call__ = Ca(5)
---
w = Ca(_N)
out.append([w(1, b=_V), callable(w), Cb()(2), list(map(w, [1, 2])), sorted([3, 1, 2], key=lambda v: w(v)[1])])

# contains_fallback
class It8:
    def __iter__(self):
        for i in range(3):
            LOG.append(i)
            yield _(i)
class Gi8:
    def __getitem__(self, i):
        if i > 2: raise IndexError
        return _(i * 2)
class No8:
    __contains__ = None
    def __iter__(self): return iter(())
---
out.append([1 in It8(), 7 in It8(), 4 in Gi8(), 5 in Gi8(), list(Gi8()), [*It8()], max(Gi8()), sum(It8())])
try:
    1 in No8()
except TypeError as e:
    out.append(e)
a, *b = Gi8()
out.append([a, b, dict(zip(It8(), Gi8()))])

# iterator_protocol
class Itr:
    def __init__(self, k): self.k = k
    def __iter__(self): return _(self)
    def __next__(self):
        self.k -= 1
        if self.k < 0: raise StopIteration(_("end"))
        return self.k
    def __length_hint__(self): return _(self.k)
---
w = Itr(3)
out.append([next(w), list(w), next(w, "none")])
try:
    next(w)
except StopIteration as e:
    out.append(e.value)
for v in (q := Itr(4)):
    if v == 1: break
out.append([q.k, tuple(q), any(Itr(2)), all(Itr(2)), 0 in Itr(5), dict.fromkeys(Itr(2))])

# eq_side_effects
class Eq:
    def __init__(self, v): self.v = v
    def __eq__(self, o):
        LOG.append(("eq", self.v, getattr(o, "v", o)))
        return _(self.v == getattr(o, "v", o))
    def __hash__(self): return hash(self.v)
    def __repr__(self): return f"Eq{self.v}"
---
k = [Eq(1), Eq(2), Eq(1), 3]
out.append([k.index(Eq(2)), k.count(Eq(1)), Eq(3) in k, 2 in k])
k.remove(Eq(1))
out.append([len(k), k == [Eq(2), Eq(1), 3], (Eq(1),) == (1,), Eq(1) != Eq(1)])
m = {Eq(1): "a", 1: "b"}
m[Eq(1)] = _V
out.append([len(m), m.get(Eq(1)), m.pop(1), Eq(2) in m, {Eq(1), Eq(1), 2}, {**m, Eq(1): 5}])

# getattr_setattr_hooks
class Sa:
    def __setattr__(self, name, v):
        LOG.append(name)
        super().__setattr__(name, _(v))
    def __delattr__(self, name):
        LOG.append("del " + name)
        object.__delattr__(self, _(name))
---
w = Sa()
w.a, w.b = _V, 1
setattr(w, "c", 2)
w.b += 1
del w.a
try:
    delattr(w, "a")
except AttributeError as e:
    out.append([str(e), e.obj is w])
out.append(vars(w))

# class_attributes
class Cs:
    shared = []
    count = 0
    def bump(self):
        type(self).count += 1
        self.count += 10
        return _(self.count)
---
w = Cs()
out.append([w.bump(), Cs.count, w.bump(), Cs.count])
Cs.shared.append(_N)
w.shared += [1]
out.append([Cs.shared is w.shared, "shared" in vars(w)])
Cs.late = lambda self: _(self.count)
out.append(Cs().late())
del Cs.late
out.append(hasattr(w, "late"))
Cs.shared = []
'''
