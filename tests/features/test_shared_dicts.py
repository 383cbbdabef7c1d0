"""Objects that share an instance dict, and properties of classes of their own: every name of a shared
object sees what was written by another one."""

from __future__ import annotations

from tests.features.harness import check, make_tests, table

SETUP = r'''
import torch, dynamo
import numpy as np
LOG = []
class Settings(dict):
    def __init__(self, *args, **names): super().__init__(*args, **names); self.__dict__ = self
class Borg:
    state = {}
    def __init__(self): self.__dict__ = self.state
class Plain: pass
GIVEN = Settings(a=1)
ONE, TWO = Borg(), Borg()
NAMES = {}
HOLDER = Plain(); HOLDER.__dict__ = NAMES
class ClassValue(property):
    def __init__(self, getter, value): self.value = value; super().__init__(getter)
    def __get__(self, obj, cls=None): return self.value if obj is None else super().__get__(obj, cls)
class Told(property):
    def __set__(self, obj, value): LOG.append(value); super().__set__(obj, value * 2)
    def __delete__(self, obj): LOG.append("del"); super().__delete__(obj)
class Fixed(property):
    def __set__(self, obj, value): raise TypeError("fixed")
class Shown(dict):
    @property
    def __dict__(self): return {"shown": len(self)}
class Proxy:
    def __init__(self, inner): object.__setattr__(self, "inner", inner)
    __dict__ = property(lambda self: self.inner.__dict__)
    def __getattr__(self, name):
        if name == "inner": raise ValueError(name)
        return getattr(self.inner, name)
    def __setattr__(self, name, value): (object.__setattr__ if name == "own" else setattr)(self if name == "own" else self.inner, name, value)
class Inner: k = 1
PROXY = Proxy(Inner()); PROXY.n = 2
class Owner:
    w = ClassValue(lambda self: 5, 7)
    @Told
    def p(self): return self._p
    @p.setter
    def p(self, value): self._p = value
    @p.deleter
    def p(self): del self._p
    r = Fixed(lambda self: 1)
'''

ONE_GRAPH = table(r'''
# a read of settings
return x * GIVEN.a + GIVEN["a"]
# truth of the views of an instance dict
o = Plain(); e = Plain(); o.a = 1; d = o.__dict__
return x + 1, bool(d.items()), bool(d.keys()), not d.values(), bool(e.__dict__.items()), 5 if d.items() else 6
# a property that is named __dict__
o = Shown(a=1); d = o.__dict__; return x + 1, list(d.items()), list(d), len(d), list(vars(o)), d["shown"]
# a proxy that shows the dict of another object, made inside
p = Proxy(Inner()); p.n = 3; p.own = 4; return x + p.n + p.k, p.own, dict(p.__dict__), vars(p) is p.inner.__dict__
# such a proxy from outside
return x + PROXY.n + PROXY.k, PROXY.inner.n, dict(vars(PROXY)), hasattr(PROXY, "own")
# a property whose __set__ raises
o = Owner()
try: o.r = 5
except TypeError as e: return x + 1, str(e), o.r
''')

ANY_GRAPHS = table(r'''
# a property that overrides __get__
o = Owner(); return x + o.w, Owner.w, o.__class__.w
# a property that overrides __set__ and __delete__
LOG.clear(); o = Owner(); o.p = 3; r = o.p; del o.p; return x + r, hasattr(o, "_p"), LOG[:]
# settings made inside
d = Settings(a=1); d.b = 2; d["c"] = 3; return x + d.a, d["b"], d.c, sorted(d), len(d), d.__dict__ is d
# an item of settings is an attribute
GIVEN.b = 2; r = GIVEN["b"]; GIVEN["c"] = 3; s = GIVEN.c; del GIVEN["c"]; return x + r + s, hasattr(GIVEN, "c")
# settings read before and behind a write
v = GIVEN.a; GIVEN["a"] = v + 1; r = GIVEN.a; GIVEN.a = 1; return x + v + r, GIVEN["a"]
# settings that are updated
GIVEN.update(q=5); r = GIVEN.q; GIVEN.pop("q"); return x + r, hasattr(GIVEN, "q"), GIVEN.setdefault("a", 9), GIVEN.a
# two objects with one dict
ONE.v = 1; r = TWO.v; TWO.v = 2; return x + r, ONE.v
# two objects with one dict, made inside
a, b = Borg(), Borg(); a.v = 4; r = b.v; b.v = 5; return x + r, a.v
# the dict that they share
TWO.v = 1; r = dict(Borg.state); ONE.w = 2; return x + 1, r["v"], sorted(Borg.state), len(Borg.state)
# a dict of a module, and the object that has it
HOLDER.a = 1; r = NAMES["a"]; NAMES["b"] = 2; return x + r, HOLDER.b, HOLDER.__dict__ is NAMES
# astype without a copy is the same array
a = np.ones(3); b = a.astype(float, copy=False); b += 1; return x + 1, a, b is a
# a write to such a proxy
PROXY.n = 2; PROXY.own = 5; r = PROXY.own; del PROXY.own; return x + r, hasattr(PROXY, "own"), vars(PROXY)
''')

test_one_graph, test_any_graphs = make_tests(ONE_GRAPH, ANY_GRAPHS, SETUP)


def test_objects_that_share_a_dict_later() -> None:
    import torch

    import dynamo

    class Plain:
        v = 0

    def f(one: Plain, two: Plain, x: torch.Tensor) -> torch.Tensor:
        one.v = one.v + 1
        return x + two.v

    compiled = dynamo.compile(f, backend="eager")
    x = torch.zeros(2)
    apart = Plain(), Plain()
    apart[1].v = 5
    assert torch.equal(compiled(*apart, x), x + 5)
    shared = Plain(), Plain()
    shared[1].__dict__ = shared[0].__dict__
    shared[0].v = 1
    assert torch.equal(compiled(*shared, x), x + 2)


def test_init_subclass_of_a_class_made_inside() -> None:
    check("""
        class Registry:
            made = []
            def __init_subclass__(cls): Registry.made.append(cls.__name__)
        class One(Registry): pass
        class Two(One): pass
        dynamo.graph_break()
        return x + 1, Registry.made, One.__bases__ == (Registry,), Two.__mro__[1] is One
    """, SETUP, graphs=None)
