"""Containers, functions and classes of the standard library, each used once between operations on tensors: which stay in
one graph, and where the others break it."""

from __future__ import annotations

import sys

import pytest

from tests.features.harness import check, codes_of, table

SETUP = """
import abc, array, bisect, collections, contextlib, contextvars, copyreg, dataclasses, functools, graphlib, heapq, inspect, itertools, operator, types, typing, weakref, warnings, logging, threading, queue, atexit, gc
from collections import UserDict, UserList, ChainMap
from torch import nn
class O:
    def __init__(self, a): self.a = a
    def m(self, k=1): return self.a * k
    def __eq__(self, o): return self.a is o.a
NS = types.SimpleNamespace(a=2, b=torch.ones(3)); UD = UserDict({"a": 2}); UL = UserList([1, 2, 3]); CV = contextvars.ContextVar("cv", default=3); ARR = array.array("f", [1.0, 2.0]); CM = ChainMap({"a": 1}, {"b": 2}); WR = None
OBJ = O(3); WREF = weakref.ref(OBJ); WKD = weakref.WeakKeyDictionary()
class UDict(UserDict):
    def __getitem__(self, k): return self.data[k] * 2
@functools.singledispatch
def sd(v, x): return x
@sd.register
def _(v: int, x): return x * v
@sd.register(str)
def _(v, x): return x + len(v)
@sd.register
def _(v: list | tuple, x): return x - len(v)
@sd.register(torch.Tensor)
def _(v, x): return x + v
class SDM:
    @functools.singledispatchmethod
    def f(self, v, x): return x
    @f.register
    def _(self, v: int, x): return x * v
@functools.total_ordering
class TO:
    def __init__(self, v): self.v = v
    def __lt__(self, o): return self.v < o.v
    def __eq__(self, o): return self.v == o.v
class CacheM:
    def __init__(self): self.k = 2
    @functools.cache
    def f(self, n): return n * 2
    @functools.lru_cache(maxsize=4)
    def g(self, n): return [n]
    @functools.cached_property
    def h(self): return self.k + 1
    @functools.cached_property
    def t(self): return torch.ones(3) * self.k
CMO = CacheM()
@functools.cache
def cached_fn(n): return n + 1
@dataclasses.dataclass
class DC:
    a: typing.Any; n: int = 2; xs: list = dataclasses.field(default_factory=list); iv: dataclasses.InitVar[int] = 3; k: int = dataclasses.field(default=1, kw_only=True); hid: int = dataclasses.field(default=0, repr=False, compare=False)
    def __post_init__(self, iv): self.q = iv
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FDC:
    a: int; b: tuple = (1,)
@dataclasses.dataclass(order=True)
class ODC:
    a: int; b: int = 0
@dataclasses.dataclass
class Nest:
    c: ODC; t: typing.Any = None
class NT(typing.NamedTuple):
    a: typing.Any; b: int = 2
class TD(typing.TypedDict, total=False):
    a: int; b: torch.Tensor
@typing.runtime_checkable
class HasM(typing.Protocol):
    def m(self, k=1): ...
T = typing.TypeVar("T")
class Box(typing.Generic[T]):
    def __init__(self, v: T): self.v = v
class Base(abc.ABC):
    @abc.abstractmethod
    def f(self): ...
class Impl(Base):
    def f(self): return 2
@Base.register
class Virt: pass
def target(a, b=2, *, c=1): return a
AG = operator.attrgetter("a"); IG = operator.itemgetter(0, 1); MC = operator.methodcaller("sum", 0)
class PM:
    def f(self, k, x): return x * k
    g = functools.partialmethod(f, 3)
@contextlib.contextmanager
def mgr(k):
    yield k * 2
"""

