"""Attributes that are refused, computed or kept elsewhere, of functions, modules, exceptions and objects with slots."""

from __future__ import annotations

from tests.features.harness import make_tests, table

SETUP = r"""
import builtins, contextlib, functools, inspect, types
def GFUNC(): pass
def GPOS(a, b, /, *, c=3): pass
MOD = types.ModuleType("spam")
class MOD3(types.ModuleType):
    a = 1
    def __init__(self): super().__init__("m")
class Plain: pass
class BSlot:
    y = 0
    __slots__ = ("z",)
    def m(self): pass
@contextlib.contextmanager
def swap_attr(o, n, v):
    old = getattr(o, n); setattr(o, n, v)
    try: yield
    finally: setattr(o, n, old)
def patch_len(): builtins.len = lambda x: 4
class PropError(Exception):
    @property
    def code(self): return self._code + 1
    @code.setter
    def code(self, v): self._code = v
class SetError(Exception):
    def __setattr__(self, n, v): self.__dict__["q" + n] = v
class SlotError(Exception):
    __slots__ = ("s",)
    cls_attr = 3
"""

ANY_GRAPHS = table(r'''
# no annotations of a function
def g(a: int): pass
g.__annotations__ = None
return x + 1, g.__annotations__
# set name of function
r = []
def g(): pass
for n, v in (("__name__", 7), ("__qualname__", 7), ("__dict__", None), ("__builtins__", 2), ("__globals__", 2), ("__closure__", 2), ("__defaults__", 3), ("__kwdefaults__", 3), ("__code__", 3), ("__annotations__", 3)):
    try: setattr(g, n, v)
    except Exception as e: r.append((n, type(e).__name__, str(e)))
    try: delattr(g, n)
    except Exception as e: r.append((n, type(e).__name__, str(e)))
return r, x + 1
# set name of outside function
r = []
g = GFUNC
for n, v in (("__name__", 7), ("__qualname__", 7), ("__dict__", None), ("__builtins__", 2), ("__globals__", 2), ("__closure__", 2), ("__defaults__", 3), ("__kwdefaults__", 3), ("__code__", 3), ("__annotations__", 3)):
    try: setattr(g, n, v)
    except Exception as e: r.append((n, type(e).__name__, str(e)))
for n in ("__name__", "__qualname__", "__dict__", "__builtins__", "__globals__", "__closure__", "__code__"):
    try: delattr(g, n)
    except Exception as e: r.append((n, type(e).__name__, str(e)))
return r, x + 1
# module dict
r = []
for m in (MOD,):
    try: m.__dict__ = {}
    except Exception as e: r.append((type(e).__name__, str(e)))
    try: del m.__dict__
    except Exception as e: r.append((type(e).__name__, str(e)))
return r, x + 1
# module dict readonly via name
def cant(o, d):
    try: o.__dict__ = d
    except (AttributeError, TypeError) as e: return str(e)
    return "set"
return cant(MOD, {}), cant(MOD2, {}), cant(5, {}), cant(Plain, {}), cant(Plain(), {"a": 1}), cant(Plain(), 3), cant(ValueError(), 3), x + 1
# module subclass set
SETMOD.a = 4
return SETMOD.log, SETMOD.__dict__.get("a"), x + 1
# module annotations
MOD.__annotations__ = {"a": 4}
return MOD.__dict__["__annotations__"], MOD.__annotations__, x + 1
# module class attribute
m = MOD3()
return hasattr(m, "a"), x + 1
# readonly class attribute of slots
r = []
b = BSlot()
try: del b.y
except AttributeError as e: r.append(str(e))
try: b.y = 0
except AttributeError as e: r.append(str(e))
try: del b.q
except AttributeError as e: r.append(str(e))
try: b.q = 0
except AttributeError as e: r.append(str(e))
try: del b.z
except AttributeError as e: r.append(str(e))
try: b.m = 0
except AttributeError as e: r.append(str(e))
return r, x + 1
# exception property
e = PropError("a")
e.code = 5
e.quick = 3
r = e.code, e._code, e.quick
return r, e.__dict__, x + 1
# exception setattr
e = SetError("a")
e.code = 5
return e.__dict__, x + 1
# exception raised property
try: raise PropError("b")
except PropError as e:
    e.code = 7
    return e.code, e._code, x + 1
# exception slots name
e = SlotError("b"); e.s = 4
try: e.cls_attr = 5
except AttributeError as err: return str(err), e.s
return e.s, e.cls_attr, e.__dict__, x + 1
# signature func text
def func(*args, **kwargs): pass
func.__text_signature__ = '($self, a, b=1, *args, c, d=2, **kwargs)'
a = str(inspect.signature(func))
func.__text_signature__ = '($self, a, b=1, /, *args, c, d=2, **kwargs)'
return a, str(inspect.signature(func)), x + 1
# wraps annotations
def decorator(func):
    @functools.wraps(func)
    def wrapper(*args, **kwargs) -> int: return func(*args, **kwargs)
    return wrapper
@decorator
def bar(a, b): pass
return bar.__annotations__, str(inspect.signature(bar, follow_wrapped=False)), x + 1
# method-wrapper of function
def deco(c): return c
@deco.__call__.__call__
class M: k = 3
return M.k, x + 1
# positional only
def g(a, b, /): pass
def h(a, b, /, c): pass
r = []
for k, kw in ((g, dict(a=1, b=2)), (h, dict(a=1, b=2, c=3)), (g, dict(b=2)), (h, dict(c=3)), (g, dict(q=1)), (GPOS, dict(a=1, b=2))):
    try: k(**kw)
    except TypeError as e: r.append(str(e))
return r, x + 1
# positional only direct
def g(a, b, /): pass
try: g(a=1, b=2)
except TypeError as e: return str(e), x + 1
# generator throw context
def g():
    try: raise KeyError("a")
    except Exception: yield
gen = g(); gen.send(None)
try: gen.throw(ValueError)
except ValueError as e: return type(e.__context__), e.__context__.args, x + 1
# builtin patched
log = []
with swap_attr(builtins, "len", len):
    def bar(): builtins.len = lambda x: 4
    log.append(len(range(7)))
    bar()
    log.append(len(range(7)))
return log, x + 1
# builtin patched outside
log = []
with swap_attr(builtins, "len", len):
    log.append(len(range(7)))
    patch_len()
    log.append(len(range(7)))
return log, x + 1
''')

_, test_any_graphs = make_tests([], ANY_GRAPHS, SETUP)
