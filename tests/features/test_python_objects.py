"""Objects of Python beyond plain classes and containers: subclasses of numbers and texts, state of
modules, classes that change, exception groups. One graph where nothing else is said."""

from __future__ import annotations

import datetime
import sys

import torch

import dynamo
from dynamo.testing import CompileCounter
from tests.features.harness import make_tests, table

SETUP = """
import abc, collections, contextlib, copy, dataclasses, datetime, enum, functools, io, itertools, logging, math, operator, random, struct, types, typing, warnings, weakref

class Kelvin(float):
    def __new__(cls, v, unit="K"): o = super().__new__(cls, v); o.unit = unit; return o
    def celsius(self): return self - 273.15
class Loud(float):
    def __repr__(self): return f"Loud({float(self)})"
    def __add__(self, o): return Loud(float(self) + o + 100)
    def __lt__(self, o): return True
class Index(int): pass
class Modular(int):
    def __mul__(self, o): return Modular(int(self) * int(o) % 7)
    def __eq__(self, o): return int(self) % 7 == int(o) % 7
    def __hash__(self): return hash(int(self) % 7)
    def __bool__(self): return False
class Name(str):
    def __str__(self): return "name " + super().__str__()
    def initial(self): return self[0]
class Quiet(str):
    def __repr__(self): return "quiet"
class Raw(bytes): pass
class Pair(tuple):
    def __new__(cls, a, b): return super().__new__(cls, (a, b))
    @property
    def first(self): return self[0]
class Path(tuple):
    def __add__(self, o): return Path(tuple(self) + tuple(o))
    def __repr__(self): return "/".join(map(str, self))
class Money(complex): pass
class Counted:
    made, last, kinds = 0, None, []
    def __init__(self): type(self).made += 1; Counted.last = self
    def go(self, v): return v + self.made
class CountedMore(Counted): pass
class WithProperty:
    p = property(lambda self: 3)
    def m(self): return "m"
class Registry(type):
    known = 0
    def __new__(meta, name, bases, ns): return super().__new__(meta, name, bases, ns)
    def note(cls): cls.seen = getattr(cls, "seen", 0) + 1; return cls.seen
class Registered(metaclass=Registry): pass
class Shown:
    def __repr__(self): return "shown"
@dataclasses.dataclass
class Item:
    a: object
    more: object = None
@functools.singledispatch
def kind(v): return "any"
@kind.register
def _(v: int): return "int"
@kind.register(list)
def _(v): return "list" + kind(v[0])
@kind.register(torch.Tensor)
def _(v): return v * 2
class Kinds:
    @functools.singledispatchmethod
    def of(self, v): return "any"
    @of.register
    def _(self, v: int): return "int"
class Listing(type):
    def __len__(cls): return 3
    def __iter__(cls): return iter("ab")
    def __getitem__(cls, k): return cls.__name__ + k
    def __contains__(cls, o): return o == 3
    def __instancecheck__(cls, o): return o == 7
    def __subclasscheck__(cls, o): return o is int
class Listed(metaclass=Listing): pass
import threading
KEPT, DAY, LOCK = Shown(), datetime.date(2020, 5, 4), threading.RLock()
LIMIT, KEY, SHAPE, LOUD, BOTH = Index(3), Name("bob"), Pair(2, 3), Loud(1.5), Modular(9)
"""