ONE_GRAPH = table(r'''
# weak
r = weakref.ref(OBJ); return x * r().a + 1, WREF() is OBJ
# weak dict
d = weakref.WeakKeyDictionary(); return x * len(d) + 1
# weak value dict
d = weakref.WeakValueDictionary(); return x * len(d) + 1
# set ops
s = {1, 2} | {3}; return x * len(s) + 1, s - {1}, s ^ {1}, s <= {1, 2, 3, 4}, frozenset(s), s.isdisjoint({9}), {1}.union([2], [3])
# zip strict
try: list(zip([1], [1, 2], strict=True))
except ValueError as e: return x * 2 + 1, str(e)
# zip strict ok
return x * sum(a * b for a, b in zip([1, 2], [3, 4], strict=True)) + 1
# namespace outside
return x * NS.a + NS.b, hasattr(NS, "c")
# userdict
d = UserDict(a=x); d["b"] = 2; return d["a"] * d["b"] + 1, len(d), list(d), "a" in d
# userdict outside
return x * UD["a"] + 1, list(UD.items())
# userlist
xs = UserList([1, 2]); xs.append(3); return x * sum(xs) + 1, xs[1:], xs + [1]
# userlist outside
return x * UL[1] + len(UL), list(UL)
# userdict sub
d = UDict({"a": x}); return d["a"] + 1, d.get("z", 3)
# chainmap
c = ChainMap({"a": 1}, {"a": 2, "b": x}); return c["b"] * c["a"] + 1, list(c), c.new_child({"q": 1})["q"], dict(c)["a"]
# chainmap outside
return x * CM["b"] + 1
# single
return sd(3, x) + sd("ab", x) + sd([1], x) + sd(x, x) + sd(2.5, x)
# single method
return SDM().f(3, x) + SDM().f("a", x)
# total
return x * (TO(2) >= TO(1)) + 1, TO(1) > TO(2), max(TO(1), TO(3)).v, sorted([TO(2), TO(1)])[0].v
# cached method
return x * CMO.f(3) + CMO.g(2)[0]
# cached prop
c = CacheM(); return x * c.h + c.h
# cached prop outside
return x * CMO.h + CMO.t
# cached call
return x * cached_fn(2) + 1
# dc replace
d = dataclasses.replace(ODC(1), b=3); return x * d.b + 1
# dc replace t
d = dataclasses.replace(Nest(ODC(1), x), t=x * 2); return d.t + 1
# dc asdict
return x * dataclasses.asdict(Nest(ODC(1, 2)))["c"]["b"] + 1
# dc asdict t
return dataclasses.asdict(Nest(ODC(1, 2), x))["t"] + 1
# dc astuple
return x * dataclasses.astuple(ODC(1, 2))[1] + 1
# dc fields
return x * len(dataclasses.fields(ODC)) + 1, [f.name for f in dataclasses.fields(ODC(1))], [f.default for f in dataclasses.fields(ODC)]
# dc fields get
d = Nest(ODC(1), x); return sum(getattr(d, f.name) for f in dataclasses.fields(d) if f.name == "t") + 1
# dc frozen
d = FDC(a=2)
try: d.a = 3
except dataclasses.FrozenInstanceError as e: return x * d.a + 1, str(e)
# dc order
return x * (ODC(1) < ODC(2)) + 1, sorted([ODC(2), ODC(1)]), ODC(1) == ODC(1), repr(ODC(1))
# dc is
return x * dataclasses.is_dataclass(ODC) + 1
# dc hash
return x * {FDC(a=1): 3}[FDC(a=1)] + 1
# nt
n = NT(x); return n.a * n.b + 1, n._replace(b=3).b, n._asdict()["b"], NT._fields, NT._make([1, 2])
# td
t = TD(a=2, b=x); return t["b"] * t["a"] + 1
# proto
return x * isinstance(OBJ, HasM) + 1, isinstance(3, HasM), issubclass(O, HasM)
# generic
return Box[torch.Tensor](x).v + 1, Box(2).v
# typing use
y = typing.cast(torch.Tensor, x); return y * 2 + 1, typing.get_origin(list[int]) is list, typing.get_args(dict[str, int])
# abcs
return x * Impl().f() + isinstance(Virt(), Base), issubclass(Virt, Base)
# abc fails
try: Base()
except TypeError as e: return x * 2 + 1, str(e)
# sig bind
b = inspect.signature(target).bind(1, c=3); b.apply_defaults(); return x * b.arguments["b"] + b.kwargs.get("c", 0)
# sig params
return x * len(inspect.signature(target).parameters) + 1, [p.name for p in inspect.signature(target).parameters.values() if p.default is not p.empty]
# inspect more
return x * inspect.isfunction(target) + 1, inspect.isclass(O), inspect.ismethod(OBJ.m), inspect.getfullargspec(target).args, inspect.isgeneratorfunction(target)
# attrgetter
return x * operator.attrgetter("a")(OBJ) + 1, operator.attrgetter("a", "m")(OBJ)[0], operator.attrgetter("b.shape")(NS)
# itemgetter
return x * operator.itemgetter(1)([1, 2]) + 1, operator.itemgetter(0, 2)("abc"), max([(1, 2), (0, 3)], key=operator.itemgetter(1))
# methodcaller
return operator.methodcaller("mul", 2)(x) + 1, operator.methodcaller("m", k=2)(OBJ)
# getters outside
return x * AG(OBJ) + MC(x), IG([1, 2])
# it chain
return sum(itertools.chain([x], (x * 2,), itertools.chain.from_iterable([[x]]))) + 1
# it accumulate
return list(itertools.accumulate([x, x, x]))[-1] + 1, list(itertools.accumulate([1, 2], initial=5)), list(itertools.accumulate([1, 2, 3], operator.mul))
# it batched
return x * len(list(itertools.batched([1, 2, 3], 2))) + 1 if hasattr(itertools, "batched") else x * 2 + 1
# it batched words
out = []
for fn in (lambda: list(itertools.batched([1, 2, 3], 2, strict=False)), lambda: list(itertools.batched([1, 2, 3], 2, strict=True)), lambda: itertools.batched([1], 0), lambda: itertools.batched(3, 1), lambda: list(itertools.batched(iter("abcd"), n=3))):
    try: out.append(fn() if hasattr(itertools, "batched") else 0)
    except Exception as e: out.append((type(e).__name__, str(e)))
return x + 1, out
# partials
f = functools.partial(torch.add, alpha=2); return f(x, x) + 1, functools.partial(OBJ.m, k=2)(), functools.partial(int, base=2)("10")
# partial method
return PM().g(x) + 1
# reduces
return functools.reduce(operator.add, [x, x, x]) + 1, functools.reduce(lambda a, b: a * b, [1, 2], 3)
# wraps inside
def deco(f):
    @functools.wraps(f)
    def g(*a): return f(*a) * 2
    return g
@deco
def h(v): "doc"; return v + 1
return h(x), h.__name__, h.__doc__
# ctx suppress
with contextlib.suppress(ValueError): raise ValueError
return x * 2 + 1
# ctx manager
with mgr(2) as k, contextlib.nullcontext(3) as n: return x * k + n
# exit stack
out = []
with contextlib.ExitStack() as s:
    k = s.enter_context(mgr(2)); s.callback(out.append, 1)
    y = x * k
return y + len(out)
# ctx decorator
@mgr(1)
def g(v): return v + 1
return g(x) * 2
# copyreg use
return x * 2 + 1, copyreg.dispatch_table is not None
# counter
c = collections.Counter("aab"); c.update("b"); return x * c["a"] + 1, c.most_common(1), c + c, sum(c.values()), c.total(), c - collections.Counter("a")
# defaultd
d = collections.defaultdict(list); d["a"].append(x); return d["a"][0] + 1, dict(d).keys() == {"a"}
# ordered
d = collections.OrderedDict(a=1, b=2); d.move_to_end("a"); return x * d.popitem(last=False)[1] + 1, list(d)
# types use
return x * isinstance(target, types.FunctionType) + 1, types.MethodType(O.m, OBJ)(), isinstance(OBJ.m, types.MethodType)
# logging use
logging.getLogger("q").info("a %s", 1); return x * 2 + 1
# dict ops
d = {"a": 1} | {"b": 2}; d |= {"c": 3}; return x * d["c"] + 1, d.keys() & {"a"}, d.items() >= {("a", 1)}, list(reversed(d)), dict.fromkeys("ab", 0), d.setdefault("q", 9), d.pop("a"), d.popitem()
# list ops
xs = [3, 1, 2]; xs.sort(key=lambda v: -v); xs[1:2] = [7, 8]; del xs[0]; return x * xs[0] + 1, xs.index(8), xs.count(7), xs[::-1], [1] * 3, xs.copy(), [*xs, 1], xs.insert(0, 1), xs.remove(7)
# range ops
r = range(0, 10, 3); return x * r[1] + len(r), 3 in r, r.index(6), r[::-1], list(reversed(r)), r == range(0, 12, 3), r.start
# slice ops
s = slice(0, 2); return x[s] * 2 + 1, s.indices(5), s.stop
# sorted more
return x * 2 + 1, sorted({"b": 1, "a": 2}.items(), key=lambda p: p[1], reverse=True), min([3, 1], default=0), max([], default=None), any([0, 1]), all([]), sum([[1], [2]], []), divmod(7, 2), round(2.567, 1), abs(-2), pow(2, 3, 5), list(enumerate("a", 1)), list(map(lambda a, b: a + b, [1], [2])), list(filter(None, [0, 1]))
# idx col
i = torch.tensor(1); return x[:, i] * 2 + 1
# idx arg
i = x.argmax() % 2; return x[i] * 2, x[:, i] + 1, x[i, i] * 3
# idx set
y = x.clone(); i = (x.sum() * 0).long(); y[i] = 5.0; return y + 1
# idx set tensor
y = x.clone(); i = (x.sum() * 0).long(); y[i] = x[1]; return y + 1
# idx set pair
y = x.clone(); i = (x.sum() * 0).long(); y[i, i] = 5.0; y[0, i] = 7; y[i, 0] = 9; return y + 1
# idx set col
y = x.clone(); i = (x.sum() * 0).long(); y[:, i] = 5.0; return y + 1
# context get
return x * CV.get() + 1, CV.name
# idx iadd
y = x.clone(); i = (x.sum() * 0).long(); y[i] += 1; return y + 1
# heap
h = [3, 1, 2]; heapq.heapify(h); heapq.heappush(h, 0); return x * heapq.heappop(h) + heapq.nlargest(2, h)[0], heapq.nsmallest(1, h), heapq.heappushpop(h, 9)
# heap tuples
h = []; heapq.heappush(h, (2, "b")); heapq.heappush(h, (1, "a")); return x * heapq.heappop(h)[0] + 1
# bisects
xs = [1, 3, 5]; bisect.insort(xs, 4); return x * bisect.bisect(xs, 3) + bisect.bisect_left(xs, 3), bisect.bisect([1, 2], 2, key=lambda v: v)
# it product
return x * sum(a * b for a, b in itertools.product([1, 2], repeat=2)) + 1, list(itertools.permutations([1, 2, 3], 2))[:2], list(itertools.combinations("abc", 2)), list(itertools.combinations_with_replacement("ab", 2))
# it misc
return x * len(list(itertools.islice(itertools.count(1, 2), 3))) + 1, list(itertools.takewhile(lambda v: v < 2, [1, 2, 1])), list(itertools.dropwhile(lambda v: v < 2, [1, 2, 1])), list(itertools.starmap(pow, [(2, 3)])), list(itertools.compress("abc", [1, 0, 1])), list(itertools.filterfalse(None, [0, 1])), list(itertools.pairwise([1, 2, 3])), list(itertools.zip_longest([1], [1, 2], fillvalue=0)), list(itertools.repeat(1, 2)), [next(c) for c in [itertools.cycle([1, 2])] for _ in range(3)]
# it tee
a, b = itertools.tee([1, 2]); return x * sum(a) + sum(b)
# it groupby
return x * 2 + 1, [(k, list(g)) for k, g in itertools.groupby([1, 1, 2])], {k: len(list(g)) for k, g in itertools.groupby("aab", key=str.upper)}
# deq
d = collections.deque([1, 2], maxlen=2); d.append(3); d.rotate(1); d.appendleft(0); return x * d[0] + len(d), list(d), d.maxlen
# thread name
return x * 2 + 1, threading.current_thread().name
''')

