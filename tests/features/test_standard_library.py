"""The standard library as people use it inside of compiled functions."""

from __future__ import annotations

import threading

import pytest
import torch

import dynamo
from tests.features.harness import make_tests, table

SETUP = """
import array, bisect, collections, contextlib, copy, datetime, fractions, functools, heapq, io, itertools, logging, math, operator, os, random, re, statistics, string, struct, time, types, typing, warnings, weakref

COUNTS = collections.Counter()
def bump(v):
    COUNTS["bump"] += 1
    return v
@functools.lru_cache
def plain_cache(n): COUNTS["plain"] += 1; return n * 2
@functools.lru_cache(maxsize=2, typed=True)
def typed_cache(n): COUNTS["typed"] += 1; return (n, type(n).__name__)
@functools.cache
def fib(n): COUNTS["fib"] += 1; return n if n < 2 else fib(n - 1) + fib(n - 2)
@functools.singledispatch
def show(v): return "object"
@show.register(int)
def _(v): return "int"
@show.register(list)
def _(v): return "list" + "".join(show(w) for w in v)
@show.register
def _(v: torch.Tensor): return "tensor"
class Res:
    def __init__(self, log): self.log = log
    def close(self): self.log.append("closed")
    def __enter__(self): self.log.append("in"); return self
    def __exit__(self, *a): self.log.append(("out", a[0] and a[0].__name__)); return False
class Node:
    def __init__(self, v): self.v = v; self.next = None; self.kids = []
    def __eq__(self, o): return isinstance(o, Node) and self.v == o.v
    __hash__ = object.__hash__
class Copied:
    def __init__(self, v): self.v = v
    def __copy__(self): return Copied(("c", self.v))
    def __deepcopy__(self, memo): return Copied(("d", copy.deepcopy(self.v, memo)))
class UD(collections.UserDict):
    def __setitem__(self, k, v): super().__setitem__(k, v * 2)
class UL(collections.UserList):
    pass
LOGGER = logging.getLogger("table"); LOGGER.propagate = False
LOGGER.addHandler(logging.NullHandler())
os.environ["FEATURE_TABLE"] = "on"
"""