ONE_GRAPH = table('''
# float subclass: made, used, returned
k = Kelvin(300.5, unit="k"); return x * k + k.celsius(), k, k.unit, type(k + 1).__name__, -k, k > 3, int(k), f"{k:.1f}", str(k), repr(k), round(k), {k: 1}[300.5], k == 300.5, hash(k) == hash(300.5), bool(k), abs(k), k.is_integer(), k.real, divmod(k, 7), math.floor(k), max(k, 1.0), sum([k, k])
# float subclass with operators of its own
a = Loud(2.0); b = a + 1; c = 1 + a; return x + 1, b, c, type(b).__name__, type(c).__name__, a < 1, str(a), f"{a}", f"{a:.2f}", [a], "%s" % a, "%.1f" % a, a - 1, sorted([Loud(3), Loud(1)])[0], min(Loud(3), Loud(1))
# int subclass: as an index, a size and a key
i = Index(1); return x[:, i] + x.sum(i), [5, 6, 7][i], "abc"[i], list(range(i)), x.reshape(Index(3), 2), torch.zeros(i, 2), {1: "one"}[i], i + 1, type(i + 1).__name__, i << 3, ~i, i.bit_length(), "%d" % i, f"{i:03d}", i is i, i in (1, 2), (9, 8)[i:], [0] * i, i.numerator
# int subclass with operators of its own
a = Modular(5); return x + int(a), a * 3, type(a * 3).__name__, 3 * a, a == 12, a != 5, a in [12], bool(a), 1 if a else 2, not a, {a: 1}[Modular(12)], len({Modular(1), Modular(8)})
# instances from outside
return BOTH * 2, BOTH == 2, x * LIMIT + LOUD, x.view(SHAPE), SHAPE.first, KEY.initial(), str(KEY), KEY + "!", LIMIT + 1, LOUD + 1, SHAPE + (1,), [*SHAPE], KEY.upper(), LIMIT is LIMIT, type(KEY).__name__, len(KEY), "o" in KEY, isinstance(LIMIT, int)
# instances as arguments of a function
def g(v, n, name): return v * n, n, name, {name: n}
return g(x, Index(2), Name("q")), g(y, LIMIT, KEY)
# str subclass
n = Name("abc"); return x + 1, n, str(n), f"{n}", f"{n!r}", "%s" % n, n + "d", type(n + "d").__name__, n[1:], n.upper(), n.initial(), "-".join([n, n]), n == "abc", {n: 1}["abc"], n in "xabc", "b" in n, sorted([n, "a"]), n.split("b"), list(n), n * 2, len(n), getattr(x, Name("shape"))
# str subclass with a repr
q = Quiet("loud"); return x + 1, str(q), repr(q), f"{q}", [q], f"{q!r:>7}"
# bytes and complex subclasses
r = Raw(b"ab"); m = Money(1, 2); return x + 1, r, r + b"c", r[0], r.hex(), m, m * 2, m.imag, abs(Money(3, 4)), r == b"ab", m.conjugate()
# tuple subclass
p = Pair(x + 1, 2); q = Pair(1, 2); a, b = p; return p.first * b, q, q + (3,), type(q + (3,)).__name__, q == (1, 2), q < (2,), hash(q) == hash((1, 2)), {q: 1}[1, 2], len(q), q[::-1], q.index(2), q.count(1), 2 in q, [*q], max(q), str(q), bool(q), isinstance(q, tuple), x.reshape(Pair(3, 2)), "%s %s" % q
# tuple subclass with operators of its own
p = Path(("a", "b")); r = p + ["c"]; return x + 1, r, type(r).__name__, str(r), len(r), r * 2, f"{r}"
# attributes of values
k = Kelvin(1.0); k.note = [1]; k.note.append(2); t = Name("t"); t.x = x + 1; del k.unit; return t.x, k.note, hasattr(k, "unit"), vars(k), vars(t) is t.__dict__
# construction that fails
out = []
for f in (lambda: Index("q"), lambda: Kelvin("a"), lambda: Index(1, 2), lambda: Pair(1), lambda: Index(1) + "a", lambda: Name("a") + 1, lambda: Index(1)()):
    try: out.append(f())
    except (ValueError, TypeError) as e: out.append((type(e).__name__, str(e)))
return x + 1, out
# class attribute counts instances
a = Counted(); b = Counted(); return a.go(x), Counted.made, b.made, a is Counted.last, Counted.last is b
# class attribute of a subclass hides that of its base
c = CountedMore(); d = Counted(); return c.go(x), CountedMore.made, Counted.made, c.made, d.made
# setattr and getattr on classes
for i, n in enumerate(["p1", "p2"]): setattr(Counted, n, i)
r = [getattr(Counted, n) for n in ("p1", "p2")]; delattr(Counted, "p1"); return x + 1, r, hasattr(Counted, "p1"), Counted.p2
# printing of containers and objects
print([1, "b"], (x.shape, None), {"k": {1}}, KEPT, f"{KEPT!r}"); return x + 1
# text of a dataclass
a = Item(1, [2, (3,)]); a.more = a; b = Item("q"); return x + 1, repr(a), str(b), f"{b}", [b]
# single dispatch
return kind(1) + kind("s") + kind([2]) + kind(2.5), kind(x), Kinds().of(3), Kinds().of("s"), kind.dispatch(bool)(True), x + 1
# metaclass with operators
return x + len(Listed), list(Listed), Listed["k"], 3 in Listed, 4 in Listed, isinstance(7, Listed), isinstance(Listed(), Listed), issubclass(int, Listed)
# logger looked up
log = logging.getLogger("features"); return x + 1, log.name, log.isEnabledFor(10), log is logging.getLogger("features")
# unions of dicts
a, o, d = {"a": 1}, collections.OrderedDict(a=2), collections.defaultdict(list, b=3); return x + 1, a | o, o | a, a | d, d | a, type(a | collections.Counter("a")).__name__, (a | d).default_factory
# sets of sets
s = {frozenset({1}), 2}; return x + 1, {1} in s, {2} in s, frozenset({1}) in s, [s.discard({1}), len(s)]
# lock held
with LOCK: v = x + 1
LOCK.acquire(); w = v * 2; LOCK.release(); return w
# copies of values
k = Kelvin(2.0); c = copy.copy(k); return x * c, c is k, c.unit, type(c).__name__
# values of strings
i = Index("12"); j = Index("ff", 16); n = Name(3.5); return x + i, j, n, Index(), Name(), Raw(3), Kelvin("1e3")
''')

