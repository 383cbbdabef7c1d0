"""Metaclasses with comparisons and checks of their own: asked exactly where Python asks them."""

from __future__ import annotations

from tests.features.harness import make_tests, table

SETUP = r"""
log = []
class Equals(type):
    def __eq__(cls, other): log.append("eq"); return True
    def __hash__(cls): log.append("hash"); return 7
class Unhashable(type):
    def __hash__(cls): log.append("hash"); return "no number"
class Refuses(type):
    def __subclasscheck__(cls, other): log.append("subclass"); raise TypeError("no subclass")
    def __instancecheck__(cls, other): log.append("instance"); raise TypeError("no instance")
class Takes(type):
    def __subclasscheck__(cls, other): log.append("subclass"); return True
    def __instancecheck__(cls, other): log.append("instance"); return True
KINDS = [Equals, Unhashable, Refuses, Takes]
def family(kind):
    class A(metaclass=kind):
        def __init__(self, x=1): self.x = x
        def f(self): return 1
        @classmethod
        def make(cls): return cls(3)
        def __add__(self, other): return "A.add", self.x
        def __radd__(self, other): return "A.radd", self.x
    class B(A):
        def __new__(cls, *args): return super().__new__(cls)
        def __init__(self, x=2): super().__init__(x)
        def f(self): return super().f() + 1
        @classmethod
        def make(cls): return super().make()
        def __radd__(self, other): return "B.radd", self.x
    class S(metaclass=kind):
        __slots__ = ("a",)
        __match_args__ = ("a",)
        def __init__(self, a): self.a = a
    class E(Exception, metaclass=kind): pass
    class F(E): pass
    return A, B, S, E, F
FAMILIES = [(kind, *family(kind)) for kind in KINDS]
def each(run):
    found = []
    for classes in FAMILIES:
        log.clear()
        try: result = run(*classes)
        except TypeError as error: result = str(error)
        found.append((result, [*log]))
    return found
"""

ROWS = table(r'''
# super
return each(lambda kind, A, B, S, E, F: (B().f(), B.make().x, B(5).x, super(B, B(4)).f())), x + 1
# super kept
def g(kind, A, B, S, E, F):
    class N(B):
        @classmethod
        def make(cls):
            found = super()
            return repr(found), found.__self_class__ is cls, found.make().x
        def g(self):
            found = super()
            self = None
            return found.f(), found.__self_class__ is N
    return N.make(), N().g()
return each(g), x + 1
# operators
return each(lambda kind, A, B, S, E, F: (A() + B(), B() + A(), A() + A())), x + 1
# class
def g(kind, A, B, S, E, F):
    class N(metaclass=kind):
        y = 1
        def m(self): return self.y
    return N().m(), N.__name__
return each(g), x + 1
# subclass
def g(kind, A, B, S, E, F):
    class N(B):
        def m(self): return super().f() + 10
    return N().m()
return each(g), x + 1
# caught
def g(kind, A, B, S, E, F):
    try: raise F("a")
    except E as error: return str(error), type(error) is F
return each(g), x + 1
# not caught
def g(kind, A, B, S, E, F):
    try:
        try: raise E("a")
        except F: return "wrong"
    except E: return "right"
return [result for result, _ in each(g)], x + 1  # 3.11 asks each handler
# patterns
def g(kind, A, B, S, E, F):
    match S(3):
        case B(): return "B"
        case S(a): return a
return each(g), x + 1
# instances
return each(lambda kind, A, B, S, E, F: (isinstance(B(), S), isinstance(B(), A), isinstance(A(), B), isinstance([], A))), x + 1
# subclasses
return each(lambda kind, A, B, S, E, F: (issubclass(B, A), issubclass(A, list), issubclass(list, A))), x + 1
# no class
return each(lambda kind, A, B, S, E, F: issubclass(3, A)), each(lambda kind, A, B, S, E, F: issubclass(3, (A, int))), x + 1
# no class, of others
r = []
for kinds in (int, (), (int, str), int | str, 4):
    try: r.append(issubclass(3, kinds))
    except TypeError as error: r.append(str(error))
return r, x + 1
# slots
return each(lambda kind, A, B, S, E, F: (S.a.__get__(S(4)), S(1).a)), x + 1
# containers
return each(lambda kind, A, B, S, E, F: (list({A: 1, B: 2}.values()), A in (S,), A == B, A is B)), x + 1
''')

_, test_any_graphs = make_tests([], ROWS, SETUP)