ONE_GRAPH = table('''
# ordered dict copied deeply
d = copy.deepcopy(collections.OrderedDict(a=1, b=[2]))
d["b"].append(3)
return x + len(d["b"]), d
# islice
c = itertools.count(); a = list(itertools.islice(c, 3)); b = next(c); it = iter(range(10)); d = list(itertools.islice(it, 1, 6, 2)); e = next(it); f = list(itertools.islice([1, 2, 3], None)); g = list(itertools.islice("abc", 5, 9)); return x + 1, a, b, d, e, f, g
# types of iterators
return x + 1, isinstance(itertools.chain(), itertools.chain), type(itertools.count()).__name__, iter(itertools.cycle("a")) is not None
# math
return x + 1, [getattr(math, n)(0.5) for n in ("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "exp", "expm1", "log", "log1p", "log2", "log10", "sqrt", "erf", "erfc", "gamma", "lgamma", "fabs", "floor", "ceil", "trunc", "degrees", "radians", "cbrt", "exp2")], math.atan2(1, 2), math.hypot(3, 4), math.dist([1, 2], [3, 4]), math.fmod(7, 3), math.modf(2.5), math.frexp(8.0), math.ldexp(0.5, 4), math.copysign(1, -0.0), math.isclose(1, 1 + 1e-10), math.gcd(12, 18), math.lcm(4, 6), math.comb(5, 2), math.perm(5, 2), math.factorial(5), math.isqrt(17), math.fsum([0.1] * 10), math.prod([2, 3], start=4), math.remainder(7, 3), math.log(8, 2), math.nextafter(1, 2), math.ulp(1.0), math.inf, math.nan != math.nan, math.tau
# math errors
log = []
for g in (lambda: math.sqrt(-1), lambda: math.log(0), lambda: math.factorial(-1), lambda: math.exp(1000), lambda: math.sqrt("a")):
    try: g()
    except (ValueError, OverflowError, TypeError) as e: log.append((type(e).__name__, str(e)))
return x + 1, log
# formats
v = 3.14159; w = 10; return x + 1, f"{v=}", f"{v:{w}.{2}f}", f"{v!r:>{w}}", f"{w:#x}|{w:+d}|{w:08b}|{w:,}|{1e6:e}|{0.5:%}", f"{'a':*^5}", f"{[1, 'b']}", f"{ {'k': (1,)} }", f"{None}{True}", "{0[a]} {1.real} {}".format({"a": 1}, 2) if False else "", "{a!s:>4}".format(a="q"), "%-5s|%+.2e|%x|%%|%(k)s" % {"k": 1} if False else "%-5s|%+.2e|%x|%%" % ("a", 1234.5, 255), "%(k)s" % {"k": [1]}, "%r" % ("q",), f"{x.shape}", f"{x.dim()!r}", f"{len([1]):>3}"
# string methods
s = "The quick fox"; return x + 1, s.split(), s.rsplit(None, 1), s.splitlines(), s.center(20, "*"), s.ljust(15) + "|", s.rjust(15), s.casefold(), s.swapcase(), s.capitalize(), s.index("q"), s.rfind("q"), s.endswith(("fox", "dog")), s.removeprefix("The "), s.removesuffix("fox"), s.translate(str.maketrans("aeiou", "12345")), s.expandtabs(), s.isalpha(), s.isascii(), s.istitle(), s.isspace(), s.encode("utf-16")[:4], s.rpartition(" "), s.lstrip("T"), s.zfill(20), "a,b".split(","), ",".join(map(str, [1, 2])), s[::-1], s * 2, "q" in s, sorted(s)[:3], list("ab"), "%s" % s, s.format(), s.count("k", 2, 9), min(s), string.ascii_lowercase[:3], string.capwords("a b"), "é".isidentifier(), "12".isnumeric(), "ab".maketrans("a", "b")
# string errors
log = []
for g in (lambda: "a".index("b"), lambda: "a" * "b", lambda: "%d" % "a", lambda: "{}".format(), lambda: "{a}".format(), lambda: "a"[3], lambda: "é".encode("ascii"), lambda: ",".join([1]), lambda: "a".split(""), lambda: f"{3:q}", lambda: "%s %s" % (1,), lambda: int("x", 16)):
    try: g()
    except Exception as e: log.append((type(e).__name__, str(e)))
return x + 1, log
# template
return x + 1, string.Template("$a and ${b}").substitute(a=1, b="q")
# bytes and bytearray
b = bytearray(b"abc"); b.append(100); b[0] = 65; b += b"e"; b.extend([102]); c = b"a-b".split(b"-"); return x + 1, b, bytes(b), b[1:3], len(b), list(b[:2]), c, b"x".hex(), bytes.fromhex("6162"), b"%d" % 3, b"ab".decode(), int.from_bytes(b"ab", "big"), (5).to_bytes(2, "little"), b"ab" + b"c", b"abc".find(b"c"), bytes([1, 2]), bytes(3), b"a" in b"ab", bytes("q", "ascii")
# memoryview
m = memoryview(b"abcd"); return x + 1, m[1], bytes(m[1:3]), len(m), m.tolist(), m.nbytes
# random module state
random.seed(5); a = random.random(); st = random.getstate(); b = random.randint(1, 9); random.setstate(st); return x + 1, a, b, random.randint(1, 9), random.choice([1, 2, 3]), random.sample(range(9), 3), random.uniform(0, 1), random.shuffle([1, 2])
# chain map
m = collections.ChainMap({"a": 1}, {"a": 2, "b": 3}); m["c"] = 4; n = m.new_child({"a": 9}); return x + 1, m["a"], m["b"], n["a"], dict(m), len(m), sorted(m), m.parents["a"], "z" in m, m.maps[0], m.get("z", 5)
# counter
c = collections.Counter("abca"); d = collections.Counter(a=1, z=2); c.update("aa"); c.subtract({"b": 3}); return x + 1, c, c + d, c - d, c & d, c | d, +c, c.most_common(2), sorted(c.elements()), c.total(), c["nope"], c == d, list(collections.Counter([1, 1]).items())
# ordered dict
o = collections.OrderedDict([("a", 1), ("b", 2), ("c", 3)]); o.move_to_end("a"); o.move_to_end("c", last=False); k = o.popitem(last=False); return x + 1, o, k, list(reversed(o)), o == collections.OrderedDict(a=1, b=2), o == {"a": 1, "b": 2}, list(o.items()), collections.OrderedDict.fromkeys("ab", 0), o | {"z": 1}, repr(o)
# user dict and list
d = UD(a=1); d["b"] = 2; l = UL([1, 2]); l.append(3); l += [4]; return x + 1, dict(d), d["b"], len(d), "a" in d, l, list(l), l[1:], d.data, isinstance(d, collections.abc.MutableMapping), l == [1, 2, 3, 4], sorted(d.items())
# defaultdict
log = []
def make(): log.append(1); return len(log)
d = collections.defaultdict(make, a=9); a = d["q"]; b = d["q"]; c = d.get("n"); e = "n" in d; d["a"] += 1; f = collections.defaultdict(lambda: collections.defaultdict(list)); f[1][2].append(3); g = collections.defaultdict(int)
for ch in "aab": g[ch] += 1
return x + 1, d, a, b, c, e, log, f[1][2], dict(g), d.default_factory is make, d.copy()
# defaultdict without a factory
try: collections.defaultdict()["a"]
except KeyError as e: return x + 1, str(e)
# bisect
a = [1, 3, 5]; bisect.insort(a, 4); bisect.insort_left(a, 3); return x + 1, a, bisect.bisect(a, 3), bisect.bisect_left(a, 3), bisect.bisect_right([(1, 2)], 1, key=lambda v: v[0])
# statistics
return x + 1, statistics.mean([1, 2, 3, 4]), statistics.median([3, 1, 2]), statistics.fmean([1.5, 2.5]), statistics.stdev([1.0, 2.0, 4.0]), statistics.variance([1, 2, 4]), statistics.mode("aab"), statistics.quantiles([1, 2, 3, 4])
# fractions
f = fractions.Fraction(1, 3); return x + float(f + fractions.Fraction(1, 6)), f * 3, f.numerator, str(f - 1), f ** 2, f // 1, fractions.Fraction("0.5"), fractions.Fraction(0.75).limit_denominator(2), f < 1, round(f, 1)
# lru cache
a = plain_cache(3); b = plain_cache(3); c = typed_cache(1); d = typed_cache(1.0); e = typed_cache(1); return x + 1, a, b, c, d, e, COUNTS["plain"], COUNTS["typed"]
# recursive cache
return x + fib(10), COUNTS["fib"]
# reduce partial and wraps
p = functools.partial(int, base=2); m = functools.partial(p, "11"); return x + 1, p("101"), m(), functools.reduce(operator.mul, [1, 2, 3]), functools.reduce(lambda a, b: b, [], 4), p.func is int, p.keywords, m.args, functools.wraps(bump)(lambda v: v).__name__
# singledispatch
return x + 1, show(1), show("a"), show([1, "b"]), show(True), show(x), show.dispatch(int)(3), sorted(k.__name__ for k in show.registry)
# suppress and null context
with contextlib.suppress(ZeroDivisionError): 1 // 0
with contextlib.nullcontext(5) as n: t = x + n
return t
# exit stack
log = []
with contextlib.ExitStack() as s:
    r = s.enter_context(Res(log)); s.callback(log.append, "cb"); s.push(Res(log)); s.push(lambda *a: log.append(("f", a[0])))
    kept = s.pop_all()
log.append("between"); kept.close(); return x + 1, log
# exit stack that swallows
log = []
with contextlib.ExitStack() as s:
    s.push(lambda *a: True); s.callback(log.append, 1); s.enter_context(Res(log)); raise KeyError(1)
return x + 1, log
# closing and context decorator
log = []
@contextlib.contextmanager
def tagged(n):
    log.append(n); yield; log.append("-" + n)
@tagged("d")
def g(v): log.append("body"); return v + 1
with contextlib.closing(Res(log)) as r: log.append(r is not None)
return g(x), log
# redirected output
out = io.StringIO()
with contextlib.redirect_stdout(out): print("inside", 3)
print("outside"); return x + 1, out.getvalue()
# printing
print("a", 1, 2.5, None, sep="-", end="!\\n"); print(); print([1, "b"], (1,), {"k": 2}); print(f"{x.shape}", x.dtype); print("e", flush=True); return x + 1
# copy
n = Node(1); n.next = n; n.kids.append([1]); a = copy.copy(n); b = copy.deepcopy(n); l = [[1]] * 2; m = copy.deepcopy(l); return x + 1, a.next is n, a.kids is n.kids, b.next is b, b.kids == n.kids, b.kids is n.kids, m[0] is m[1], copy.copy(Copied(1)).v, copy.deepcopy(Copied([1])).v, copy.copy({1: 2}), copy.copy((1,)), copy.deepcopy({"a": (1, [2])}), copy.copy({1}), copy.copy(None)
# deepcopy with a memo
l = [1]; memo = {}; a = copy.deepcopy([l, l], memo); return x + 1, a, a[0] is a[1], len(memo) > 0
# deepcopy of tensors
d = {"t": x, "u": [x]}; c = copy.deepcopy(d); return c["t"] + 1, c["t"] is c["u"][0], c["t"] is x
# logging in order
LOGGER.warning("one %d", 1); print("p"); LOGGER.error("two %s", "q"); LOGGER.info("quiet"); return x + 1, LOGGER.isEnabledFor(logging.INFO), LOGGER.level, LOGGER.name
# logger made in the frame
g = logging.getLogger("table"); g.warning("w"); return x + 1, g is LOGGER
# simple namespace
n = types.SimpleNamespace(a=1); n.b = x; del n.a; return n.b + 1, vars(n), n
# array
a = array.array("i", [1, 2]); a.append(3); return x + 1, a[2], len(a), a.tolist(), a.typecode
# hash and id
a = [1]; return x + 1, hash((1, "a")) == hash((1, "a")), hash(3), hash(1.5), id(a) == id(a), id(a) == id([2]), hash("a") == hash("a"), hash(None) == hash(None), hash(frozenset([1, 2])) == hash(frozenset([2, 1]))
# hash of a list
try: hash([])
except TypeError as e: return x + 1, str(e)
# environment
return x + 1, os.environ["FEATURE_TABLE"], os.environ.get("NOT_THERE_AT_ALL"), "FEATURE_TABLE" in os.environ, os.getenv("FEATURE_TABLE", "z")
# paths
return x + 1, os.path.join("a", "b"), os.path.basename("/q/w.txt"), os.path.splitext("a.b"), os.sep
# typing
return x + 1, typing.cast(int, "a"), typing.get_type_hints(bump), typing.Optional[int] == typing.Union[int, None], typing.get_origin(typing.List[int]) is list
# typing: types with parameters
from typing import Any, Callable, Dict, List, Literal, Optional, Tuple, AnyStr, Union
return x + 1, List[int], Dict[str, List[int]], Tuple[int, ...], Optional[torch.Tensor], Union[int, str, None], Callable[[int], str], Literal["a"], List[AnyStr][str], List[AnyStr].__parameters__, {List[int]: 1}[List[int]], Optional[int] in (List[int], Optional[int]), List[int] != List[str], str(List[Any])
# typing: types with wrong parameters
from typing import Dict
try: Dict[int]
except TypeError as e: return x + 1, str(e)
# typing: tested by TorchScript
from typing import Dict, List, Optional, Tuple, Union
return x + 1, torch.jit.isinstance([x], List[torch.Tensor]), torch.jit.isinstance({"a": 1}, Dict[str, int]), torch.jit.isinstance([1], Union[List[str], List[int]]), torch.jit.isinstance(None, Optional[List[int]]), torch.jit.isinstance((x, 1), Tuple[torch.Tensor, int]), torch.jit.isinstance(x, (List[int], torch.Tensor))
# string io
s = io.StringIO(); s.write("ab"); s.write("c"); return x + 1, s.getvalue()
# dict views: special methods
d = {"a": 1, "b": x}; o = collections.OrderedDict(c=3); k, v, i = d.keys(), d.values(), d.items(); d["e"] = 5
try: k.__contains__([])
except TypeError as error: e = str(error)
return x + 1, e, k.__contains__("e"), k.__contains__("z"), i.__contains__(("a", 1)), i.__contains__("a"), k.__len__(), v.__len__(), i.__len__(), list(k.__iter__()), list(v.__reversed__()), list(i.__iter__()), o.keys().__contains__("c"), list(o.items().__reversed__()), o.values().__len__(), list(map(k.__contains__, "aq"))
# dict views
d = {"a": 1, "b": 2}; k = d.keys(); v = d.values(); i = d.items(); d["c"] = 3; return x + 1, list(k), list(v), ("c", 3) in i, k & {"a"}, k - {"a"}, k | {"z"}, len(v), sorted(i), k == {"a", "b", "c"}, k.isdisjoint({"q"}), list(reversed(k)), k.mapping["a"]
# dict mutation while iterating
d = {"a": 1}
try:
    for k in d: d[k + "x"] = 1
except RuntimeError as e: return x + 1, str(e)
# list mutation while iterating
l = [1, 2, 3]; seen = []
for v in l:
    seen.append(v)
    if v < 3: l.append(v + 5)
    if len(l) > 8: break
return x + 1, seen, l
# set mutation while iterating
s = {1}
try:
    for v in s: s.add(v + 1)
except RuntimeError as e: return x + 1, str(e)
# sets
a = {1, 2, 3}; b = frozenset([2, 3, 4]); a.update([9], (8,)); a.difference_update({8}); a.intersection_update({1, 2, 9}); a.symmetric_difference_update({2, 5}); return x + 1, a, a | b, b - a, a ^ b, a <= b, a.issubset(a), a > {1}, b.isdisjoint({7}), sorted(a.union([7])), a.copy() == a, {1} == frozenset([1]), len(a), max(b)
# list methods
l = [3, 1, 2]; l.sort(key=lambda v: -v, reverse=True); m = l * 2; m[::2] = [0, 0, 0]; del m[1:3]; l[5:] = [7]; l[:0] = "ab"; return x + 1, l, m, l.index(1), [1, 2] < [1, 3], [1] * 0, l[-2:], [[0]] * 2, l == l[:], sorted([(1, "b"), (1, "a")], key=operator.itemgetter(1)), list.__len__(l), l.copy() is l, min(l[2:]), [*l, *m]
# list errors
log = []
for g in (lambda: [].pop(), lambda: [1].remove(2), lambda: [1].index(3), lambda: [1][5], lambda: [1, 2].pop(7), lambda: [][0], lambda: sorted([1, "a"]), lambda: max([]), lambda: sum(["a"]), lambda: [1, 2, 3].__setitem__(slice(None, None, 2), [1]), lambda: min(), lambda: reversed(3), lambda: range(1, 2, 0), lambda: [1][1:2:0], lambda: zip(3), lambda: enumerate(3), lambda: dict([1]), lambda: dict([(1, 2, 3)]), lambda: {}.popitem(), lambda: {1}.remove(2), lambda: set().pop(), lambda: chr(-1), lambda: ord("ab"), lambda: int([]), lambda: float("q"), lambda: divmod(1, 0), lambda: 1 % 0, lambda: 2.0 // 0, lambda: round("a"), lambda: abs("a"), lambda: pow(2, -1, 4), lambda: (1).nope, lambda: isinstance(1, 2), lambda: tuple(5), lambda: 1 << -1, lambda: {[]: 1}, lambda: next(iter([])), lambda: len(5), lambda: "a".join(3), lambda: getattr(1, 2), lambda: all(3), lambda: int("1.5"), lambda: bytes([300])):
    try: g(); log.append(None)
    except Exception as e: log.append((type(e).__name__, str(e)))
return x + 1, log
# numbers
return x + 1, 7 // -2, -7 % 3, 7.5 // 2, divmod(-7, 2), 2 ** -1, 1 / 3, round(2.5), round(-1.5), round(1234, -2), (2.5).as_integer_ratio(), (255).bit_count(), int("ff", 16), float("inf") > 1, 1e308 * 10, complex(1, 2) * 2j, abs(3 + 4j), (1.5).hex(), float.fromhex("0x1.8p+0"), True + True, 10 ** 20, -2 ** 2, 5 & ~1, int(-2.7), (3).real, (1 + 2j).conjugate(), 1_000, 0.1 + 0.2, hash(2 ** 61), 1 if 0.0 else 2, 0 == 0.0 == False, (5).__add__(3), int.__mul__(2, 3), max(1, 2.5), sum([0.1] * 3), pow(2, 10, 7), bool("a"), bin(-5), format(255, "b")
# slices
s = slice(1, None, 2); return x[s], s.indices(7), s == slice(1, None, 2), [1, 2, 3, 4][s], s.step, repr(s), "abcdef"[s], (1, 2, 3)[::-1], range(10)[s], list(range(10)[-3:])
# ranges
r = range(1, 10, 3); return x + 1, len(r), r[1], 4 in r, r.index(7), list(reversed(r)), r == range(1, 11, 3), r.start, hash(r) == hash(range(1, 10, 3)), r[1:], sum(r), r.count(4), bool(range(0)), max(r)
# lambdas and sort stability
return x + 1, sorted(["b", "A", "c"], key=str.lower), sorted([("a", 2), ("b", 1), ("c", 2)], key=lambda t: t[1], reverse=True), list(map(lambda a, b: a + b, [1, 2], [3, 4, 5])), list(filter(str.isdigit, "a1b2")), max("abc", key=ord), any(v > 2 for v in [1, 3]), dict(sorted({"b": 1, "a": 2}.items())), list(enumerate("ab", start=5)), min([3, 1], default=0), max([], default=7), sum([[1], [2]], [])
''')