# Rows that break the graph: an object with `__hash__` as a key, one with `__eq__` from outside, one
# with `__str__` in `text % value`, and errors that name the class.
BREAKS = {
    "attributes of values", "bytes and complex subclasses", "class attribute counts instances",
    "class attribute of a subclass hides that of its base", "construction that fails",
    "copies of values", "float subclass with operators of its own",
    "float subclass: made, used, returned", "instances as arguments of a function",
    "instances from outside", "int subclass with operators of its own",
    "int subclass: as an index, a size and a key", "setattr and getattr on classes", "str subclass",
    "str subclass with a repr", "tuple subclass", "tuple subclass with operators of its own",
    "unions of dicts", "values of strings",
}
if sys.version_info >= (3, 13):  # a method that dispatches is kept in a dict of weak references
    BREAKS.add("single dispatch")

def test_a_text_that_is_passed_on_is_not_guarded() -> None:
    class Name(str):
        pass

    def f(x: torch.Tensor, name: Name) -> tuple[torch.Tensor, Name]:
        return x + 1, name

    dynamo.reset()
    counter = CompileCounter()
    compiled = dynamo.compile(f, backend=counter)
    for text in ("a", "b", "c"):
        assert compiled(torch.ones(2), Name(text))[1] == text
    assert counter.frame_count == 1


def test_a_date_that_is_passed_on_is_not_guarded() -> None:
    counter = CompileCounter()
    compiled = dynamo.compile(lambda x, day: (x + 1, day), backend=counter)
    for number in (1, 2, 2):
        day = datetime.date(2024, 2, number)
        assert compiled(torch.ones(1), day)[1] is day
    assert counter.frame_count == 1


