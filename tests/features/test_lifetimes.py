"""Lifetimes of classes and keys, attributes that hide others, built-in names that are replaced."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

import dynamo
from tests.features.harness import check, table

SETUP = """
import dataclasses, gc, functools, unittest.mock, weakref
from collections import namedtuple
class Thing: pass
class Point(namedtuple("Pair", "x y")):
    w = 1
POINT = Point(3, 4)
POINT.w = 5
class Odd(int):
    __eq__ = str.__eq__
    __add__ = str.__add__
class Evil:
    def __hash__(self): return hash("attr")
    def __eq__(self, other):
        if hasattr(Holder, "attr"): del Holder.attr
        return False
class Reader:
    def __get__(self, instance, owner): return 1
class Holder: pass
class Unnamed: pass
Unnamed.p = property()
UNNAMED = Unnamed()
def kind_of(call):
    try: return call()
    except TypeError as e: return "TypeError"
"""

# Each with a collection, which breaks the graph.
ROWS = table('''
# a subclass that nothing reads any more
class A: pass
class B(A): pass
gc.collect()
return x + 1, len(A.__subclasses__())
# over two breaks
class A: pass
class B(A): pass
gc.collect()
y = x + 1
gc.collect()
n = len(A.__subclasses__())
del B
gc.collect()
return y, n, len(A.__subclasses__())
# conflict of a subclass that nothing reads any more
class A: pass
class B(A): pass
class C(A): pass
class D(B, C): pass
class E(D): pass
gc.collect()
try: C.__bases__ = (B,)
except TypeError: return x + 1
return x + 2
# keys that die
a, b = Thing(), Thing()
d = weakref.WeakKeyDictionary({a: 1, b: 2})
y = x + len(dict(d))
gc.collect()
e = dict(d) == dict(d)
del a
return y, e, sorted(d.values())
# what a key of a dict refers to dies
a, b = Thing(), Thing()
refs = {weakref.ref(a): 1, weakref.ref(b): 2}
gc.collect()
one = len({r(): n for r, n in refs.items()})
del a
return x + one, [n for r, n in refs.items() if r() is not None]
# a local that is alive is asked for weakly
a = Thing()
a.n = 2
refs = [weakref.ref(a)]
gc.collect()
return x + [r().n for r in refs][0], a.n
# a local of the part behind a break dies, no break before its reference is asked
a = Thing()
gc.collect()
r = weakref.ref(a)
was = r() is a
del a
return x + 1, was, r() is None
# it is held by another name, by a list
a, b = Thing(), Thing()
gc.collect()
r, s = weakref.ref(a), weakref.ref(b)
c, d = a, [b]
del a, b
return x + 1, r() is c, s() is d[0]
# keys of a plain dict that die
a, b = Thing(), Thing()
r = weakref.ref(a)
d = {a: 1, b: 2}
gc.collect()
y = x + sum(d.values())
gc.collect()
d.clear()
del a
return y, r() is None
# attributes of an instance of a subclass of a named tuple
p = Point(1, 2)
p.w = 3
gc.collect()
return x + 1, p.__dict__, vars(p), p.w, Point.w, p.x
# of one from outside
return x + 1, POINT.__dict__, POINT.w, hasattr(POINT, "w"), getattr(POINT, "v", 2), POINT.y
# C methods of another class
a = Odd(3)
return x + 1, kind_of(lambda: a == a), kind_of(lambda: a + a), a - 1
# an instance dict with a key that compares itself
Holder.attr = Reader()
h = Holder()
h.__dict__[Evil()] = 0
found = h.attr
return x + 1, found, hasattr(Holder, "attr")
# properties without a name, or with another one than that by which they are found
class C:
    a = property()
    b = a
C.c = property()
c, texts = C(), []
for name in "abc":
    for do in (lambda: getattr(c, name), lambda: setattr(c, name, 1), lambda: delattr(c, name)):
        try: do()
        except AttributeError as e: texts.append(str(e))
return x + 1, texts
# such properties from outside
texts = []
for do in (lambda: UNNAMED.p, lambda: setattr(UNNAMED, "p", 1), lambda: delattr(UNNAMED, "p")):
    try: do()
    except AttributeError as e: texts.append(str(e))
return x + 1, texts
# a field's default with __set_name__, which is called once
log = []
class D:
    def __set_name__(self, owner, name): log.append(name)
gc.collect()
@dataclasses.dataclass
class C:
    i: int = dataclasses.field(default=D(), init=False)
return x + 1, log
# built-in names that something else stands for
import builtins
y = x + 1
with unittest.mock.patch("builtins.int"):
    gc.collect()
    z = y + 1
return z, int("3")
# a cached function stands for a built-in
import builtins
old = hex  # none that other threads call with a list
found = []
try:
    builtins.hex = functools.lru_cache(4)(old)
    gc.collect()
    for i in 0, 1, 2, 1:
        found.append(hex(i))
finally:
    builtins.hex = old
return x + 1, found, hex is old
''')


@pytest.mark.parametrize("text", [text for _, text in ROWS], ids=[name for name, _ in ROWS])
def test_as_eager(text: str) -> None:
    check(text, SETUP, graphs=None)


class Base:
    pass


def test_classes_of_the_trace_are_no_subclasses() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, type]:
        class Derived(Base):
            pass

        return x + 1, Derived

    gc.collect()
    result = dynamo.compile(f, backend="eager")(torch.ones(2))
    assert Base.__subclasses__() == [result[1]]


def test_guards_keep_no_keys_alive() -> None:
    class Key:
        pass

    def f(x: torch.Tensor, d: dict[Key, int]) -> torch.Tensor:
        return x + sum(d.values())

    key = Key()
    compiled = dynamo.compile(f, backend="eager")
    d = {key: 3}
    assert compiled(torch.ones(2), d)[0] == compiled(torch.ones(2), d)[0] == 4
    alive = weakref.ref(key)
    del d, key
    assert alive() is None
    assert compiled(torch.ones(2), {Key(): 5})[0] == 6
