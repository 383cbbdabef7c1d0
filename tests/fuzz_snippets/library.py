"""Snippets over less common Python and the standard library: deep generators, groups of exceptions, patterns over classes, hooks of
classes, containers of C. For the form see `objects.py`.
"""

BLOCKS = r'''
# gen_throw_nested
class Halt(Exception): pass
def leaf_gen(log, k):
    try:
        while True:
            got = yield _(k)
            log.append(("got", got))
            k += 1
    except Halt as e:
        log.append(("halt", e.args))
        yield _(("rescued", k))
        raise KeyError("after") from e
    except GeneratorExit:
        log.append("exit")
        raise
    finally:
        log.append(_("leaf-fin"))
def middle_gen(log, k):
    try:
        yield from leaf_gen(log, k)
    except KeyError as e:
        log.append((str(e), type(e.__cause__).__name__))
        yield _("middle")
        return 7
def upper_gen(log, k):
    got = yield from middle_gen(log, k)
    log.append(got)
    yield from (v * 2 for v in range(_(2)))
---
g = upper_gen(LOG, _N)
out.append([next(g), g.send(_V), g.throw(Halt("h", 1)), next(g), list(g)])
g = upper_gen(LOG, 1)
next(g)
_()
g.close()
out.append([g.gi_frame, g.gi_yieldfrom, next(g, "end")])
g = upper_gen(LOG, 2)
next(g)
try:
    g.throw(ZeroDivisionError("z"))
except ZeroDivisionError as e:
    out.append([e, e.__context__])
g = upper_gen(LOG, 3)
try:
    g.throw(Halt("early"))
except Halt as e:
    out.append(e)
for v in upper_gen(LOG, 0):
    out.append(v)
    if v == _(2):
        break

# groups_nested
class OwnGroup(ExceptionGroup):
    def derive(self, excs): return OwnGroup("d:" + self.message, excs)
def grouped(k):
    return OwnGroup("own", [ValueError(k), TypeError("t"), ExceptionGroup("in", [OSError(_(3)), ValueError("w")])])
---
try:
    try:
        raise grouped(_N)
    except* ValueError as eg:
        out.append([type(eg).__name__, eg.message, len(eg.exceptions)])
        _()
    except* (TypeError, OSError) as eg:
        out.append([str(eg), eg.__context__ is None])
        raise
except BaseExceptionGroup as eg:
    out.append([type(eg).__name__, eg.message, [type(v).__name__ for v in eg.exceptions]])
g = grouped(2)
m, r = g.split(ValueError)
out.append([m.message, str(r), g.subgroup(lambda v: isinstance(v, OSError)) is None, g.subgroup(KeyError)])
for i in range(2):
    try:
        try:
            if i:
                raise KeyError(_(i))
            out.append("plain")
        except* KeyError:
            out.append("star")
            _()
        else:
            out.append("else")
        finally:
            out.append("fin")
    except ExceptionGroup as eg:
        out.append(eg)
try:
    ExceptionGroup("x", [1])
except (TypeError, ValueError) as e:
    out.append(str(e))
try:
    ExceptionGroup("x", [])
except ValueError as e:
    out.append(str(e))

# match_classes
import collections, dataclasses, enum
@dataclasses.dataclass
class Shape:
    kind: str
    size: int = 1
class Wide(Shape):
    __match_args__ = ("size", "kind")
class Hue(enum.Enum):
    RED = 1
    BLUE = 2
class Mapish(collections.abc.Mapping):
    def __init__(self, d): self.d = d
    def __getitem__(self, k):
        LOG.append(("get", k))
        return self.d[k]
    def __iter__(self): return iter(self.d)
    def __len__(self): return len(self.d)
---
for v in (Shape("a", _N), Wide("b", 2), Hue.RED, Hue.BLUE, Mapish({"k": _V, "z": 1}), collections.OrderedDict(k=1), collections.deque([1, 2]), range(3), b"ab", [[1], [2, 3]], [Shape("q"), Hue.RED], (1,), {"k": {"k": [0]}}):
    match _(v):
        case Wide(2, kind=k): out.append(("wide", k))
        case Shape("a", size=int(k)) if _(k): out.append(("a", k))
        case Shape(kind=k): out.append(("shape", k))
        case Hue.RED: out.append("red")
        case Hue(): out.append("hue")
        case {"k": {"k": [k]}}: out.append(("deep", k))
        case {"k": k, **rest}: out.append(("map", k, sorted(rest)))
        case [[a], [*b]]: out.append((a, b))
        case [Shape(), Hue() as h]: out.append(h.name)
        case [a, *_r] as w if type(w) is not list or _(a): out.append((a, type(w).__name__))
        case bytes(b): out.append(b)
        case _: out.append("none")

# descriptor_life
class Stored:
    def __set_name__(self, owner, name):
        LOG.append(("set_name", owner.__name__, name))
        self.name = "_" + name
    def __get__(self, obj, owner=None):
        return self if obj is None else _(getattr(obj, self.name, "unset"))
    def __set__(self, obj, value):
        LOG.append(("set", self.name))
        setattr(obj, self.name, _(value))
    def __delete__(self, obj): delattr(obj, self.name)
class Shy:
    def __get__(self, obj, owner): return (obj is None, owner.__name__)
class Holder:
    a = Stored()
    b = Shy()
---
w = Holder()
out.append([w.a, w.b, Holder.b, Holder.a.name])
w.a = _N
w.b = _(5)
out.append([w.a, w.b, vars(w)])
del w.a
del w.b
out.append([w.a, w.b, sorted(vars(w))])
class Local(Holder):
    c = Stored()
    a = _(3)
v = Local()
v.c, v.a = _V, 2
out.append([v.c, v.a, Local.a])
try:
    del w.a
except AttributeError as e:
    out.append(e)

# class_hooks
class Registry:
    seen = []
    def __init_subclass__(cls, /, tag=None, **kw):
        super().__init_subclass__(**kw)
        cls.tag = _(tag)
        Registry.seen.append((cls.__name__, tag))
    def __class_getitem__(cls, item):
        return (cls.__name__, _(item))
class Early(Registry, tag="early"): pass
---
class Late(Early, tag=_N):
    def __init_subclass__(cls, **kw):
        LOG.append(cls.__name__)
        super().__init_subclass__(**kw)
class Later(Late, tag=_("x")): pass
out.append([Registry.seen[-3:], Late.tag, Later.tag, Early.tag, Registry[_N], Later["q", 1], Later.__mro__[1] is Late])
try:
    class Wrong(Late, other=1): pass
except TypeError as e:
    out.append("wrong")
del Registry.seen[1:]

# nonlocal_deep
---
a = _N
def one():
    nonlocal a
    a = a + 1
    b = 10
    def two():
        nonlocal a, b
        b += _(1)
        a += b
        def three(c=[0]):
            nonlocal a, b
            c[0] += 1
            a, b = b, _(a)
            return (a, b, c[0])
        return three
    return two, lambda: b
t, rb = one()
h = t()
out.append([h(), a, rb(), h(), a, rb()])
_()
h2 = t()
out.append([h2(), h(), a, rb()])

# frozen_slots
import dataclasses, typing
@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Fro:
    a: int
    b: list = dataclasses.field(default_factory=list, compare=False)
    c: typing.ClassVar[int] = 3
    def __post_init__(self): object.__setattr__(self, "a", _(self.a))
@dataclasses.dataclass(kw_only=True)
class Kw:
    p: int
    q: dataclasses.InitVar[int] = 2
    r: int = dataclasses.field(init=False, default=5, repr=False)
    def __post_init__(self, q): self.r = _(q) * 2
---
w = Fro(_N)
try:
    w.a = 1
except dataclasses.FrozenInstanceError as e:
    out.append(str(e))
try:
    w.zz = _(1)
except (AttributeError, TypeError) as e:
    out.append(type(e).__name__)
out.append([w < Fro(100), hash(w) == hash(Fro(w.a, [2])), dataclasses.replace(w, a=_(7)), Fro.__slots__, dataclasses.astuple(w), w == Fro(w.a, [1])])
k = Kw(p=_V, q=_(4))
out.append([k, k.r, dataclasses.asdict(Kw(p=1)), [f.name for f in dataclasses.fields(k)]])
try:
    Kw(1)
except TypeError as e:
    out.append(str(e))

# flags
import enum
class Perm(enum.Flag):
    R = enum.auto()
    W = enum.auto()
    X = 4
    RW = R | W
class Num(enum.IntFlag, boundary=enum.KEEP):
    A = 1
    B = 2
class Txt(enum.StrEnum):
    UP = enum.auto()
    DOWN = "d"
    @classmethod
    def _missing_(cls, value): return _(cls.UP)
    @property
    def twice(self): return self.value * 2
---
v = Perm.R | _(Perm.X)
out.append([v, Perm.RW in v | Perm.W, list(v), ~v, v & Perm.W, bool(v & Perm.W), Perm(3), Perm["RW"], v ^ Perm.R, len(Perm.RW)])
out.append([Num.A | 8, Num(5), Num.A + _N, ~Num.A, Num.B in Num(3), Num(0) == False])
out.append([Txt("zzz"), Txt.UP.twice, Txt.DOWN == "d", f"{Txt.UP}", Txt("d").name, Txt.__members__["UP"], [m for m in Txt]])
try:
    Perm(_(64))
except ValueError as e:
    out.append(type(e).__name__)
out.append({Perm.R: 1, Perm.W: _(2)}[Perm.W])

# stack_callbacks
import contextlib
def noting(*a, **k): LOG.append((a, tuple(k)))
def failing(k): raise ValueError(_(k))
class Cm:
    def __init__(self, k): self.k = k
    def __enter__(self): return self.k
    def __exit__(self, t, e, tb):
        LOG.append(("cm", self.k, t and t.__name__))
        return t is KeyError
---
try:
    with contextlib.ExitStack() as st:
        st.callback(noting, _N, k=1)
        st.callback(failing, 2)
        st.push(Cm(3))
        st.enter_context(contextlib.nullcontext(_(4)))
        st.callback(noting, "last")
        raise KeyError(_("k"))
except (ValueError, KeyError) as e:
    out.append([e, e.__context__])
with contextlib.ExitStack() as st:
    f = st.callback(noting, 1)
    out.append(f is noting)
    if _(n):
        st.pop_all().close()
with contextlib.closing(contextlib.ExitStack()) as st, contextlib.redirect_stdout(None):
    st.enter_context(Cm(_V))
@contextlib.contextmanager
def reuse(k):
    LOG.append(k)
    yield _(k)
out.append([reuse(1).__enter__(), [v for k in range(2) for v in [reuse(k)] if v is not None][0].__enter__()])
try:
    with reuse(5) as v:
        raise StopIteration(_(v))
except StopIteration as e:
    out.append(e.value)

# dispatch
import functools, numbers
@functools.singledispatch
def shown(v): return ("any", type(v).__name__)
@shown.register
def _int(v: int): return ("int", _(v))
@shown.register(list)
@shown.register(tuple)
def _seq(v): return [shown(k) for k in v]
class Disp:
    @functools.singledispatchmethod
    def go(self, v): return _("any")
    @go.register
    def _f(self, v: float): return v * 2
    @functools.singledispatchmethod
    @classmethod
    def make(cls, v): return cls.__name__
---
out.append([shown(_V), shown([1, "a", (2.5,)]), shown(True), shown.dispatch(bool) is shown.dispatch(int), Disp().go(2.5), Disp().go(_N), Disp.make(1)])
shown.register(str, lambda v: _(("str", v)))
out.append([shown("a"), sorted(k.__name__ for k in shown.registry)])
p = functools.partial(shown, [_N])
out.append([p(), p.func is shown, functools.reduce(lambda a, b: a + _(b), [1, 2, 3], n)])

# grouping
import itertools
---
data = [1, 1, 2, 3, 3, _N, _N]
out.append([(k, list(g)) for k, g in itertools.groupby(data)])
gs = []
for k, g in itertools.groupby(data, key=lambda v: v % 2 == 0):
    gs.append(g)
    _()
    if k:
        out.append(next(g))
out.append([list(g) for g in gs])
a, b = itertools.tee(v * 2 for v in data)
out.append([next(a), next(a)])
_()
c, d = itertools.tee(b)
out.append([list(a), next(c), list(b), list(d), list(c)])
it = iter(data)
out.append([list(itertools.islice(it, _(2))), list(itertools.takewhile(lambda v: v < 3, it)), list(it)])
out.append([list(itertools.batched(data, 3)) if hasattr(itertools, "batched") else 0, list(itertools.pairwise(data)), list(itertools.accumulate(data, lambda p, q: p * _(q), initial=1))])
cy = itertools.cycle([1, _(2)])
out.append([next(cy), next(cy), next(cy), list(zip(cy, range(3)))])

# format_specs
import decimal, fractions, datetime
class Fm:
    def __format__(self, spec): return f"<{_(spec)}>"
    def __getitem__(self, k): return ("item", k)
    at = 5
---
out.append("{0:>8}|{1:<6.2f}|{0!r:^10}|{2:+d}|{3:#x}|{4:,}".format(s, 2.5, _(7), 255, 1234567))
out.append(["{w:ab} {w[key]} {w[0]} {w.at:03}".format(w=Fm()), f"{Fm():{s}>{3}}", f"{_N!s:>5}", f"{n=}", f"{n = :>6}", f"{_(3.0):.3e}", f"{True:d} {1e20:g} {-0.0:+.1f}"])
for spec in ("d", "s", "z", ".2", "010.3f", "%", "_b", "c"):
    for v in (_(5), 2.5, "t", None, True):
        try:
            out.append(format(v, spec))
        except (ValueError, TypeError) as e:
            out.append(str(e))
out.append(["%5.1f|%-5s|%05d|%x|%r|%%" % (2.25, s, _(3), 10, "q"), "%(a)s" % {"a": _(1)}, "{:{}}".format(3, _(5)), f"{decimal.Decimal('1.25'):.1f} {fractions.Fraction(1, 3)} {datetime.date(2020, 1, 2):%Y/%m}"])
try:
    out.append("{} {1}".format(1, _(2)))
except ValueError as e:
    out.append(str(e))
try:
    out.append("{a.b}".format(a=_(1)))
except AttributeError as e:
    out.append(str(e))

# changed_in_loop
---
for make in (lambda: {1: 1, 2: 2, 3: 3}, lambda: {1, 2, 3}, lambda: [1, 2, 3]):
    v = make()
    try:
        for k in v:
            _()
            if isinstance(v, dict):
                v[k + 10] = k
            elif isinstance(v, set):
                v.add(k + 10)
            elif len(v) < 6:
                v.append(k)
        out.append(("done", len(v)))
    except RuntimeError as e:
        out.append([str(e), len(v)])
d = {k: k for k in range(4)}
for k in list(d):
    if k % 2:
        del d[k]
    _()
out.append(d)
it = iter(d.items())
out.append(next(it))
d[_N + 50] = 1
try:
    out.append(next(it))
except RuntimeError as e:
    out.append(str(e))
d.pop(next(reversed(d)))
st = {1, 2, 3}
it = iter(st)
next(it)
st.discard(_(2))
try:
    out.append(len(list(it)) >= 0)
except RuntimeError as e:
    out.append(str(e))

# deques
import collections
---
d = collections.deque([1, 2, _N], maxlen=_(4))
d.append(5)
d.append(_V)
d.appendleft(0)
out.append([list(d), d.maxlen])
d.rotate(_(2))
out.append(list(d))
d.rotate(-3)
d.extendleft([7, _(8)])
out.append([list(d), d.popleft(), d.pop(), len(d), d.copy().maxlen, repr(collections.deque([1], 1)), d.count(7), collections.deque([1, 2]) < collections.deque([1, 3])])
try:
    for v in d:
        d.append(_(1))
except RuntimeError as e:
    out.append(str(e))
try:
    d.insert(0, 1)
    d.insert(0, 1)
    d.insert(0, 1)
except IndexError as e:
    out.append(str(e))
try:
    collections.deque().pop()
except IndexError as e:
    out.append(str(e))
del d[0]
d.reverse()
d += [3]
out.append([list(d), list(reversed(d)), d * 2 == d, 3 in d, d.index(3)])

# heaps
import heapq, bisect
class Item:
    def __init__(self, k): self.k = k
    def __lt__(self, o):
        LOG.append(("lt", self.k, o.k))
        return _(self.k < o.k)
---
h = [5, 3, _N, 1]
heapq.heapify(h)
heapq.heappush(h, _(2))
out.append([list(h), heapq.heappop(h), heapq.heappushpop(h, 0), heapq.heapreplace(h, _(9)), h, heapq.nlargest(2, h), heapq.nsmallest(2, h, key=lambda v: -v), list(heapq.merge([1, 4], [2, _(3)]))])
i = [Item(3), Item(1), Item(2)]
heapq.heapify(i)
out.append([heapq.heappop(i).k, min(i, key=lambda v: v.k).k])
b = [1, 3, 3, 5]
out.append([bisect.bisect(b, _(3)), bisect.bisect_left(b, 3), bisect.bisect_right([3, 2, 1], -2, key=lambda v: -v)])
bisect.insort(b, _(4))
bisect.insort_left(b, _N)
out.append(b)
try:
    heapq.heappop([])
except IndexError as e:
    out.append(str(e))

# packed
import struct, array
---
w = struct.pack("<hIq?", 1, _(2), -3, _(True))
out.append([w, struct.unpack("<hIq?", w), struct.calcsize("3i"), list(struct.iter_unpack("<h", w[:4]))])
a = array.array("i", [1, 2, _N])
a.append(_(4))
a.extend([5])
out.append([a, a.tolist(), a.itemsize, a[1:3], a.index(2), a.tobytes()[:4], bytes(memoryview(a)[:1])])
a[0] = _(9)
m = memoryview(a)
m[1] = 77
out.append([list(a), m.format, m.nbytes])
try:
    a.append(1)
except BufferError as e:
    out.append(str(e))
m.release()
try:
    a.append(_("x"))
except TypeError as e:
    out.append(str(e))
try:
    struct.pack("b", _(300))
except struct.error as e:
    out.append(str(e))
ba = bytearray(b"abc")
ba[1:2] = b"XY"
ba += bytes([_(65)])
out.append([ba, ba.find(b"Y"), int.from_bytes(ba[:2], "big"), (300).to_bytes(2, "little"), w.hex(":")])

# deep_copies
import copy, pickle
class Dc:
    def __init__(self, v, o=None): self.v, self.o = v, o
    def __deepcopy__(self, memo):
        LOG.append(("deep", len(memo) >= 0))
        return Dc(copy.deepcopy(self.v, memo), _(self.o))
class Rd:
    def __init__(self, a): self.a = a
    def __reduce__(self): return (Rd, (_(self.a),), {"extra": 1})
class Gs:
    def __getstate__(self): return {"k": _(2)}
    def __setstate__(self, st): self.got = st
class Cp:
    def __copy__(self): return _("copied")
---
l = [1]
w = Dc([l, l, {"k": l}], o=l)
c = copy.deepcopy(w)
out.append([c.v[0] is c.v[1], c.v[2]["k"] is c.v[0], c.o is l, c.v[0] is l])
r = copy.copy(Rd(l))
r2 = copy.deepcopy(Rd(l))
out.append([r.a is l, r2.a is l, vars(r), copy.copy(Cp()), copy.deepcopy(Gs()).got])
cyc = [1, _V if not isinstance(_V, torch.Tensor) else 0]
cyc.append(cyc)
k = copy.deepcopy(cyc)
out.append([k[2] is k, k is not cyc])
t = copy.deepcopy({"x": x, "again": [x]})
out.append([t["x"] is t["again"][0], t["x"] is x])
out.append([copy.copy((1, l))[1] is l, copy.deepcopy((1, "a")) == (1, "a"), copy.deepcopy(box) is box])

# weak_callbacks
import weakref, gc
class Wk:
    def __init__(self, k): self.k = k
    def close(self): LOG.append(("closed", self.k))
def gone(r): LOG.append(("gone", r() is None))
---
w = Wk(_N)
r = weakref.ref(w, gone)
p = weakref.proxy(w)
out.append([r() is w, p.k, weakref.getweakrefcount(w), r == weakref.ref(w), r is weakref.ref(w, gone)])
_()
fz = weakref.finalize(w, LOG.append, "final")
wd = weakref.WeakValueDictionary(a=w)
wk = weakref.WeakKeyDictionary()
wk[w] = _(1)
ws = weakref.WeakSet([w])
wm = weakref.WeakMethod(w.close)
wm()()
out.append([len(wd), len(wk), len(ws), fz.alive, wm() is not None])
w = None
gc.collect()
out.append([r() is None, len(wd), len(wk), len(ws), fz.alive, wm() is None])
try:
    p.k
except ReferenceError as e:
    out.append(str(e))

# recursion_caught
import sys
def down(k): return down(k + 1) + 1
def even(k): return True if k == 0 else odd(k - 1)
def odd(k): return False if k == 0 else even(k - 1)
class Rec:
    def __getattr__(self, name): return getattr(self, name + "x")
---
try:
    down(_N)
except RecursionError as e:
    out.append(str(e)[:32])
_()
try:
    Rec().a
except RecursionError as e:
    out.append(type(e).__name__)
out.append([even(_(20)), odd(7), sys.getrecursionlimit()])
l = [1]
l.append(l)
out.append(repr(l))

# driven_coroutines
import types
@types.coroutine
def ask(k):
    got = yield ("ask", _(k))
    return got
class Aw:
    def __await__(self):
        got = yield _("aw")
        return got
class Actx:
    async def __aenter__(self):
        return await ask("enter")
    async def __aexit__(self, t, e, tb):
        LOG.append(("aexit", t and t.__name__))
        await ask("exit")
        return t is ValueError
async def agen(k):
    try:
        for i in range(k):
            yield await ask(i)
    finally:
        LOG.append("agen-fin")
async def job(log, k):
    a = await ask(k)
    log.append(_(a))
    b = await Aw()
    async with Actx() as c:
        if b == "bad":
            raise ValueError(_("in"))
    l = [v async for v in agen(2)]
    async for v in agen(3):
        if v:
            break
    return (a, b, c, l)
def drive(co, sent):
    seen = []
    try:
        seen.append(co.send(None))
        for v in sent:
            seen.append(co.send(v))
    except StopIteration as e:
        seen.append(("ret", e.value))
    except ValueError as e:
        seen.append(("err", str(e)))
    finally:
        co.close()
    return seen
---
out.append(drive(job(LOG, _N), [1, 2, 3, 4, 5, 6, 7, 8, 9]))
_()
out.append(drive(job(LOG, 1), [_V, "bad", 0, 0, 0, 0, 1]))
co = job(LOG, 2)
co.send(None)
try:
    co.throw(KeyError(_("k")))
except KeyError as e:
    out.append(e)
co = job(LOG, 3)
try:
    co.send(1)
except TypeError as e:
    out.append(str(e))
co.close()
try:
    co.send(None)
except RuntimeError as e:
    out.append(str(e))
async def plain(): return _(4)
out.append([drive(plain(), []), plain.__code__.co_flags & 128])
'''