ANY_GRAPHS = table('''
# property of a class replaced
p = WithProperty.p; WithProperty.p = 4; r = WithProperty().p; WithProperty.p = p; return x + r, WithProperty().p
# special method of a class replaced
WithProperty.__len__ = lambda self: 5; r = len(WithProperty()); del WithProperty.__len__; return x + r
# class attribute that is missing
try: del Counted.nothing
except AttributeError as e: return x + 1, type(e).__name__
# class attribute and break
Counted.made = 10; v = x + Counted.made; dynamo.graph_break(); Counted.made += 1; return v * 2, Counted.made, Counted().made
# containers that take in a part before an error
def g(n):
    for i in range(n): yield i, i
    raise ValueError("end")
l, s, d, q, out = [9], {9}, {9: 9}, collections.deque([9]), []
for c in (lambda: l.extend(g(2)), lambda: s.update(g(2)), lambda: d.update(g(2)), lambda: q.extend(g(2)), lambda: d.update([("k", 1), 5])):
    try: c()
    except (ValueError, TypeError) as e: out.append(str(e))
return x + 1, l, sorted(map(str, s)), d, q, out
# index of a subclass of int
class Odd(int):
    def __index__(self): return 1
return x + [5, 6, 7][Odd(2)], "abc"[Odd(0)], range(9)[Odd(3)], (1, 2, 3)[:Odd(2)], x[Odd(0)]
# values through a break
k = Kelvin(2.0); n = Name("n"); p = Pair(x, 1); v = x * k; dynamo.graph_break(); return v + k, k, k.unit, n, str(n), p.first, k.celsius()
# class attribute set, read, deleted
Counted.extra = [x + 1]; v = Counted().extra; h = hasattr(CountedMore, "extra"); CountedMore.extra = 2; w = CountedMore.extra; del CountedMore.extra; u = CountedMore.extra is v; del Counted.extra; return v, h, w, u, hasattr(Counted, "extra"), getattr(Counted, "extra", 5)
# method replaced on the class
def m(self): return self.tag
WithProperty.m = m; WithProperty.tag = "t"; o = WithProperty(); r = o.m(); del WithProperty.tag; del WithProperty.m; return x + 1, r, hasattr(o, "m")
# class attribute through a metaclass
a = Registered.note(); Registered.note(); Registry.known += 1; return x + a, Registered.seen, Registered.known
# warnings ignored, always shown, recorded, and errors
with warnings.catch_warnings():
    warnings.simplefilter("ignore"); warnings.warn("no"); v = x + 1
    warnings.filterwarnings("error", category=DeprecationWarning)
    try: warnings.warn("deprecated", DeprecationWarning)
    except DeprecationWarning as e: t = str(e)
with warnings.catch_warnings(record=True) as w:
    warnings.simplefilter("always"); warnings.warn("one"); warnings.warn("two", RuntimeWarning)
return v, t, len(w), [str(m.message) for m in w], w[1].category.__name__, [m.lineno for m in w], len(warnings.filters) > 0
# dates and structs
d = datetime.date(2024, 2, 28); e = d + datetime.timedelta(days=2); t = datetime.datetime(2024, 1, 1, 12); return x + e.day, e.isoformat(), (e - d).days, e > d, {d: 1}[datetime.date(2024, 2, 28)], t.replace(hour=3), t.strftime("%Y-%m"), struct.pack("<hf", 3, 1.5), struct.unpack("<h", bytes([1, 0])), DAY.year, DAY.weekday(), f"{d:%d}", datetime.datetime.strptime("2020", "%Y").year
# value methods through super
class_ = Loud; return x + 1, float.__add__(Loud(1), 2), int.__mul__(Modular(3), 4), str.__len__(KEY), tuple.__getitem__(SHAPE, 1), float.__repr__(LOUD), class_(3).__class__.__name__
''')


test_one_graph, test_any_graphs = make_tests(ONE_GRAPH, ANY_GRAPHS, SETUP, BREAKS)


class OnlySets:
    """Written to before the instance dict, read behind it."""

    def __set__(self, owner: object, value: int) -> None:
        owner.__dict__["size"] = value * 2


class Sized:
    size = OnlySets()


def test_a_descriptor_that_only_sets() -> None:
    def f(x: torch.Tensor, owner: Sized) -> tuple[torch.Tensor, bool, dict[str, int]]:
        first = owner.size
        owner.size = 5
        return x + owner.size, isinstance(first, OnlySets), owner.__dict__

    compiled = dynamo.compile(f, backend="eager")
    for _ in range(2):
        expected, found = f(torch.ones(1), Sized()), compiled(torch.ones(1), Sized())
        assert torch.equal(expected[0], found[0]) and expected[1:] == found[1:]