# The codes of the breaks behind the name.
BREAKING = table(r'''
# arr: call_of_unknown_function
a = array.array("f", [1, 2]); a.append(3); return x * a[2] + len(a)
# arr outside: call_of_unknown_function
return x * ARR[1] + len(ARR), list(ARR)
# context set: call_of_unknown_function
t = CV.set(5); y = x * CV.get() + 1; CV.reset(t); return y, CV.get()
# cached method own: call_of_unknown_function
c = CacheM(); return x * c.f(3) + 1
# cached inside: call_of_unknown_function
@functools.cache
def g(n): return n + 1
return x * g(2) + g(2)
# cached tensor arg: call_of_unknown_function
@functools.lru_cache
def g(t): return t * 2
return g(x) + g(x)
# dc make dc: call_of_unknown_function
C = dataclasses.make_dataclass("C", ["a", ("b", int, 3)]); return x * C(2).b + 1
# weak callback: call_of_unknown_function
r = weakref.ref(OBJ, print); return x * r().a
# weak proxy: attribute_unknown call_of_unknown_function
p = weakref.proxy(OBJ); return x * p.a + 1
# lock: call_of_unknown_function
l = threading.Lock()
with l: y = x * 2
return y + 1
# rlock: call_of_unknown_function
with threading.RLock(): y = x * 2
return y + 1
# thread local: call_of_unknown_function
t = threading.local(); t.a = 2; return x * t.a + 1
# queue use: call_of_unknown_function
q = queue.Queue(); q.put(1); return x * q.get() + 1
# types new: call_of_unknown_function
C = types.new_class("C", (), {}, lambda ns: ns.update(a=2)); return x * C.a + 1
# heaps without items: argument_mismatch call_of_unknown_function class_definition opaque_iterator
class Own(list): pass
told = []
for take in (heapq.heappop, lambda h: heapq.heapreplace(h, 1), lambda h: heapq.heappushpop(h, 2)):
    for heap in ([], Own(), [3]):
        try: told.append((take(heap), heap))
        except IndexError as e: told.append(str(e))
return x + 1, told
# idx ellipsis: item
i = (x.sum() * 0).long(); return x[..., i] + 1, x[None, i] + 1
# idx slice: item
i = (x.sum() * 0).long(); return x[i:] + 1
# heap merge: call_of_unknown_function
return x * len(list(heapq.merge([1, 3], [2]))) + 1
# namespace: call_of_unknown_function
n = types.SimpleNamespace(a=1); n.b = x * 2; return n.b + n.a, vars(n)["a"], n == types.SimpleNamespace(a=1)
# graph sort: call_of_unknown_function
g = graphlib.TopologicalSorter({"a": {"b"}, "b": {"c"}}); return x * 2 + 1, list(g.static_order())
# cmp key: call_of_unknown_function
return x * 2 + 1, sorted([3, 1, 2], key=functools.cmp_to_key(lambda a, b: b - a))
# dc make: argument_mismatch
d = DC(x, k=4); d.xs.append(1); return d.a * d.k + d.q, len(d.xs), d.n
# op inplace: call_of_unknown_function
y = x * 2; y = operator.iadd(y, 1); return operator.getitem(y, 0), operator.contains([1], 1), operator.truth([]), operator.index(3), operator.is_(1, None), operator.matmul(x, x.T), operator.length_hint([1])
# ctx closing: class_definition
class C:
    closed = False
    def close(self): self.closed = True
c = C()
with contextlib.closing(c): y = x * 2
return y + c.closed
# type call: class_definition
C = type("C", (O,), {"z": 2}); return x * C(1).z + 1
# prop outside: attribute_unknown class_definition
class C:
    @property
    def p(self): return 2
return x * C().p + 1, C.p.fget(C())
# round with its names: class_definition
class R:
    def __round__(s, n=7): return n
r, n = R(), len(x.shape) * 1.25
return x * round(n), round(2.567, ndigits=1), round(number=2.5), round(7.5, ndigits=None), round(r), round(r, None), round(r, ndigits=2), round(n, ndigits=1)
# warn use: call_of_unknown_function
with warnings.catch_warnings(record=True) as w:
    warnings.simplefilter("always"); warnings.warn("a")
return x * 2 + len(w)
''')


@pytest.mark.parametrize("name,text", ONE_GRAPH, ids=[name for name, _ in ONE_GRAPH])
def test_one_graph(name: str, text: str) -> None:
    # From 3.13 on functools keeps a weak reference there.
    weak = name == "single method" and sys.version_info >= (3, 13)
    check(text, SETUP, graphs=None if weak else 1)


@pytest.mark.parametrize("name,text", BREAKING, ids=[name for name, _ in BREAKING])
def test_breaking(name: str, text: str) -> None:
    check(text, SETUP, graphs=None)
    wanted = set(name.partition(": ")[2].split())
    assert codes_of(text, SETUP) == wanted
