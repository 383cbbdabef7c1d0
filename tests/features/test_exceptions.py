"""Exceptions as values: groups, causes, contexts, notes, tracebacks, and `finally` in all its shapes."""

from __future__ import annotations

from tests.features.harness import make_tests, table

SETUP = """
import contextlib, traceback

class Oops(ValueError):
    pass
class Coded(Exception):
    def __init__(self, code, *rest): super().__init__(code, *rest); self.code = code
class Texted(Exception):
    def __init__(self, code): self.code = code
    def __str__(self): return f"<{self.code}>"
class Silent(Exception):
    def __init__(self): pass
class Kw(Exception):
    def __init__(self, *, code): super().__init__(code); self.code = code
class Group(ExceptionGroup):
    def derive(self, excs): return Group(self.message, excs)
def chain(e):
    return (None if e is None else (type(e).__name__, e.args, e.__suppress_context__, chain(e.__cause__), chain(e.__context__)))
def boom(v): raise Oops(v)
LOG = []
"""

ONE_GRAPH = table('''
# errors of operations name tensors as eager does
for action in (lambda: x + "s", lambda: x @ 3, lambda: [1] + x, lambda: torch.stack(x), lambda: torch.cat([x, 1])):
    try: action()
    except TypeError as e: LOG.append(str(e))
try: x += "s"
except TypeError as e: LOG.append(str(e))
return x + 1, list(LOG)
# cause
try:
    try: boom(1)
    except Oops as e: raise KeyError(2) from e
except KeyError as e: return x + 1, chain(e)
# cause none
try:
    try: boom(1)
    except Oops: raise KeyError(2) from None
except KeyError as e: return x + 1, chain(e)
# cause is a class
try: raise KeyError(2) from Oops
except KeyError as e: return x + 1, chain(e)
# cause of a wrong type
try: raise KeyError(2) from 3
except TypeError as e: return x + 1, str(e)
# raise of a wrong type
try: raise 3
except TypeError as e: return x + 1, str(e)
# context of three
try:
    try:
        try: boom(1)
        except Oops: raise KeyError(2)
    except KeyError: raise TypeError(3)
except TypeError as e: return x + 1, chain(e)
# context in a callee
def g():
    try: boom(4)
    except Oops: return chain(KeyError(5)), None
try: boom(1)
except Oops as e:
    try: boom(2)
    except Oops as f: return x + 1, chain(f), g()
# context set by finally
try:
    try: boom(1)
    finally: [][1]
except IndexError as e: return x + 1, chain(e)
# context of an exception raised again
try:
    try: boom(1)
    except Oops as e:
        try: raise KeyError(2)
        except KeyError: raise e
except Oops as e: return x + 1, chain(e)
# writing cause and context
e = KeyError(1); f = Oops(2); e.__cause__ = f; e.__context__ = None; e.__suppress_context__ = False
return x + 1, chain(e), chain(f)
# notes
e = KeyError(1); a = hasattr(e, "__notes__"); e.add_note("one"); e.add_note("two"); return x + 1, a, e.__notes__, str(e)
# notes of a caught one
try: boom(3)
except Oops as e:
    e.add_note("n"); t = e
return x + 1, t.__notes__, t.args
# note of a wrong type
try: KeyError(1).add_note(3)
except TypeError as e: return x + 1, str(e)
# str and repr
return x + 1, str(KeyError("a")), str(ValueError("a", 2)), repr(Oops("q")), str(Oops()), repr(Oops()), str(Texted(4)), repr(Texted(4)), f"{Oops(3)}", repr(KeyError(1, "b")), str(KeyError())
# arguments
e = Coded(3, "r"); f = Silent(); g = Texted(7); return x + 1, e.args, e.code, f.args, g.args, g.code, Kw(code=2).args
# args written
e = Oops(1); e.args = (4, 5); return x + 1, e.args, str(e)
# exception as value
e = Oops(1); return x + 1, isinstance(e, ValueError), isinstance(e, (KeyError, Exception)), issubclass(Oops, ValueError), type(e) is Oops, e == e, e == Oops(1), bool(e), e is e
# exceptions in containers
found = []
for k in (1, 2):
    try: boom(k)
    except Oops as e: found.append(e)
return x + 1, [e.args for e in found], {type(e): e.args for e in found}
# escaping exception object
try: boom(5)
except Oops as e: t = e
return x + 1, t
# made and returned
return x + 1, Coded(3), KeyError("k")
# name is gone behind the handler
try: boom(1)
except Oops as e: pass
try: e
except UnboundLocalError as f: return x + 1, str(f)
# finally with return
def g(v):
    try: return v + 1
    finally: LOG.append("f")
def h(v):
    try: raise Oops(1)
    finally: return v * 3
def k(v):
    try: return v
    finally: return v - 1
return g(x) + h(x) + k(y), LOG
# finally with break and continue
log = []
for i in range(5):
    try:
        if i == 1: continue
        if i == 3: break
        log.append(i)
    finally: log.append(("f", i))
for i in range(3):
    try: raise Oops(i)
    finally:
        log.append(i)
        if i == 1: break
        continue
return x + 1, log
# finally and else and nested
log = []
try:
    try: log.append(1)
    except Oops: log.append("no")
    else: raise Oops("else")
    finally: log.append("f")
except Oops as e: log.append(e.args)
return x + 1, log
# while with finally
i = 0; log = []
while True:
    try:
        i += 1
        if i > 3: break
        if i == 2: raise Oops(i)
    except Oops as e: log.append(str(e)); continue
    finally: log.append(i)
return x + 1, log
# handlers by tuple variable and expression
kinds = (Oops, KeyError)
try: {}["a"]
except kinds as e: t = repr(e)
try: boom(1)
except kinds[0] as e: u = repr(e)
return x + 1, t, u
# handler of a wrong type
try:
    try: boom(1)
    except 3: pass
except TypeError as e: return x + 1, str(e)
# base exceptions
log = []
for kind in (SystemExit, KeyboardInterrupt, GeneratorExit, StopIteration):
    try: raise kind(3)
    except Exception as e: log.append(("E", type(e).__name__))
    except BaseException as e: log.append(("B", type(e).__name__, e.args))
return x + 1, log
# attributes of builtin errors
log = []
try: x.dim().nope
except AttributeError as e: log.append((e.name, str(e)))
try: nope
except NameError as e: log.append((e.name, str(e)))
s = StopIteration(4); log.append(s.value); t = SystemExit(3); log.append(t.code); k = KeyError("a"); log.append(k.args)
return x + 1, log
# os error and unicode error
e = OSError(2, "no"); return x + 1, e.errno, e.strerror, str(e), type(e).__name__
# error of import
try: import nothing_of_this_name
except ImportError as e: return x + 1, e.name, str(e)
# unpacking errors
log = []
try: a, b = [1, 2, 3]
except ValueError as e: log.append(str(e))
try: a, b, *c = [1]
except ValueError as e: log.append(str(e))
try: a, b = 3
except TypeError as e: log.append(str(e))
return x + 1, log
# type errors of operators
log = []
for g in (lambda: 1 + "a", lambda: "a" + 1, lambda: [] + (), lambda: None + 1, lambda: -"a", lambda: 3 < "a", lambda: len(3), lambda: iter(3), lambda: {}[[]], lambda: 3(), lambda: 3[0], lambda: [1][ "a"], lambda: next([])):
    try: g()
    except TypeError as e: log.append(str(e))
return x + 1, log
# suppressed with a stack of managers
with contextlib.suppress(Oops), contextlib.ExitStack() as s:
    s.callback(LOG.append, "cb"); boom(1)
return x + 1, LOG
# with traceback kept
e = Oops(1); f = e.with_traceback(None); return x + 1, f is e, e.__traceback__
# traceback exists
try: boom(1)
except Oops as e: return x + (e.__traceback__ is not None)
# except star with nothing raised
log = []
try: log.append(1)
except* Oops: log.append(2)
else: log.append(3)
finally: log.append(4)
return x + 1, log
# group of a derived class
g = Group("o", [Oops(1), TypeError(2)]); a, b = g.split(Oops); return x + 1, type(a).__name__, type(b).__name__, repr(a)
# recursion of handlers
def g(n):
    try:
        if n == 0: raise Oops("deep")
        return g(n - 1)
    except Oops as e:
        e.add_note(str(n)); raise
try: g(3)
except Oops as e: return x + 1, e.__notes__
# exception through a generator
def g():
    try: yield 1
    except Oops as e: yield e.args
    finally: LOG.append("end")
it = g(); a = next(it); b = it.throw(Oops(7)); it.close(); return x + 1, a, b, LOG
# lookup errors of classes
log = []
try: Oops.nope
except AttributeError as e: log.append(str(e))
try: Oops(1).nope
except AttributeError as e: log.append(str(e))
try: Coded()
except TypeError as e: log.append(str(e))
try: Kw(3)
except TypeError as e: log.append(str(e))
return x + 1, log
# handlers inside of handlers
log = []
try: boom(1)
except Oops as e:
    try: raise KeyError(2)
    except KeyError as f: log.append(chain(f))
    log.append(chain(e))
    try: raise
    except Oops as g: log.append(g is e)
return x + 1, log
# bare raise without an exception
try: raise
except RuntimeError as e: return x + 1, str(e)
''')

