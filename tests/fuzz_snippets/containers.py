"""Snippets over containers, iterators and random numbers; for the form see `objects.py`."""

BLOCKS = r'''
# slices
---
k = list(range(6))
k[1:3] = _([9])
k[::2] = [7, 7, _(7)]
out.append(list(k))
del k[_(0)]
del k[-1:]
k[len(k):] = "ab"
k[1:1] = (v for v in (_(1), 2))
out.append(k)
try:
    k[::2] = [1]
except ValueError as e:
    out.append(str(e))
try:
    k[::0]
except ValueError as e:
    out.append(str(e))
s2 = slice(1, _N, None)
out.append([s2.indices(5), s2 == slice(1, s2.stop), k[s2], "abc"[::-1], (1, 2, 3)[-2:], s2.start])
k *= 2
k += (1,)
k.extend(k)
out.append([len(k), k[:3]])

# list_methods
---
k = [3, 1, 2, _N]
k.sort(key=lambda v: _(-v), reverse=True)
out.append(list(k))
try:
    k.remove(99)
except ValueError as e:
    out.append(str(e))
try:
    k.index(99, 1)
except ValueError as e:
    out.append(str(e))
try:
    [1, "a"].sort()
except TypeError as e:
    out.append(str(e))
try:
    [].pop()
except IndexError as e:
    out.append(str(e))
k.insert(-1, _V)
k.reverse()
out.append([k.copy() is k, k == k[:], k.count(3), sorted(["b", "A"], key=str.lower), k])
m = [k]
m.append(m)
out.append([m[1] is m, repr([[...]]), str(m[1][1] is m)])

# sort_mutates
---
k = [3, 1, 2]
def ky(v):
    LOG.append((v, list(k)))
    return _(v)
k.sort(key=ky)
out.append(k)
seen = []
out.append(sorted([2, 1, 3], key=lambda v: (seen.append(v), _(v))[1]))
try:
    k.sort(key=lambda v: k.append(1))
except (ValueError, TypeError) as e:
    out.append(str(e))
import functools
out.append([seen, k, sorted([3, 1, 2], key=functools.cmp_to_key(lambda a, b: _(b - a))), max([1, 3, 2], key=lambda v: _(-v)), min((), default=_(5))])

# dict_mutation
---
k = {"a": 1, "b": 2, "c": 3}
try:
    for q in k:
        _()
        k[q + "x"] = 1
except RuntimeError as e:
    out.append(str(e))
v = k.keys()
it = k.items()
_()
k["z"] = _V
out.append([list(v), len(it), ("z", 1) in it, v & {"a", "z"}, v - {"a"} == {q for q in k if q != "a"}])
out.append([k.pop("a", None), k.pop("nope", _N), k.setdefault("s", []), k.popitem(), list(reversed(k))])
k |= {"m": _(1)}
out.append([k | {"a": 0}, dict(k, e=1), {**k, "b": 5}, k == dict(reversed(k.items())), dict(zip("ab", [1, 2]))])
try:
    k.pop("nope")
except KeyError as e:
    out.append(e)
try:
    {[]: 1}
except TypeError as e:
    out.append(str(e))

# dict_iter_changes
---
k = {1: "a", 2: "b"}
it = iter(k.values())
out.append(next(it))
k[1] = _("changed")
k[2] = "later"
out.append(next(it))
it = iter(k)
k[3] = 1
try:
    next(it)
except RuntimeError as e:
    out.append(str(e))
it = iter(items)
next(it)
_()
items.append(_V)
out.append([len(list(it)), next(it, "end")])
items.append(1)
out.append(next(it, "still end"))

# missing
class Ms(dict):
    def __missing__(self, key):
        LOG.append(key)
        if key == "err": raise KeyError(_("custom"))
        self[key] = _(len(self))
        return self[key]
    def __contains__(self, k): return _(True)
class Gd(dict):
    def __getitem__(self, k): return _(("got", k))
    def get(self, k, d=None): return _("g")
---
k = Ms(a=1)
out.append([k["a"], k["zz"], k.get("q"), "{v}".format_map(k), "nope" in k, "%(w)s" % k])
try:
    k["err"]
except KeyError as e:
    out.append(e)
g = Gd(a=1)
out.append([g["a"], g.get("a"), dict(g), {**g}, list(g.items()), "{a}".format_map(g), len(k), k])

# collections_misc
import collections
---
dd = collections.defaultdict(lambda: _([]))
dd["a"].append(_N)
dd["b"]
out.append([dict(dd), dd.get("c"), "c" in dd, dd.default_factory is None])
dd.default_factory = None
try:
    dd["zz"]
except KeyError as e:
    out.append(e)
c = collections.Counter("abca")
c.update(a=_(2))
c["q"] -= 1
out.append([c.most_common(1), c["none"], +c, c - collections.Counter("a"), c.total(), sorted(c.elements())])
od = collections.OrderedDict(a=1, b=2, c=3)
od.move_to_end("a", last=_(False))
od.move_to_end("b")
out.append([list(od), od.popitem(last=False), od == {"c": 3, "b": 2}, od])
dq = collections.deque([1, 2, 3], maxlen=3)
dq.append(_(4))
dq.appendleft(0)
dq.rotate(1)
dq += [7]
out.append([dq, dq.maxlen, dq[0], dq.index(7), dq.pop(), dq.popleft(), dq == collections.deque(dq)])
try:
    for q in dq:
        dq.append(_(1))
except RuntimeError as e:
    out.append(str(e))
cm = collections.ChainMap({"a": 1}, {"a": 2, "b": _(3)})
cm["b"] = 9
ch = cm.new_child()
ch["q"] = 1
out.append([cm["a"], cm.maps, list(ch), ch.parents["b"], len(ch)])
try:
    del cm["zz"]
except KeyError as e:
    out.append(e)

# user_containers
import collections
class Ul(collections.UserList):
    def append(self, v): super().append(_(v))
class Ud(collections.UserDict):
    def __setitem__(self, k, v): super().__setitem__(k, _(v))
class Ls(list):
    def append(self, v): super().append((_(v), v))
    def __iter__(self): return iter([_("it")])
    def __len__(self): return _(7)
    def __getitem__(self, i): return _(("gi", i))
---
u = Ul([1])
u.append(2)
u += [3]
m = Ud(a=1)
m.update(b=_N)
q = Ls([1, 2])
q.append(3)
out.append([u, u[1:], m, dict(m), list(q), [*q], len(q), q[0], q[-1], sum(1 for _i in q), q == [1, 2, (3, 3)], bool(q), list.__len__(q), sorted(q), q + [1], q.copy(), "it" in q])

# equal_not_identical
---
a, b = [1], [1]
m = {1: "i", True: "b", 1.0: "f"}
out.append([m, {1, True, 1.0}, a in [b], [b, a].index(a), [a, b].count(b)])
k = [b, a]
k.remove(a)
_()
out.append([k[0] is a, k[0] is b, (a, b).index(b)])
p, q = (1, [2]), (1.0, [2])
st = {1.0, 2}
st.add(1)
st |= {True}
m2 = dict.fromkeys([1.0, 1])
m2[True] = _V
out.append([st, m2, list(m2)[0].__class__.__name__, p == q, st & {1}, {1} & st, {True} | {1}, st.intersection([True]), frozenset([1.0]) == st])
t1, t2 = torch.ones(1), torch.ones(1)
out.append([[t1, t2].index(t1), t1 in [t1], {t1: 1, t2: 2}[t2], len({t1, t2, t1})])

# set_methods
---
k = {1, 2, 3}
k.add(_N)
k.discard(99)
k ^= {1, 7}
k.update([_(8)], (9,))
out.append([sorted(k), k > {7}, k.isdisjoint({0}), sorted(k - {7}), frozenset(k) == k, len(k)])
try:
    k.remove(99)
except KeyError as e:
    out.append(e)
try:
    k.add([])
except TypeError as e:
    out.append(str(e))
try:
    k | [1]
except TypeError as e:
    out.append(str(e))
k.clear()
try:
    k.pop()
except KeyError as e:
    out.append(e)

# formatting
class Fm:
    a = _N
    k = {"z": [1, 2]}
    def __format__(self, spec): return f"<{_(spec)}>"
    def __str__(self): return _("S")
---
w = Fm()
out.append(["{0.a} {0.k[z]} {0:>{1}} {x!r:5}|{0!s:*^5}".format(w, _(3), x=_V), f"{w=!s} {n=} {n = :>4}", f"{w:{n}}", f"{3.14159:.{_(2)}f} {255:#x} {1e10:g} {-0.0} {10**6:,} {True:d} {'a':<3}|"])
out.append(["%5.2f|%-4s|%+d|%x|%c|%%|%r" % (1.5, "a", _(3), 255, "q", None), "%s" % (_V,), "%(a)s" % {"a": 1}])
for bad in ("{} {0}", "{1}", "{a}", "{0.nope}", "{:d}", "{!z}"):
    try:
        out.append(bad.format(_("s")))
    except (ValueError, IndexError, KeyError, AttributeError) as e:
        out.append([type(e).__name__, str(e)])
try:
    out.append("%d" % "a")
except TypeError as e:
    out.append(str(e))

# strings
---
k = "a,b,,c"
out.append([k.split(","), k.partition(","), k.rsplit(",", 1), k.replace(",", _("-"), 2), k.find("z"), k.title(), "ß".upper(), "é".encode(), s.center(9, "*"), s.join(["1", _("2")]), "a\tb".expandtabs(), s.translate({97: "z"}), k.casefold() < s, s.isidentifier(), "12".zfill(5), "abc".removeprefix("a")])
for bad in (lambda: k.index("z"), lambda: int("x"), lambda: "a" + 1, lambda: ",".join([1]), lambda: "a" * 1.5, lambda: s[10], lambda: ord("ab"), lambda: float("q"), lambda: b"a" + "a", lambda: "abc".foo):
    try:
        out.append(bad())
    except Exception as e:
        out.append([type(e).__name__, str(e)])
    _()

# ints
---
big = 10**20 + n if isinstance(n, int) else 10**20
out.append([big * big, -7 // 2, -7 % 3, divmod(-7, -2), 7 // -2, pow(3, -1, 7), pow(2, 100, _(13)), 1 << 70, -5 >> 1, ~n if isinstance(n, int) else 0, big.bit_length(), (255).to_bytes(2, "big"), int.from_bytes(b"\x01\x00", "little"), int("ff", 16), int("0b11", 0), round(15, -1), round(25, -1), round(-15, -1), True + True, True & 3, hash(-1), (5).bit_count()])
for f in (lambda: 1 // _(0), lambda: 1 % 0, lambda: 1 << -1, lambda: pow(2, -1, 4), lambda: pow(2, 2, 0), lambda: 10.0 ** 400, lambda: 1.5 // 0, lambda: divmod(1.0, 0), lambda: int("1" * 5000), lambda: int(float("inf")), lambda: int(float("nan")), lambda: 2 ** -1, lambda: 0 ** -1, lambda: (-8) ** (1 / 3), lambda: 1j // 1, lambda: complex("1+j"), lambda: str(10 ** 5000)[:0], lambda: 1 < "a"):
    try:
        out.append(f())
    except Exception as e:
        out.append([type(e).__name__, str(e)])

# floats
---
import math
nan, inf = float("nan"), float("inf")
out.append([-0.0, 0.0 * -1, nan == nan, nan in [nan], [nan] == [nan], nan is nan, max(1, nan), max(nan, 1), min(nan, 1), inf - inf, -inf // 1, 5.5 // -2, -5.5 % 2, 5.5 % -2, -0.0 % 3, divmod(-1.5, 0.5), round(2.5), round(0.5), round(-1.5), round(2.675, 2), round(1e300, 2), round(5.0, -1), 0.1 + 0.2, 1e308 * 10, float("1e-400"), (0.1).hex(), (2.0).is_integer(), (0.5).as_integer_ratio(), math.copysign(1, -0.0), math.fmod(-5, 3), math.remainder(5, 3), math.isclose(1, 1 + 1e-10), math.hypot(3, 4), math.nextafter(1, 2), math.prod([1, _(2)]), sum([0.1] * 3), math.fsum([0.1] * 3), sum([1, 2.5, True]), 3 == 3.0, hash(3.0) == hash(3), 2**53 == float(2**53) + 1, 2**53 + 1 == float(2**53)])
v = float(n) if isinstance(n, (int, float)) else 1.5
_()
out.append([v / 3, v // 1, -v % 3, v ** 0.5, round(v, 1), int(v), math.floor(-v), abs(-v), v == n, v * 0 == -0.0, math.copysign(1, v * -0.0), divmod(v, 0.3), str(v), f"{v:.3e}"])

# complex
---
c = complex(_N, 2)
out.append([c * 1j, c.conjugate(), abs(3 + 4j), c ** 2, c / (1 - 1j), c == 1 + 2j, -c, c.real, complex("1-2j"), 1j ** 2, complex(-0.0, 0.0), (1 + 0j) == 1, bool(0j), f"{1 + 2j:.1f}", hash(1 + 0j) == hash(1), c + _(1.5)])
try:
    c < 1
except TypeError as e:
    out.append(str(e))
try:
    1j / 0
except ZeroDivisionError as e:
    out.append(str(e))

# recursion
def fact(k): return 1 if k <= 1 else k * fact(_(k - 1))
def even(k): return True if k == 0 else odd(_(k - 1))
def odd(k): return False if k == 0 else even(k - 1)
def forever(k): return forever(k + 1)
---
out.append([fact(5), even(6), odd(_(3))])
try:
    forever(0)
except RecursionError as e:
    out.append(type(e).__name__)
def loc(k):
    return [] if not k else [k, *loc(_(k - 1))]
out.append(loc(3))

# itertools_use
import itertools
---
it = itertools.count(_N)
k = itertools.chain([1], (_(v) for v in [2, 3]), "a")
out.append([next(it), list(itertools.islice(k, 3)), list(k), list(itertools.takewhile(lambda v: _(v < 3), [1, 2, 3, 1])), list(itertools.accumulate([1, 2, 3], lambda a, b: _(a * b))), [(q, list(g)) for q, g in itertools.groupby("aab", key=lambda v: _(v))], list(itertools.starmap(pow, [(2, 3)])), list(itertools.product("ab", repeat=2)), list(itertools.zip_longest([1], [2, 3], fillvalue=_(0))), list(itertools.pairwise([1, 2, 3])), list(itertools.compress("abc", [1, 0, 1])), list(itertools.filterfalse(lambda v: _(v % 2), range(4)))])
a, b = itertools.tee([1, 2, 3])
next(a)
_()
out.append([list(a), list(b)])
cy = itertools.cycle([1, 2])
out.append([next(cy) for _i in range(3)])
z = zip([1, 2, 3], it)
next(z)
_()
out.append([next(z), next(it), list(zip([1], [2], strict=True)), list(map(lambda a, b: _(a + b), [1, 2], [3, 4])), list(enumerate("ab", _(5))), list(filter(None, [0, 1, []])), list(reversed([1, 2]))])
try:
    list(zip([1], [], strict=True))
except ValueError as e:
    out.append(str(e))

# map_partial
class Mp:
    def __init__(self, k): self.k = k
    def __iter__(self):
        while self.k:
            self.k -= 1
            yield _(self.k)
---
src = Mp(4)
m = map(lambda v: _(v * 2), src)
out.append([next(m), src.k])
_()
for v in m:
    out.append(v)
    if v < 4: break
out.append([src.k, list(m), dict(enumerate(Mp(2))), tuple(zip(Mp(2), Mp(3)))])
try:
    list(map(lambda v: 1 // _(v), Mp(2)))
except ZeroDivisionError as e:
    out.append(str(e))

# print_and_warn
import warnings
---
print("a", n, _V, sep=_("-"), end="!\n")
with warnings.catch_warnings(record=True) as ws:
    warnings.simplefilter("always")
    warnings.warn("w1")
    _()
    warnings.warn(UserWarning(_("w2")), stacklevel=1)
out.append([str(v.message) for v in ws])
print(_("mid"), *[1, 2])
try:
    print(1, sep=3)
except TypeError as e:
    out.append(str(e))

# random_use
import random
---
random.seed(_(3))
out.append([random.random(), random.randint(1, 9)])
_()
out.append([random.uniform(1, 2), random.choice([1, 2, 3])])
r = random.Random(_N)
k = [1, 2, 3, 4]
r.shuffle(k)
_()
out.append([k, r.sample(range(9), 2), r.gauss(0, 1)])

# copy_pickle
import copy
class Cy:
    def __init__(self, v): self.v = v
    def __copy__(self): return _(Cy(("c", self.v)))
    def __deepcopy__(self, memo):
        return Cy(_(copy.deepcopy(self.v, memo)))
---
k = [1, [2], Cy([3])]
a, b = copy.copy(k), copy.deepcopy(k)
_()
k[1].append(_N)
out.append([a[1] is k[1], b[1], b[2].v, copy.copy(k[2]).v, copy.deepcopy((k, k))[0] is k])

# assert_and_with_else
---
try:
    assert _(n) is None, _(f"msg {n}")
except AssertionError as e:
    out.append(e)
try:
    assert []
except AssertionError as e:
    out.append(e.args)
for i in range(_(3)):
    if i == _N: break
else:
    out.append("noelse")
while i:
    i -= 1
    _()
else:
    out.append("wend")

# augmented_targets
def at(log, v):
    log.append(v)
    return v
---
k = {"a": [1]}
k[at(LOG, "a")] += [_(2)]
box.v = 1
box.v += _(_N)
box.q = z = [0]
box.q[at(LOG, 0)] -= _(1)
z += [1]
out.append([k, box.v, box.q is z, z])
t = ([1], 2)
try:
    t[0] += [_(3)]
except TypeError as e:
    out.append(str(e))
out.append(t)
a = b = (1,)
a += (2,)
out.append([a, b])

# star_args_alias
def sa(*a, **k):
    k["new"] = _(1)
    return a, k
---
kw = {"z": 1}
ar = [1, items]
r = sa(*ar, **kw)
out.append([kw, r[0][1] is items, r[1], sa(*(v for v in [_(1), 2]))])
f = lambda *a, b=_(3), **k: (a, b, k)
out.append([f(1, *[2], b=4, **{"q": 5}), f.__kwdefaults__])

# function_attributes
def fa(a: int = 1) -> str: return (fa.count, _(a))
fa.count = 0
---
fa.count += _N
out.append([fa(), fa.__name__, fa.__annotations__, fa.__defaults__, fa.__code__.co_name, fa.__module__ == __name__])
_()
def lf(): return lf.k
lf.k = _V
out.append([lf(), vars(lf), lf.__qualname__])
del lf.k
try:
    lf()
except AttributeError as e:
    out.append(str(e))
fa.count = 0

# bytes_and_memory
---
b = bytearray(b"abc")
b[0] = _(65)
b += b"d"
m = memoryview(b)
m[1] = 66
out.append([bytes(b), b"ab".hex(), b.find(b"c"), list(b"ab"), b"a%db" % 3, m[1:3].tobytes(), b"abc"[1], b"a" in b"ba", bytes([1, _(2)]), b == b"ABcd"])
m.release()

# lru_cache
import functools
@functools.lru_cache(maxsize=None)
def lc(k):
    return _([k])
---
out.append([lc(1) is lc(1), lc(2) is lc(1), lc(_N)])
lc.cache_clear()

# sentinel_identity
SENT = object()
---
a = object()
d2 = {"k": SENT}
out.append([d2.get("k") is SENT, d2.get("z", SENT) is SENT, a is SENT, a == a, a in [SENT, a], [1, a].index(a)])
_()
out.append([a is a, type(None)() is None, () is tuple([]), Ellipsis is ..., NotImplemented is NotImplemented, type(a) is object])
it = iter(lambda: _(next(q)), 3)
q = iter([1, 2, 3, 4])
out.append([list(it), next(q)])

# global_list_alias
GL = [1, 2]
GD = {"l": GL}
---
v = GL
_()
v.append(_N)
GD["l"] = GD["l"] + [1]
out.append([len(GL), GD["l"] is GL, GD["l"]])
GL[:] = [1, 2]
GD["l"] = GL
'''