ANY_GRAPHS = table('''
# a tensor is no bound of islice
out = []
for bounds in ((x,), (x, 3), (0, 4, x), (x.sum().long(),)):
    try: out.append(list(itertools.islice(range(7), *bounds)))
    except Exception as e: out.append((repr(e), repr(e.__context__)))
return x + 1, out
# time never constant
t = time.time(); u = time.perf_counter(); v = x + 1; return v * 2, time.time() - t < 5, time.perf_counter() >= u
# now
t = datetime.datetime.now(); v = x + 1; return v * 2, (datetime.datetime.now() - t).total_seconds() < 5
# environment written
os.environ["FEATURE_WRITTEN"] = str(len(os.environ.get("FEATURE_WRITTEN", "")) + 1); v = x + 1; return v * 2, os.environ.pop("FEATURE_WRITTEN")
# source of a function
import inspect
v = x + 1; return v * 2, inspect.signature(bump).parameters["v"].name, inspect.isfunction(bump)
# changed directory
v = x + 1
with contextlib.chdir("/"): n = os.getcwd()
return v * 2, n
# exit stack with a break
log = []
with contextlib.ExitStack() as s:
    s.enter_context(Res(log)); s.callback(log.append, 2); v = x + 1; dynamo.graph_break(); v = v * 2
return v + 1, log
# cache and break
a = plain_cache(11); v = x + 1; dynamo.graph_break(); b = plain_cache(11); return v * 2, a, b, COUNTS["plain"]
# random and break
random.seed(1); a = random.random(); v = x + 1; dynamo.graph_break(); return v * 2, a, random.random()
# iterators and break
it = itertools.chain([1], [2, 3]); a = next(it); c = itertools.count(5); next(c); p = itertools.product("ab", [1, 2]); next(p); t = itertools.tee([1, 2]); next(t[0]); g = itertools.groupby("aab"); k, gg = next(g); z = itertools.cycle([1, 2]); next(z); s = itertools.islice(range(9), 1, 8, 2); next(s); q = itertools.accumulate([1, 2, 3]); next(q)
v = x + 1; dynamo.graph_break(); return v * 2, a, list(it), next(c), list(p), list(t[0]), list(t[1]), k, list(gg), [a for a, _ in g], next(z), next(z), list(s), list(q)
# recorded warnings and break
with warnings.catch_warnings(record=True) as w:
    warnings.simplefilter("always"); warnings.warn("one"); v = x + 1; dynamo.graph_break(); warnings.warn("two")
return v * 2, [str(m.message) for m in w]
# escaping iterators
return x + 1, list(itertools.islice(itertools.count(), 3)), itertools.chain([1], [2]), zip("ab", [1]), map(str, [1]), enumerate("a"), iter([1, 2])
# keys made of a comparison
key = functools.cmp_to_key(lambda a, b: b - a)
one = key(3)
return x + 1, sorted([3, 1, 2], key=key), one < key(2), one
# matches that leave
found = re.finditer("a", "banana")
next(found)
return x + 1, found
# bounds of islice
import sys
class At:
    def __init__(self, n): self.n = n
    def __index__(self): return self.n
class Bad:
    def __index__(self): raise KeyError(1)
out = []
for bounds in ((3,), (At(3),), (1, None), (None, 4), (0, 5, 2), (1, 6, At(2)), (None, None, None), (-1,), (-2,), (1.5,), (Bad(),), (-1, 3),
               (2, -1), (2, -3), (0, 4, 0), (0, 4, -1), (0, 4, Bad()), (sys.maxsize + 1,), (5, 2), (True, 3)):
    try: out.append(list(itertools.islice(range(7), *bounds)))
    except Exception as e: out.append((repr(e), repr(e.__context__)))
return x + 1, out
# tee
a, b = itertools.tee(iter([1, 2, 3])); next(a); c = list(b); return x + 1, list(a), c, len(itertools.tee([1], 3)), itertools.tee([], 0)
# groupby
g = itertools.groupby("aabbb", key=lambda c: c.upper()); return x + 1, [(k, list(v)) for k, v in g], [k for k, _ in itertools.groupby([1, 1, 2, 1])], [next(v) for _, v in itertools.groupby([3, 3, 4])]
# zip_longest
return x + 1, list(itertools.zip_longest([1, 2, 3], "a", fillvalue="-")), list(itertools.zip_longest()), next(itertools.zip_longest(itertools.count(), [1]))
# product and permutations and combinations
return x + 1, list(itertools.product("ab", repeat=2)), list(itertools.permutations([1, 2, 3], 2)), list(itertools.combinations("abc", 2)), list(itertools.combinations_with_replacement("ab", 2)), list(itertools.product()), list(itertools.permutations([1], 2)), next(itertools.combinations(range(40), 3))
# accumulate and starmap
return x + 1, list(itertools.accumulate([1, 2, 3], operator.mul, initial=10)), list(itertools.accumulate([])), list(itertools.starmap(pow, [(2, 3), (3, 2)])), list(itertools.accumulate([None, 1], lambda a, b: b)), list(itertools.accumulate([1, 2], initial=None)), list(itertools.accumulate([1, 2], func=max))
# takewhile and dropwhile and compress and filterfalse
it = iter([1, 5, 2]); a = list(itertools.takewhile(lambda v: v < 3, it)); return x + 1, a, list(it), list(itertools.dropwhile(lambda v: v < 3, [1, 5, 2])), list(itertools.compress("abc", [1, 0, True])), list(itertools.filterfalse(None, [0, 1, ""])), list(itertools.filterfalse(lambda v: v > 1, [1, 2]))
# pairwise chain cycle repeat count
c = itertools.cycle("ab"); n = itertools.count(2, 3); f = itertools.count(1.5, 0.5); it = iter([1, 2, 3, 4]); p = itertools.pairwise(it); q = next(p); r = next(it)
return x + 1, [next(c) for _ in range(5)], next(n), next(n), next(f), next(f), q, r, list(itertools.chain.from_iterable(["ab", [1]])), list(itertools.repeat(3, 2)), list(itertools.repeat(3, times=0)), list(zip(itertools.repeat(1), "ab")), list(itertools.chain())
# operator
d = {"a": [1, 2]}; operator.setitem(d, "b", 3); operator.delitem(d, "b"); return x + 1, operator.itemgetter("a")(d), operator.itemgetter(0, -1)([1, 2, 3]), operator.attrgetter("v", "next")(Node(3)), operator.attrgetter("next.v")(types.SimpleNamespace(next=Node(4))), operator.methodcaller("split", "-", maxsplit=1)("a-b-c"), operator.contains([1], 1), operator.countOf([1, 1], 1), operator.indexOf([1, 2], 2), operator.concat([1], [2]), operator.is_(d, d), operator.is_not(d, 1), operator.not_(0), operator.truth([]), operator.index(3), operator.length_hint([1, 2]), operator.xor(5, 1), operator.inv(3), operator.call(len, "abc"), operator.matmul(x, y.t()).shape
# in place operator functions
a = [1]; b = operator.iadd(a, [2]); c = operator.imul(3, 4); d = operator.ior({1}, {2}); e = operator.iconcat(a, [3]); return operator.iadd(x.clone(), 1), b is a, a, c, d, e, operator.ixor(5, 3), operator.ipow(2, 3), operator.ifloordiv(7, 2), operator.imod(7, 4), operator.ilshift(1, 2)
# regular expressions
p = re.compile(r"(\\w)(\\d+)"); m = p.search("--a12"); return x + 1, m.group(0, 2), m.start(2), [v.group() for v in p.finditer("a1 b2")], p.sub(lambda m: m.group(1), "a1b2"), re.fullmatch("a+", "aaa") is not None, re.match("b", "a"), m.re is p, m.string, re.sub(r"(a)", r"<\\1>", "banana", count=2), bool(m), re.compile("x", re.I).match("X")[0], re.escape("a.b"), m.lastindex
# deque
q = collections.deque([1, 2, 3, 4], maxlen=4); q.rotate(1); q.append(9); q.appendleft(0); q.extend([5, 6]); q.extendleft([7]); q.remove(9) if 9 in q else None; q.insert(1, 8) if len(q) < 4 else None; q[0] = 3; return x + 1, list(q), q.maxlen, q.count(3), q.index(3), q, collections.deque("ab") + collections.deque("c"), list(reversed(q)), q.popleft(), q.pop(), len(q), q == collections.deque([1]), q.copy(), bool(q), q.clear()
# deque with a limit
q = collections.deque([1, 2, 3], maxlen=4); r = [q * 2, 2 * q, q + q, q + collections.deque([4, 5]), collections.deque([4, 5]) + q, q * 0]; return x + 1, [(list(v), len(v), v.maxlen, v == q) for v in r], [v[0] for v in r[:5]], (q + q) == q * 2, r
# heapq
h = [5, 1, 4]; heapq.heapify(h); heapq.heappush(h, 2); a = heapq.heappop(h); return x + 1, a, h, heapq.nlargest(2, [1, 3, 2]), heapq.nsmallest(2, [3, 1, 2], key=lambda v: -v), heapq.heappushpop(h, 0), heapq.heapreplace(h, 9), list(heapq.merge([1, 4], [2, 3])), h
# new with keywords
class Made:
    def __new__(cls, *args, scale=1): made = object.__new__(cls); made.scale = scale; made.args = args; return made
a, b = Made(1, scale=3), Made(scale=4)
class Plain: pass
class Started:
    def __init__(self, *args): super().__init__(*args)
def told(f, *args):
    try: return type(f(*args)).__name__
    except TypeError as e: return str(e)
return x * a.scale + b.scale, a.args, told(object.__new__, Made, 1), told(object.__new__, Plain, 1), told(object.__new__, Started, 1), told(Started, 1), told(Started), told(Plain().__init__, 1), told(a.__init__, 1), told(Plain, 2)
# substitution by functions
p = re.compile(r"(a)|(\\d*)"); seen = []
def spell(m): seen.append(m.span()); return None if m.group(1) else m.group().upper() + "!"
return x + 1, p.sub(spell, "ba12a"), p.subn(spell, "ba12a", count=2), p.sub(spell, "ba12a", -1), re.sub("x+", lambda m: "y", "axxbx"), re.sub("q", spell, "abc"), re.compile(b"a").sub(lambda m: b"c", b"aba"), seen
# catch warnings
with warnings.catch_warnings(): warnings.simplefilter("ignore"); warnings.warn("no"); t = x + 1
return t
# recorded warnings
with warnings.catch_warnings(record=True) as w:
    warnings.simplefilter("always"); warnings.warn("one"); warnings.warn("two", DeprecationWarning)
return x + 1, [(str(v.message), v.category.__name__) for v in w]
# warnings as errors
with warnings.catch_warnings():
    warnings.simplefilter("error")
    try: warnings.warn("bad", RuntimeWarning)
    except RuntimeWarning as e: return x + 1, str(e)
# weak references
n = Node(1); r = weakref.ref(n); d = weakref.WeakKeyDictionary(); d[n] = 3; v = weakref.WeakValueDictionary(); v["k"] = n; return x + 1, r() is n, d[n], len(d), v["k"] is n
# struct
return x + 1, struct.pack("<ih", 1, 2), struct.unpack("<i", b"\\x01\\0\\0\\0"), struct.calcsize("<id")
# dates
d = datetime.date(2020, 1, 31) + datetime.timedelta(days=1); return x + d.day, d.isoformat(), datetime.timedelta(hours=1).total_seconds(), d > datetime.date(2019, 1, 1), f"{d:%Y}"
''')


# Rows that break the graph; their results are compared all the same.
BREAKS = {
    "array", "bisect", "bytes and bytearray", "counter", "deepcopy of tensors", "dict views",
    "dict views: special methods", "list errors", "memoryview", "ordered dict",
    "random generator of its own", "random module state", "redirected output", "singledispatch",
    "statistics", "string errors", "string io", "template", "types of iterators", "weak references",
}


test_one_graph, test_any_graphs = make_tests(ONE_GRAPH, ANY_GRAPHS, SETUP, BREAKS)


LOCK = threading.RLock()


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_a_lock_that_is_given_back_twice(backend: str) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        with LOCK:
            x = x + 1
        try:
            LOCK.release()
        except RuntimeError:
            return x * 2
        return x

    x = torch.ones(2)
    compiled = dynamo.compile(f, backend=backend)
    for _ in range(2):
        assert torch.equal(compiled(x), f(x))