ANY_GRAPHS = table('''
# error of a tensor operation
try: torch.ones(2) @ torch.ones(3)
except RuntimeError as e: return x + 1, str(e)
# escapes with cause
t = x + 1
try: boom(1)
except Oops as e: raise KeyError(2) from e
# escapes with notes
t = x + 1; e = Oops(3); e.add_note("n"); raise e
# escapes from a handler
t = x + 1
try: boom(1)
except Oops: raise KeyError(t.shape[0])
# group escapes
t = x + 1
try: raise ExceptionGroup("g", [Oops(1), KeyError(2)])
except* Oops: LOG.append(1)
# formatted traceback
try: boom(1)
except Oops: t = traceback.format_exc()
return x + 1, t.splitlines()[-1]
# break inside of nested handlers
log = []
try:
    try: boom(1)
    except Oops as e:
        t = x + 1; dynamo.graph_break(); log.append(chain(e)); raise KeyError(2)
except KeyError as e: log.append(chain(e)); t = t * 2; dynamo.graph_break(); log.append(chain(e))
return t + 1, log
# break inside of except star
log = []
try: raise ExceptionGroup("g", [Oops(1), KeyError(2)])
except* Oops as e: t = x + 1; dynamo.graph_break(); log.append(repr(e))
except* KeyError as e: t = t + 1; dynamo.graph_break(); log.append(repr(e))
return t * 2, log
# break inside of except star that raises again
out = []
for how in range(3):
    try:
        try: raise ExceptionGroup("g", [Oops(1), KeyError(2), ExceptionGroup("i", [Oops(3), TypeError(4)])])
        except* Oops as e:
            x = x + 1; dynamo.graph_break()
            if how == 0: raise
            if how == 1: raise e
        except* KeyError: dynamo.graph_break(); raise
    except BaseException as e: out.append((repr(e), type(e.__context__).__name__))
return x, out
# break in finally with an exception on its way
log = []
try:
    try: boom(1)
    finally: t = x + 1; dynamo.graph_break(); log.append("f")
except Oops as e: log.append(chain(e))
return t * 2, log
# break in finally with return
def g(v):
    try: return v + 1
    finally: dynamo.graph_break(); LOG.append("f")
return g(x) * 2, LOG
# with looks its methods up on the type, and both before it calls one
class Neither:
    def __init__(self): self.__enter__ = self.__exit__ = lambda *a: True
class Enters:
    def __enter__(self): LOG.append("entered"); return 1
class Leaves:
    def __exit__(self, *a): return True
class Answers:
    def __getattr__(self, name): return lambda *a: True
class Both(Enters, Leaves): pass
for manager in (Neither(), Enters(), Leaves(), Answers(), x, 3, [], {}, (), set(), None):
    try:
        with manager: LOG.append("inside")
    except TypeError as e: LOG.append(str(e))
both = Both(); both.__exit__ = lambda *a: False
with both: raise Oops(2)
return x + 1, list(LOG)
# exit gets the exception
class M: pass
seen = []
@contextlib.contextmanager
def m(name):
    try: yield name
    except Oops as e: seen.append((name, e.args)); raise KeyError(name) from e
    finally: seen.append(name)
try:
    with m("a") as a: boom(a)
except KeyError as e: return x + 1, seen, chain(e)
# group
g = ExceptionGroup("g", [Oops(1), KeyError(2)]); return x + 1, g.message, [type(e).__name__ for e in g.exceptions], str(g), len(g.args), isinstance(g, Exception)
# except star
log = []
try: raise ExceptionGroup("g", [Oops(1), KeyError(2), Oops(3)])
except* Oops as e: log.append((type(e).__name__, e.message, [v.args for v in e.exceptions]))
except* KeyError as e: log.append(repr(e))
return x + 1, log
# except star with a rest
log = []
try:
    try: raise ExceptionGroup("g", [Oops(1), KeyError(2)])
    except* Oops as e: log.append(len(e.exceptions))
except ExceptionGroup as e: log.append([repr(v) for v in e.exceptions])
return x + 1, log
# except star of a plain exception
log = []
try: boom(1)
except* Oops as e: log.append((type(e).__name__, e.message, repr(e.exceptions)))
return x + 1, log
# split and subgroup
g = ExceptionGroup("o", [ExceptionGroup("i", [Oops(1), TypeError(2)]), KeyError(3)])
a, b = g.split(Oops); return x + 1, repr(a), repr(b), repr(g.subgroup(lambda e: isinstance(e, KeyError))), g.subgroup(OSError), repr(g.derive([Oops(9)]))
# except star that raises again
out = []
for how in range(5):
    try:
        try: raise ExceptionGroup("g", [Oops(1), KeyError(2), ExceptionGroup("i", [Oops(3), TypeError(4)])])
        except* Oops as e:
            if how == 0: raise
            if how == 1: raise e
            if how == 2: raise TypeError("t") from e
            if how == 3: raise ExceptionGroup("n", [ValueError(9)])
        except* KeyError: 
            if how < 2: raise
    except BaseException as e: out.append((repr(e), chain(e)[2:3], type(e.__context__).__name__, type(e.__cause__).__name__))
return x + 1, out
# except star else and finally and loops
out = []
for i in range(3):
    try:
        try:
            if i: raise ExceptionGroup("g", [Oops(i)])
        except* Oops as e: out.append(e.exceptions[0].args)
        else: out.append("else")
        finally: out.append("finally")
    except* KeyError: out.append("never")
return x + 1, out
# group of a builtin with an init
class Nine(ValueError):
    def __init__(self, a, b): super().__init__(a); self.b = b
class Two(OverflowError):
    def __new__(cls, a, b): return super().__new__(cls)
try: raise Nine(1, 2)
except ValueError as e: return x + 1, e.args, e.b, Two(1, 2).args, Two(3, 4)
''')


# Rows that break the graph; their results are compared all the same.
BREAKS = {
    "error of import", "exit gets the exception", "group of a derived class",
    "lookup errors of classes", "os error and unicode error", "traceback exists",
    "type errors of operators", "unpacking errors", "with traceback kept",
}


test_one_graph, test_any_graphs = make_tests(ONE_GRAPH, ANY_GRAPHS, SETUP, BREAKS)
