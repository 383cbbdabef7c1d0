"""Code that each version of Python compiles in its own way: comprehensions, names of classes, loops,
formatting, generators that are closed, generic functions, and code that is being watched."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import pytest
import torch

import dynamo
from tests.features.harness import check, make_tests, table

SETUP = '''
import contextlib, sys
class Base:
    k = 3
    def scale(self, x, by=2): return x * by
    @classmethod
    def make(cls, v): return cls(v)
    def __init__(self, v=1): self.v = v
class Child(Base):
    """Some
        text."""
    def scale(self, x, by=2): return super().scale(x, by=by) + super().k
    @classmethod
    def make(cls, v): return super().make(v + 1)
class Grandchild(Child):
    def __init__(self, v): super().__init__(v); self.w = super(Child, self).k
    def scale(self, x, by=2): return super(Grandchild, self).scale(x, by) + self.w
KEPT = [1, 2, 3]
def numbers(log):
    try:
        for i in range(10): yield i
    finally: log.append("closed")
'''

ONE_GRAPH = table('''
# the traceback of an exception that is being handled
try: {}["a"]
except KeyError as e: t = e.__traceback__; r = t is None, bool(t), t is not None
return x, r
# the exception that is being handled
try: {}["a"]
except KeyError as e: r = sys.exception() is e, sys.exc_info()[1] is e
return x, r, sys.exception()
# list comprehension that hides a local
i = 5; r = [x * i for i in range(3)]; return r, i
# comprehension with a closure and a cell
k = 3; r = [lambda: x + i * k for i in range(3)]; k = 4; return [g() for g in r]
# nested comprehensions of the same name
return [[x + i for i in range(i)] for i in range(3)], {i: [i for i in range(i)] for i in range(3)}, {i % 2 for i in range(4)}
# comprehension whose name was unbound
r = [i * x for i in (1, 2)]
try: i
except UnboundLocalError as e: return r, "i" in str(e)
i = 0
# comprehension that raises
i = 7
try: r = [x / (2 - i if i < 2 else [][0]) for i in range(3)]
except IndexError: return x + i
# comprehension with walrus
r = [last := x + i for i in range(3)]; return r, last
# comprehension with a condition over a cell
def g(): return n
n = 2; r = [x * j for j in range(4) if j < g()]; n = 3; return r, g()
# generator expression in a call
return sum(x * i for i in range(3)), max(i for i in range(3)), any(i > 1 for i in range(3))
# super in several forms
return Child().scale(x), Grandchild(2).scale(x, 3), Child.make(1).v, Grandchild.make(4).w
# text with formats
a, b = 3, "q"; return x, f"{a} {b!r} {a:>4} {b!s:^5} {a!a} {a + 1=} {a:{a}}", "%s-%d" % (b, a)
# two stores and two loads
a, b = 1, 2; a, b = b, a; (a, b), c = (b, a), a; a = b = c + a; return x * a + b - c
# keyword calls
def g(a, *args, b=1, **rest): return a * b + sum(args) + sum(rest.values())
d = {"c": 4}; t = (1, 2); return g(x, b=2), g(x, *t, b=3, **d), g(a=x, **d), g(x, 5, q=6)
# functions with defaults and cells
k = 2
def g(a, b=k, *, c: int = 3) -> int: return a + b + c + k
return g(x), g(x, 1, c=2), g.__defaults__
# truth of many things
r = 0
for v in ([], [1], "", "a", None, 0, 1, 0.0, {}, {1: 2}, x.shape, ()):
    if v: r += 1
    elif not v and r: r += 10
    r = r * 2 if v is None else r + (1 if v is not None else 0)
return x + r
# while with else and break
n = 0
while n < 5:
    n += 1
    if n == 3 and not n % 3: break
else: n = 100
return x * n
# loops in loops with continue and return
for i in range(4):
    for j in range(4):
        if j == 2: continue
        if i * j == 3: return x + i * 10 + j
# slices
t = list(range(10)); t[2:4] = [7, 8, 9]; del t[0:2]; t[::3] = [0] * len(t[::3]); return x[:, 1:], t[1:-1], t
# chained comparisons
a = 3; return x + (1 < a < 5) + (1 < a <= 2), 1 < a != 4 > 2, a in KEPT, 9 not in KEPT
# finally with return in a loop
def g():
    for i in range(3):
        try:
            if i == 1: return i
        finally: KEPT.append(i); KEPT.pop()
return x + g()
# with blocks that swallow
with contextlib.suppress(KeyError): {}["a"]
with contextlib.suppress(KeyError), contextlib.nullcontext(4) as n: x = x + n; {}["a"]; x = x * 100
return x
# exception with a cause, and its name is gone
try:
    try: {}["a"]
    except KeyError as e: raise ValueError("v") from e
except ValueError as e: r = (str(e), type(e.__cause__).__name__)
try: e
except UnboundLocalError: return x, r
# generator that is closed
log = []; g = numbers(log); next(g); g.close(); return x + 1, log
# generator that ends, with send and yield from
def inner():
    a = yield 1
    b = yield a
    return a + b
def outer(): r = yield from inner(); yield r * 2
g = outer(); return x * next(g), g.send(5), g.send(6)
# class attributes of newer versions
return x, Child.__doc__.split()[1], Child.__name__, Base.__qualname__
# assertion
assert x.shape[0] == 2, "never"
return x
# names of several scopes
global TOP
def g():
    nonlocal y
    y = y + 1
    return y
TOP = 4; return g() + TOP, y
# deleting names
a = 1; b = [a]; del a
try: a
except NameError as e: return x + b[0], type(e).__name__
# large constants and many locals

''' + "; ".join(f"v{i} = x + {i * 1000}" for i in range(300)) + '''
return v0 + v299 + v255, v256
# long jumps
for i in range(3):
    if i == 1: continue
    ''' + "; ".join(f"x = x + {i}" for i in range(150)) + '''
return x
''')

ANY_GRAPHS = table('''
# a constant slice that no list takes
def part(items): return items["a":]
try: r = part([1, 2, 3])
except TypeError as e: r = str(e)
return x + 1, r, [1, 2, 3][0:2], (1, 2)[:-1]
# texts of errors
r = []
def two(items): a, b = items
class Own(list): pass
class Unhashable: __hash__ = None
for g in (lambda: two([1, 2, 3]), lambda: two((1, 2, 3)), lambda: two("abc"), lambda: two({1: 1, 2: 2, 3: 3}), lambda: two(Own("abc")),
          lambda: [1].index(2), lambda: ValueError().add_note(3), lambda: {}[[]], lambda: {}.get([]), lambda: {}.pop([]),
          lambda: {[]: 1}, lambda: [] in {}, lambda: {[]}, lambda: set().add([]), lambda: [] in set(), lambda: set([[]]),
          lambda: dict([([], 1)]), lambda: dict.fromkeys([[]]), lambda: hash([]), lambda: {}[1, []], lambda: {(1, [])},
          lambda: {Unhashable()}, lambda: {}.setdefault(Unhashable(), 1), lambda: set().discard([]), lambda: {1}.union([[]]),
          lambda: {1}.difference([[]]), lambda: {1}.isdisjoint([[]]), lambda: frozenset([[]]), lambda: {x: 1 for x in [[]]},
          lambda: {}.update([([], 1)]), lambda: {}.__delitem__([]), lambda: {x for x in [[]]}, lambda: {1}.issuperset([[]])):
    try: g()
    except (ValueError, TypeError) as e: r.append(str(e))
return x + 1, r
# annotations of a wrapper, in one graph or two
import functools
def g(a: int, b=2) -> int: return a + b
@functools.wraps(g)
def h(*args): return g(*args) * 2
return h(x), h.__name__, h.__annotations__["a"], h
# annotations that are set
def g(a: int) -> int: return a
def h(a: str) -> str: return a
made = getattr(g, "__annotate__", None); g.__annotations__ = {"a": 3}; before = getattr(g, "__annotate__", None)
h.__annotate__ = made; return x + 1, before, g.__annotations__, h.__annotations__, made is None
# annotations that are read and removed
def g(a: int) -> int: return a
a = g.__annotations__["a"]; g.__annotate__ = None; return x + 1, a, g.__annotations__, g.__annotate__
# what a function carries
def g(a, *, c: int = 3) -> int: return a + c
return g(x), g.__kwdefaults__, g.__annotations__["c"]
# tracebacks
def kind(t): return type(t).__name__
try: {}["a"]
except KeyError as e: t = e.__traceback__; u = sys.exc_info()[2]; r = kind(t), kind(u), t is u, e.__traceback__ is t
kept = e2 = None
try: raise ValueError(1)
except ValueError as e: kept = e
return x, r, kind(t), kind(u), t, kind(kept.__traceback__)
# a traceback that is taken away
try: raise ValueError(1)
except ValueError as e: e.__traceback__ = None; r = e.__traceback__
return x, r
# a traceback behind a break
try: raise ValueError(1)
except ValueError as e: t = e.__traceback__; dynamo.graph_break(); r = type(t).__name__, type(e.__traceback__).__name__
return x, r, type(t).__name__
# a traceback that is returned
try: raise ValueError(1)
except ValueError as e: t = sys.exc_info()[2]
return x, type(t).__name__, t
# a traceback that is returned, read from the exception
try: raise ValueError(1)
except ValueError as e: t = e.__traceback__
return x, type(t).__name__, t
# exception groups
try: raise ExceptionGroup("g", [ValueError(1), TypeError(2)])
except* ValueError as g: r = len(g.exceptions)
except* TypeError as g: r += 10
return x + r
# comprehension with a break
i = 9; r = [dynamo.graph_break() or x * i for i in range(3)]; return r, i
# break between the parts of a text
n = 3; return f"{n} {dynamo.graph_break()} {n:>3}", x + n
# break in a call with keywords
def g(a, *args, b, c=1): return a + sum(args) + b + c
return g(x, 1, b=dynamo.graph_break() or 2), g(x + 1, b=3, c=4)
# break in a loop over a dict, with cells
d = {"a": x, "b": y}; t = 0
for k, v in d.items(): t = t + (lambda: v)() * 2; dynamo.graph_break()
return t, k
# break in a with in a loop
for i in range(3):
    with contextlib.suppress(ValueError):
        x = x + i; dynamo.graph_break(); raise ValueError if i == 1 else KeyError if i == 5 else ValueError
return x
# break in a handler
try: {}["a"]
except KeyError as e: x = x + 1; dynamo.graph_break(); r = str(e)
return x, r
# break in a finally
try: x = x + 1
finally: dynamo.graph_break(); x = x * 2
return x
# break in a generator
def g():
    for i in range(3): yield x + i; dynamo.graph_break()
return [*g()]
# break in a super call
dynamo.graph_break(); r = Child().scale(x); dynamo.graph_break(); return Grandchild.make(2).scale(r)
# break in a match
match [x, dynamo.graph_break(), 3]:
    case [a, None, n]: return a * n
# locals as a whole
a = 1; d = locals(); a = 2; d["a"] = 5; return x, sorted(d), d["a"], a
# locals in a comprehension
k = 2; return x, [sorted(locals()) for i in range(1)], [i for i in (1,) if "i" in locals()]
# code that is run
exec("TOP2 = 3", globals()); return x + eval("TOP2 + 1") + eval("k", {}, {"k": 3})
# match on many shapes
def g(v):
    match v:
        case {"k": k, **rest}: return k, rest
        case [1, *others]: return others
        case Base(v=n): return n
        case (int() | float()) as n if n > 2: return n
        case str(s): return s
        case _: return None
return x, g({"k": 1, "z": 2}), g([1, 2, 3]), g(Base(4)), g(3.5), g(1), g("s"), g(())
''')

GENERIC = table('''
# a generic function
def g[T](v: T, n=2) -> T: return v * n
return g(x), g(y, 3), len(g.__type_params__)
# a generic class
class Box[T]:
    def __init__(self, v: T): self.v = v
    def get(self) -> T: return self.v
return Box(x).get() + 1
# an alias of a type
type Pair[T] = tuple[T, T]
return x, Pair.__name__
# quotes in quotes
d = {"a": 1}; return x, f"{d["a"]} {f"{d["a"] + 1}"}"
''')


test_one_graph, test_any_graphs = make_tests(ONE_GRAPH, ANY_GRAPHS, SETUP)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="syntax of Python 3.12")
@pytest.mark.parametrize(("name", "text"), GENERIC, ids=[name for name, _ in GENERIC])
def test_syntax_of_312(name: str, text: str) -> None:
    check(text, SETUP, graphs=None)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sys.monitoring is new in Python 3.12")
def test_code_that_is_monitored() -> None:
    """Code objects whose instructions carry events are read and replaced like others."""
    monitoring: Any = sys.monitoring
    seen: list[int] = []

    def f(x: torch.Tensor, n: int) -> torch.Tensor:
        for i in range(n):
            x = x * 2 if i % 2 else x + i
        dynamo.graph_break()
        return x.sin()

    def line(code: Any, number: int) -> None:
        seen.append(number)

    monitoring.use_tool_id(4, "lines")
    try:
        monitoring.register_callback(4, monitoring.events.LINE, line)
        x = torch.randn(3)
        expected = f(x, 4)
        monitoring.set_events(4, monitoring.events.LINE)
        assert torch.equal(f(x, 4), expected)
        compiled = dynamo.compile(f, backend="eager")
        for _ in range(3):
            assert torch.equal(compiled(x, 4), expected)
        monitoring.set_events(4, 0)
        for _ in range(3):
            assert torch.equal(compiled(x, 4), expected)
            assert torch.equal(compiled(x, 3), f(x, 3))
    finally:
        monitoring.set_events(4, 0)
        monitoring.free_tool_id(4)
    assert seen


def test_each_inverted_bool_warns_as_in_python() -> None:
    def f(x: Any, flag: bool) -> Any:
        return ~flag, x + 1

    def heard(g: Any) -> list[str]:
        found = []
        for flag in (True, True, False):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                g(torch.ones(2), flag)
            found.append([warning.category.__name__ for warning in caught])
        return found

    assert heard(dynamo.compile(f, backend="eager")) == heard(f)
