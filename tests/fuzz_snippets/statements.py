"""Snippets over statements, exceptions, generators and functions; for the form see `objects.py`."""

BLOCKS = r'''
# generator_finally
def gen1(log, k):
    try:
        yield _(1)
        got = yield 2
        log.append(("got", got))
        yield _(k)
    except ValueError as e:
        log.append(("caught", str(e)))
        yield "handled"
    finally:
        log.append(_("fin"))
    return "ret"
---
g = gen1(LOG, _N)
out.append([next(g), next(g), g.send(_V)])
out.append(next(g, "done"))
g = gen1(LOG, 1)
next(g)
_()
out.append(g.throw(ValueError("v")))
try:
    next(g)
except StopIteration as e:
    out.append(e.value)
g = gen1(LOG, 2)
next(g)
g.close()
out.append(next(g, "closed"))
try:
    gen1(LOG, 1).throw(KeyError("k"))
except KeyError as e:
    out.append(e)

# yield_from
def sub2(log):
    try:
        a = yield _(1)
        log.append(a)
        b = yield a
        return _((a, b))
    finally:
        log.append("subfin")
def top2(log):
    r = yield from sub2(log)
    log.append(r)
    r2 = yield from [r, 2]
    return _(r2)
---
g = top2(LOG)
out.append([next(g), g.send(_V), g.send(5), list(g)])
g = top2(LOG)
next(g)
try:
    g.throw(RuntimeError("x"))
except RuntimeError as e:
    out.append(e)
g = top2(LOG)
next(g)
_()
g.close()
out.append(g.gi_frame is None)

# generator_bad
def ignores():
    try:
        yield _(1)
    except GeneratorExit:
        yield 2
def stops():
    yield 1
    raise StopIteration(_(3))
def reenter():
    yield 0
    try:
        next(HOLD[0])
    except ValueError as e:
        yield str(e)
HOLD = []
---
g = ignores()
next(g)
try:
    g.close()
except RuntimeError as e:
    out.append(e)
try:
    out.append(list(stops()))
except RuntimeError as e:
    out.append([str(e), type(e.__cause__).__name__])
g = stops()
try:
    g.send(1)
except TypeError as e:
    out.append(e)
HOLD[:] = [reenter()]
out.append(list(HOLD[0]))
HOLD.clear()

# genexpr_state
---
k = [1, 2, 3]
g = (_(v + n) for v in k)
out.append(next(g))
k.append(4)
n = n + 1
out.append(list(g))
g = (v for v in k if _(v) != 2)
next(g)
k.clear()
out.append(list(g))

# with_suppress
class Sup:
    def __init__(self, log, name, swallow): self.log, self.name, self.swallow = log, name, swallow
    def __enter__(self):
        self.log.append(_(("in", self.name)))
        return self
    def __exit__(self, t, e, tb):
        self.log.append(("out", self.name, t and t.__name__, str(e), tb is None))
        return _(self.swallow)
---
with Sup(LOG, "a", True) as w, Sup(LOG, "b", False):
    out.append(w.name)
    _()
    {}[_V if isinstance(_V, int) else "k"]
    out.append("never")
try:
    with Sup(LOG, "c", 0):
        _()
        raise ValueError("q")
except ValueError as e:
    out.append([e, e.__context__])
for i in range(3):
    with Sup(LOG, i, []):
        if i == 1:
            _()
            continue
        if i == 2:
            break
        _()

# exit_replaces
class Rep:
    def __enter__(self): return self
    def __exit__(self, t, e, tb):
        if e is not None:
            raise KeyError(_("new"))
---
try:
    with Rep():
        _()
        raise ValueError("old")
except KeyError as e:
    out.append([e, e.__context__, e.__cause__])
try:
    with Rep():
        with Rep():
            1 / _(0)
except KeyError as e:
    out.append([e.__context__, e.__context__.__context__])

# contextmanager
import contextlib
@contextlib.contextmanager
def cm(log, k):
    log.append("enter")
    try:
        yield _(k)
    except ValueError as e:
        log.append(_(str(e)))
    else:
        log.append("else")
    finally:
        log.append("fin")
---
with cm(LOG, _N) as w:
    out.append(w)
with cm(LOG, 1):
    _()
    raise ValueError("in")
try:
    with cm(LOG, 2):
        raise _(KeyError("k"))
except KeyError as e:
    out.append(e)
@cm(LOG, 3)
def dd(): return _(4)
out.append([dd(), dd()])

# exit_stack
import contextlib
class Es:
    def __init__(self, log, k): self.log, self.k = log, k
    def __enter__(self): return _(self.k)
    def __exit__(self, t, e, tb):
        self.log.append((self.k, t and t.__name__))
        return self.k == 2
---
try:
    with contextlib.ExitStack() as st:
        out.append([st.enter_context(Es(LOG, k)) for k in (1, 2, 3)])
        st.callback(LOG.append, _("cb"))
        st.push(lambda t, e, tb: LOG.append(_(str(e))))
        _()
        raise ValueError("st")
    out.append("swallowed")
    with contextlib.ExitStack() as st:
        st.enter_context(Es(LOG, 7))
        st2 = st.pop_all()
    _()
    st2.close()
    with contextlib.suppress(KeyError, IndexError):
        [][_(1)]
except ValueError as e:
    out.append(e)

# except_star
---
try:
    try:
        _()
        raise ExceptionGroup("g", [ValueError(_(1)), KeyError("k"), ExceptionGroup("h", [ValueError(2), TypeError(n)])])
    except* ValueError as eg:
        out.append([str(eg), [str(v) for v in eg.exceptions]])
        _()
    except* KeyError as eg:
        out.append(eg.exceptions[0].args)
        raise RuntimeError("again")
except ExceptionGroup as eg:
    out.append([eg.message, [type(v).__name__ for v in eg.exceptions], eg.__context__ is None])
try:
    raise ValueError(_(5))
except* ValueError as eg:
    out.append([type(eg).__name__, eg.exceptions[0].args])

# raise_chains
---
import sys
try:
    try:
        raise KeyError(_("a"))
    except KeyError as e:
        _()
        raise ValueError("b") from e
except ValueError as e:
    out.append([e.__cause__, e.__context__, e.__suppress_context__])
try:
    try:
        [][_N + 10]
    except IndexError:
        _()
        raise TypeError("c") from None
except TypeError as e:
    out.append([e.__cause__, type(e.__context__).__name__, e.__suppress_context__])
try:
    try:
        _()
        1 / 0
    finally:
        out.append(sys.exc_info()[0])
        _()
        out.append(type(sys.exc_info()[1]).__name__)
except ZeroDivisionError:
    _()
    out.append(sys.exc_info()[1].args)
out.append(sys.exc_info()[0])
try:
    raise
except RuntimeError as e:
    out.append(e)
try:
    raise _(5)
except TypeError as e:
    out.append(e)

# finally_control
def fin(log, k):
    for i in range(3):
        try:
            if i == k:
                return _("ret")
            if i == 1:
                continue
            log.append(i)
        finally:
            log.append(_("f"))
            if k == 7:
                break
    else:
        log.append("else")
    return _("end")
def over():
    try:
        raise ValueError(_(1))
    finally:
        return _(2)
def nested():
    try:
        try:
            raise ValueError(1)
        finally:
            raise KeyError(_(2))
    except KeyError as e:
        return e.__context__.args
---
out.append([fin(LOG, 1), fin(LOG, 2), fin(LOG, 5), fin(LOG, 7), over(), nested()])

# except_name_deleted
---
e = _(3)
try:
    raise ValueError("z")
except ValueError as e:
    _()
    k = lambda: e
try:
    out.append(k())
except NameError as err:
    out.append([str(err), err.name])
try:
    out.append(e)
except UnboundLocalError as err:
    out.append(str(err))

# notes_and_args
class Er(Exception):
    def __init__(self, a, *, code=_N):
        self.code = _(code)
    def __str__(self): return _("Er!")
---
try:
    raise Er(_V, code=3)
except Er as e:
    e.add_note(_("note"))
    out.append([str(e), e.args, e.code, e.__notes__, repr(e), e.with_traceback(None) is e])
    kept = e
out.append(kept)
e2 = ValueError(1, 2)
e2.args = (_(3),)
out.append([str(e2), e2])
e3 = KeyError("k")
out.append([str(e3), StopIteration(4).value, AttributeError("a", name="q", obj=3).name, ImportError("i", name="m").name, UnicodeError("u").args, SystemExit(3).code])

# match_class
class Pt:
    __match_args__ = ("a", "b")
    def __init__(self, a, b): self.a, self._b = a, b
    @property
    def b(self): return _(self._b)
class Mc(type):
    def __instancecheck__(cls, o): return _(isinstance(o, (int, list)))
class Any9(metaclass=Mc): pass
---
for v in (Pt(1, 2), Pt(_V, [1, 2]), {"a": 1, "b": {"c": _(2)}}, [1, 2, 3], (1, (2, 3)), "s", _N, 1.0, None, True, [x], {}):
    match _(v):
        case Pt(1, b=k): out.append(("pt1", k))
        case Pt(a, [*_r, k]): out.append(("pt2", k, _r))
        case {"a": int(a), "b": {"c": c}, **rest}: out.append(("map", a, c, rest))
        case [1, *mid, 3]: out.append(("seq", mid))
        case (a, (b, c)) if _(b < c): out.append(("tup", a, b, c))
        case str() as t: out.append(t)
        case True | None: out.append("tn")
        case float(f): out.append(f)
        case Any9(): out.append("any")
        case _: out.append("other")

# match_values
---
import math
for v in (0, 0.0, False, -0.0, "", math.nan, 10**20, -1, 1j, (1, 2), {"k": 1}, {"k": 0}):
    match v:
        case False: out.append("F")
        case 0: out.append("zero")
        case math.pi | -1: out.append("m")
        case 1j: out.append("j")
        case (int() | str() as a, b) if _(a): out.append((a, b))
        case {"k": 1 | 2 as q}: out.append(q)
        case {"k": k, **r}: out.append((k, r))
        case _: out.append(_("d"))

# nonlocal_rebinding
def counter(start):
    def inc(by=1):
        nonlocal start
        start += _(by)
        return start
    def get(): return start
    return inc, get
---
inc, get = counter(_N)
out.append([inc(), inc(2), get()])
_()
inc()
out.append([get(), inc.__closure__[0].cell_contents])
inc.__closure__[-1].cell_contents = 50
out.append(get())
tot = 0
def add(v):
    nonlocal tot
    _()
    tot += v
    return tot
out.append([add(v) for v in (1, 2, 3)])
tot = 100
out.append([add(1), tot])

# del_closure
---
cv = _(5)
def rd(): return cv
out.append(rd())
del cv
_()
try:
    rd()
except NameError as e:
    out.append([str(e), type(e).__name__])
try:
    cv
except UnboundLocalError as e:
    out.append(str(e))
cv = 6
out.append([rd(), [rd() + _(v) for v in (1,)]])

# defaults_mutated
def df(a, acc=[], *, kw={}):
    acc.append(_(a))
    kw[a] = len(acc)
    return acc, kw
---
r = df(_N)
r2 = df(2)
out.append([r[0] is r2[0], list(r[0]), dict(r[1]), df.__defaults__[0] is r[0]])
df.__defaults__ = ([],)
_()
out.append(df(3)[0])
df.__kwdefaults__["kw"] = {}
out.append(df(4))
df.__defaults__[0].clear()
df.__kwdefaults__ = {"kw": {}}

# late_binding
---
fs = []
for i in range(3):
    _()
    fs.append(lambda k=i: (i, k, n))
n = _N
out.append([f() for f in fs])
fs = [lambda: j for j in range(3)]
out.append([f() for f in fs])
ff = {k: (lambda v: lambda: v + k)(_(k)) for k in (1, 2)}
out.append([f() for f in ff.values()])

# locals_globals
GLOB = 1
def setg(v):
    global GLOB
    GLOB = _(v)
    return globals()["GLOB"]
---
out.append([setg(_N), GLOB])
globals()["GLOB"] = _(9)
out.append([GLOB, "GLOB" in globals(), eval("GLOB + 1"), eval("n", {"n": _(4)}), "items" in locals(), "zz" in vars()])
exec("GLOB += 1", globals())
out.append(GLOB)
sc = {}
exec("def qq(a): return a * 2", sc)
out.append(sc["qq"](_(3)))
setg(5)
exec("del GLOB", globals())
try:
    out.append(GLOB)
except NameError as e:
    out.append(str(e))

# walrus_and_comprehension
---
out.append([(w := v) + _(1) for v in range(3)])
out.append(w)
out.append([[a * b for a in range(_(b))] for b in range(3)])
out.append({a: {b for b in range(_(a))} for a in range(3)})
out.append(list(v for v in items if _(v is not None)))

# calls_order
def rec(log, v):
    log.append(v)
    return _(v)
def tgt(*a, **k): return a, k
---
out.append(tgt(rec(LOG, 1), *rec(LOG, [2, 3]), rec(LOG, 4), k=rec(LOG, 5), **rec(LOG, {"z": 6})))
try:
    tgt(rec(LOG, 1), k=1, **{"k": rec(LOG, 2)})
except TypeError as e:
    out.append(str(e))
try:
    tgt(**{1: 2})
except TypeError as e:
    out.append(str(e))
k = {}
k[rec(LOG, "key")] = rec(LOG, "val")
out.append(rec(LOG, 1) < rec(LOG, 2) < rec(LOG, 0) < rec(LOG, 5))
a = [0, 0]
i = 0
i, a[i] = rec(LOG, 1), rec(LOG, 2)
out.append([a, k, i])

# signature_errors
def sg(a, b=2, /, c=3, *, d, e=5): return _((a, b, c, d, e))
---
for args, kw in (((1,), {"d": 4}), ((1, 2, 3), {"d": 1}), ((), {"d": 1}), ((1, 2, 3, 4), {"d": 1}), ((1,), {}), ((1,), {"a": 2, "d": 1}), ((1,), {"d": 1, "zz": 2})):
    try:
        out.append(sg(*args, **kw))
    except TypeError as e:
        out.append(str(e))
    _()

# unpack_errors
class Up:
    def __iter__(self):
        yield 1
        yield _(2)
---
for v in ([1], [1, 2], [1, 2, 3], Up(), {"a": 1, "b": 2}, "xy", range(2), _V, x):
    try:
        a, b = v
        out.append((a, b))
    except (TypeError, ValueError) as e:
        out.append(str(e))
    try:
        a, *b, c = v
        out.append([a, b, c])
    except (TypeError, ValueError) as e:
        out.append(str(e))
    _()

# partial_mutated
import functools
def pf(*a, **k): return _((a, k))
---
p = functools.partial(pf, _V, k=1)
out.append(p(2, z=3))
p.keywords["k"] = 5
p.keywords["new"] = _(n)
out.append([p(), p.args, p.func is pf])
p.attr = 3
q = functools.partial(p, 4, k=6)
_()
p.keywords["late"] = 1
out.append([q(), q.keywords, q.args, p.attr])
'''
